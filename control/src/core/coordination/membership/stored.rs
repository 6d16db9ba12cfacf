//! Tasks as they are remembered.

use ringway_proto::ringway::v1 as wire;
use ringway_proto::ringway::v1::stored_member::device::What;
use ringway_topology::Incarnation;
use std::time::Duration;

use super::{Membership, Slot};
use crate::core::coordination::memory::{
    RestoreError, Write, malformed, process, refusal, stored_refusal, stored_state, wire_process,
};
use crate::core::coordination::request::{Device, State};

impl Membership {
    /// What has changed since this was last asked.
    pub(in super::super) fn changes(&mut self) -> Vec<Write> {
        let changed = std::mem::take(&mut self.changed);
        let member = |slot: Slot| Write::put(format!("member/{}", slot.0), &self.stored(slot));
        let mut writes: Vec<Write> = changed.slots.into_iter().map(member).collect();
        writes.extend(changed.jobs.into_iter().filter_map(|name| {
            let version = self.jobs.get(&name)?.version;
            Some(Write::put(format!("job/{name}"), &wire::StoredJob { version }))
        }));
        writes
    }

    fn stored(&self, slot: Slot) -> wire::StoredMember {
        let member = self.get(slot);
        wire::StoredMember {
            state: stored_state(member.state).into(),
            incarnation: member.incarnation.0,
            past: member.past.iter().map(|incarnation| incarnation.0).collect(),
            error: member.error.as_ref().map(stored_refusal),
            process: member.process.as_ref().map(wire_process),
            rank: member.rank,
            silence_ms: member.silence.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
            gone: self.gone.get(&slot).cloned(),
            devices: member.devices.iter().flatten().map(stored_device).collect(),
            has_devices: member.devices.is_some(),
        }
    }

    /// A task as it was remembered.
    pub(in super::super) fn recall(
        &mut self,
        key: &str,
        slot: Slot,
        stored: wire::StoredMember,
    ) -> Result<(), RestoreError> {
        let state = match stored.state() {
            wire::stored_member::State::Disconnected => State::Disconnected,
            wire::stored_member::State::Connected => State::Connected,
            wire::stored_member::State::Error => State::Error,
        };
        if let Some(why) = stored.gone {
            self.gone.insert(slot, why);
        }
        match state {
            State::Connected => self.connected += 1,
            State::Error => drop(self.failed.insert(slot)),
            State::Disconnected => {}
        }
        self.known += usize::from(stored.has_devices);
        let lives = stored.past.iter().copied().chain([stored.incarnation]).filter(|life| *life != 0);
        self.lives.extend(lives.map(|life| (Incarnation(life), slot)));
        let devices = stored.devices.into_iter().filter_map(device).collect();
        let member = &mut self.members[slot.0 as usize];
        member.state = state;
        member.incarnation = Incarnation(stored.incarnation);
        member.past = stored.past.into_iter().map(Incarnation).collect();
        member.error = stored.error.map(refusal).transpose().map_err(malformed(key))?;
        let at = stored.process.map(|named| process(Some(named)));
        member.process = at.transpose().map_err(malformed(key))?;
        member.rank = stored.rank;
        member.silence = stored.silence_ms.map(Duration::from_millis);
        member.devices = stored.has_devices.then_some(devices);
        Ok(())
    }

    /// How often a job had changed.
    pub(in super::super) fn recall_job(&mut self, name: &str, version: i64) {
        if let Some(job) = self.jobs.get_mut(name) {
            job.version = version;
        }
    }
}

fn stored_device(device: &Device) -> wire::stored_member::Device {
    let what = match device {
        Device::Attributes(bytes) => What::Attributes(bytes.clone()),
        Device::Topology(bytes) => What::Topology(bytes.clone()),
        Device::Any { type_url, value } => {
            What::Any(wire::stored_member::Any { type_url: type_url.clone(), value: value.clone() })
        }
    };
    wire::stored_member::Device { what: Some(what) }
}

fn device(stored: wire::stored_member::Device) -> Option<Device> {
    Some(match stored.what? {
        What::Attributes(bytes) => Device::Attributes(bytes),
        What::Topology(bytes) => Device::Topology(bytes),
        What::Any(any) => Device::Any { type_url: any.type_url, value: any.value },
    })
}
