//! Losses as they are remembered: of each task the latest.

use std::sync::Arc;

use super::{Loss, Losses, Slot};
use crate::core::coordination::memory::{Write, wire_loss};

impl Losses {
    /// What has changed since this was last asked.
    pub(in super::super) fn changes(&mut self) -> Vec<Write> {
        let changed = std::mem::take(&mut self.changed);
        let write = |slot: Slot| {
            let loss = self.logged.get(&slot).and_then(|epoch| self.log.get(epoch))?;
            Some(Write::put(format!("loss/{}", slot.0), &wire_loss(loss)))
        };
        changed.into_iter().filter_map(write).collect()
    }

    /// A loss as it was remembered.
    pub(in super::super) fn recall(&mut self, slot: Slot, loss: Loss) {
        self.logged.insert(slot, loss.epoch);
        self.log.insert(loss.epoch, Arc::new(loss));
    }
}
