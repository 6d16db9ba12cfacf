//! Making smaller communicators out of one.

#![forbid(unsafe_code)]

use super::communicator::Communicator;
use super::error::CollectiveError;
use super::group::GroupInfo;
use crate::reduce::ReduceOp;

/// Ids made here have the top bit, so that they never meet those that the control plane gives to groups.
pub const SPLIT_IDS: u32 = 1 << 31;

impl Communicator {
    /// Splits the communicator: the ranks that give the same `color` become a new one, ordered by `key` and then by
    /// rank. A rank that gives `None` gets none. Every rank must call it.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Communicator>, CollectiveError> {
        // 0 for no color.
        let mine = [color.map_or(0, |c| u64::from(c) + 1), u64::from(key)];
        let mut all = vec![0u64; 2 * self.size_usize()];
        self.all_gather(&mine, &mut all)?;
        let mut colors: Vec<u64> = all.chunks_exact(2).map(|c| c[0]).filter(|c| *c > 0).collect();
        colors.sort_unstable();
        colors.dedup();
        let base = self.agree_on_ids(colors.len() as u32)?;
        let made = self.enter_split(&all, &colors, mine[0], base);
        self.owner.lock().reserved.retain(|id| *id != base);
        made
    }

    fn enter_split(
        &self,
        all: &[u64],
        colors: &[u64],
        mine: u64,
        base: u32,
    ) -> Result<Option<Communicator>, CollectiveError> {
        let Ok(number) = colors.binary_search(&mine) else { return Ok(None) };
        let mut ranks: Vec<(u64, u32)> = (0u32..)
            .zip(all.chunks_exact(2))
            .filter(|(_, c)| c[0] == mine)
            .map(|(rank, c)| (c[1], rank))
            .collect();
        ranks.sort_unstable();
        let my_rank = ranks.iter().position(|(_, rank)| *rank == self.rank);
        let my_rank = my_rank.unwrap_or_else(|| unreachable!("this rank has its own color")) as u32;
        let members = ranks.iter().map(|(_, rank)| self.members[*rank as usize].clone()).collect();
        let info = GroupInfo { id: base + number as u32, my_rank, members };
        let part = Communicator::join(self.owner.clone(), info)?;
        part.set_numerics(self.numerics());
        Ok(Some(part))
    }

    /// Agrees on the first of `count` ids in a row (one, when there is no colour) that no member uses. Candidates come from what all members know;
    /// each says whether it uses any of them, and reserves them meanwhile, so that splits of other communicators on
    /// other threads keep off.
    fn agree_on_ids(&self, count: u32) -> Result<u32, CollectiveError> {
        let count = count.max(1);
        let mut number = {
            let mut core = self.owner.lock();
            let group = core.group(self.index);
            group.splits = group.splits.wrapping_add(1);
            u64::from(group.splits) << 32
        };
        loop {
            let base = candidate(self.id(), number, count);
            let mut taken = [0u8];
            {
                let mut core = self.owner.lock();
                let ids = base..base + count;
                let near = |id: &u32| id.abs_diff(base) < crate::schedule::MAX_RANKS;
                let used = core.groups.iter().flatten().any(|g| ids.contains(&g.info.id))
                    || core.retired.iter().any(|closed| ids.contains(&closed.id))
                    || core.reserved.iter().any(near);
                taken[0] = u8::from(used);
                if !used {
                    core.reserved.push(base);
                }
            }
            let reserved = taken[0] == 0;
            let agreed = self.all_reduce(&mut taken, ReduceOp::Max);
            if agreed.is_ok() && taken[0] == 0 {
                return Ok(base);
            }
            if reserved {
                self.owner.lock().reserved.retain(|id| *id != base);
            }
            agreed?;
            number += 1;
        }
    }
}

/// A number below which `count` more fit, out of the parent's id and a number: the finaliser of SplitMix64.
fn candidate(parent: u32, number: u64, count: u32) -> u32 {
    let mut x = (u64::from(parent) << 16 ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let room = u64::from(SPLIT_IDS - count);
    SPLIT_IDS + ((x ^ (x >> 31)) % room) as u32
}
