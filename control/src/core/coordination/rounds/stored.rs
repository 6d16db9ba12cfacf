//! The latest generation of each series, as it is remembered.

use std::sync::Arc;

use ringway_proto::ringway::rounds::v1::StoredRound;
use ringway_proto::ringway::v1::stored_group::Present;

use super::{RoundLimits, RoundTable, Rounds, Series, Slot};
use crate::core::coordination::memory::{RestoreError, Write, malformed, round, wire_round};

impl Rounds {
    /// What has changed since this was last asked.
    pub(in super::super) fn changes(&mut self) -> Vec<Write> {
        let changed = std::mem::take(&mut self.changed);
        let write = |name: String| {
            let key = format!("round/{name}");
            match self.series.get(&name).and_then(Series::stored) {
                Some(stored) => Write::put(key, &stored),
                None => Write::remove(key),
            }
        };
        changed.into_iter().map(write).collect()
    }

    /// A generation as it was remembered.
    pub(in super::super) fn recall(
        &mut self,
        key: &str,
        name: &str,
        stored: StoredRound,
    ) -> Result<(), RestoreError> {
        let table: RoundTable = round(stored.table.unwrap_or_default()).map_err(malformed(key))?;
        let ranks = table.group.members.len();
        if stored.present.iter().any(|present| present.rank as usize >= ranks) {
            return Err(malformed(key)("a member has no place in it"));
        }
        let mut series = Series::new(RoundLimits { least: stored.least, most: stored.most });
        series.present = stored.present.iter().map(|present| (Slot(present.index), present.rank)).collect();
        series.latest = Some(Arc::new(table));
        self.series.insert(name.to_owned(), series);
        Ok(())
    }
}

impl Series {
    fn stored(&self) -> Option<StoredRound> {
        let present = self.present.iter().map(|(slot, rank)| Present { index: slot.0, rank: *rank });
        Some(StoredRound {
            table: Some(wire_round(self.latest.as_ref()?)),
            present: present.collect(),
            least: self.limits.least,
            most: self.limits.most,
        })
    }
}
