//! Writes of a connection: payload straight into the place of its receive.
#![forbid(unsafe_code)]

use super::choice::MAX_RAILS;
use super::connection::{Connection, Holds, Posted};
use super::rail::{Rail, SENDS, Write};
use super::registration::Registered;
use super::request::Kind as Request;
use crate::transport::Cause;
use crate::transport::matching::{FRAME_BYTES, Frame, Kind, Matcher, Payload, Place, SlotId};

impl Connection {
    /// Most bytes of a write.
    pub(super) fn write_bytes(&self) -> u64 {
        let alive = self.rails.iter().filter(|r| r.is_alive());
        let device = alive.map(|r| r.max_write_bytes).min().unwrap_or(1);
        device.min(if self.rails.len() > 1 { self.stripe_bytes } else { FRAME_BYTES })
    }

    /// Posts a write of payload into its place.
    pub(super) fn write(
        &mut self,
        frame: &Frame,
        payload: &Payload,
        held: &Registered,
        matcher: &mut Matcher,
    ) -> Result<(), Cause> {
        let Some(lease) = matcher.outgoing(payload.slot) else { return Ok(()) };
        let offset = payload.offset as u64;
        let address = frame.place.address.wrapping_add(offset);
        let mut lkeys = [0; MAX_RAILS];
        for (key, rail) in lkeys.iter_mut().zip(&self.rails) {
            *key = held.lkey(rail.device);
        }
        let mut write = Write {
            slot: payload.slot,
            from: lease.as_ptr().addr() as u64 + offset,
            len: payload.len,
            to: SlotId(frame.slot),
            place: Place { address, ..frame.place },
            lkeys,
            told: None,
        };
        let whole = payload.offset == 0 && payload.last;
        if !whole && self.rails.len() > 1 {
            matcher.stripe(payload.slot);
            return self.post_write(write, matcher);
        }
        if payload.last {
            write.told = Some(self.next);
            self.log[(self.next % SENDS) as usize] = Posted::Write(write);
            self.next = self.next.wrapping_add(1);
            self.budget -= 1;
        }
        let id = self.id(Request::Write, 0);
        self.rails[self.control].write(id, self.control, write)
    }

    /// Posts a write that tells nothing on the rail with the least under way.
    fn post_write(&mut self, write: Write, matcher: &mut Matcher) -> Result<(), Cause> {
        let free = self.rails.iter().enumerate().filter(|(_, r)| r.has_room());
        let Some((rail, _)) = free.min_by_key(|(_, r)| r.under_way_bytes) else {
            self.redo.push_back(write);
            return Ok(());
        };
        matcher.carried(write.slot, rail);
        let id = self.id(Request::Write, 0);
        self.rails[rail].write(id, rail, write)
    }

    pub(super) fn redo_writes(&mut self, matcher: &mut Matcher) -> Result<bool, Cause> {
        let mut written = false;
        while self.failover.is_none()
            && self.rails.iter().any(Rail::has_room)
            && let Some(write) = self.redo.pop_front()
        {
            self.post_write(write, matcher)?;
            written = true;
        }
        Ok(written)
    }

    /// Gives a `Cts` the address of its receive, where that is registered.
    pub(super) fn expose(&self, frame: Frame, matcher: &mut Matcher, holds: &Holds) -> Frame {
        let slot = SlotId(frame.slot);
        if frame.kind != Kind::Cts {
            return frame;
        }
        let Some((id, lease)) = matcher.incoming(slot) else { return frame };
        let Some(held) = holds.get(&id) else { return frame };
        let mut place = Place { address: lease.as_ptr().addr() as u64, ..Place::default() };
        for (key, rail) in place.keys.iter_mut().zip(&self.rails) {
            *key = held.rkey(rail.device);
        }
        matcher.expose(slot);
        Frame { place, ..frame }
    }
}
