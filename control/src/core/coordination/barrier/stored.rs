//! Barriers that have ended, as they are remembered.

use ringway_proto::ringway::v1 as wire;

use super::{Barriers, Ended, Key};
use crate::core::coordination::memory::{RestoreError, Write, malformed, refusal, stored_refusal};
use crate::core::time::Time;

fn name(key: &Key) -> String {
    format!("barrier/{}/{}", key.counter, key.id)
}

impl Barriers {
    /// What has changed since this was last asked.
    pub(in super::super) fn changes(&mut self) -> Vec<Write> {
        let mut writes = Vec::new();
        for key in std::mem::take(&mut self.changed) {
            writes.push(match self.ended.get(&key) {
                Some(ended) => {
                    self.ends += 1;
                    let error = ended.result.as_ref().err().map(stored_refusal);
                    Write::put(name(&key), &wire::StoredBarrier { order: self.ends, error })
                }
                None => Write::remove(name(&key)),
            });
        }
        writes
    }

    /// A barrier as it was remembered, by what follows `barrier/` in its key.
    pub(in super::super) fn recall(
        &mut self,
        whole: &str,
        rest: &str,
        stored: wire::StoredBarrier,
    ) -> Result<(), RestoreError> {
        let named = rest.split_once('/').and_then(|(counter, id)| Some((counter.parse().ok()?, id)));
        let (counter, id) = named.ok_or_else(|| malformed(whole)("it names no barrier"))?;
        let key = Key { id: id.into(), counter };
        let error = stored.error.map(refusal).transpose().map_err(malformed(whole))?;
        self.ended.insert(key.clone(), Ended { result: error.map_or(Ok(()), Err), at: Time::ZERO });
        self.recalled.push((stored.order, key));
        Ok(())
    }

    /// All have been recalled: the oldest is forgotten first again.
    pub(in super::super) fn recalled(&mut self) {
        let mut all = std::mem::take(&mut self.recalled);
        all.sort();
        self.ends = all.last().map_or(0, |(order, _)| *order);
        self.oldest = all.into_iter().map(|(_, key)| key).collect();
    }
}
