//! Groups that are over, so that their late frames are ignored.

use super::MAX_RETIRED;
use std::collections::{HashSet, VecDeque};

/// The groups that are over.
#[derive(Debug, Default)]
pub struct Retired {
    groups: HashSet<u32>,
    order: VecDeque<u32>,
}

impl Retired {
    /// Remembers that `group` is over.
    pub fn add(&mut self, group: u32) {
        if self.groups.insert(group) {
            self.order.push_back(group);
            if self.order.len() > MAX_RETIRED
                && let Some(oldest) = self.order.pop_front()
            {
                self.groups.remove(&oldest);
            }
        }
    }

    pub(super) fn has(&self, tag: u64) -> bool {
        !self.groups.is_empty() && self.groups.contains(&((tag >> 32) as u32))
    }
}
