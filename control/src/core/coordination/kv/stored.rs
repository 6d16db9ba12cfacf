//! Keys as they are remembered: each value as it is.

use super::Store;
use crate::core::coordination::memory::Write;
use crate::core::coordination::request::Value;

impl Store {
    /// What has changed since this was last asked.
    pub(in super::super) fn changes(&mut self) -> Vec<Write> {
        let changed = std::mem::take(&mut self.changed);
        let write =
            |path: String| Write { key: format!("key/{path}"), value: self.entries.get(&path).cloned() };
        changed.into_iter().map(write).collect()
    }

    /// A key as it was remembered.
    pub(in super::super) fn recall(&mut self, path: &str, value: Value) {
        self.bytes += path.len() + value.len();
        self.entries.insert(path.to_owned(), value);
    }
}
