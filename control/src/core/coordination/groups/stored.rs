//! Groups that were made, as they are remembered.

use std::sync::Arc;

use ringway_proto::ringway::v1 as wire;

use super::{Groups, Made, Slot};
use crate::core::coordination::memory::{RestoreError, Write, group, malformed, wire_group};

impl Groups {
    /// What has changed since this was last asked.
    pub(in super::super) fn changes(&mut self) -> Vec<Write> {
        let changed = std::mem::take(&mut self.changed);
        let write = |name: String| {
            let key = format!("group/{name}");
            match self.made.get(&name) {
                Some(made) => Write::put(key, &made.stored()),
                None => Write::remove(key),
            }
        };
        changed.into_iter().map(write).collect()
    }

    /// A group as it was remembered.
    pub(in super::super) fn recall(
        &mut self,
        key: &str,
        name: &str,
        stored: wire::StoredGroup,
    ) -> Result<(), RestoreError> {
        let table = group(stored.table.unwrap_or_default()).map_err(malformed(key))?;
        let ranks = table.members.len();
        let present = stored.present.iter().map(|present| (Slot(present.index), present.rank)).collect();
        if stored.present.iter().any(|present| present.rank as usize >= ranks) {
            return Err(malformed(key)("a member has no place in it"));
        }
        self.made.insert(name.to_owned(), Made { table: Arc::new(table), present });
        Ok(())
    }
}

impl Made {
    fn stored(&self) -> wire::StoredGroup {
        let present = self
            .present
            .iter()
            .map(|(slot, rank)| wire::stored_group::Present { index: slot.0, rank: *rank });
        wire::StoredGroup { table: Some(wire_group(&self.table)), present: present.collect() }
    }
}
