//! Asking silent ranks what they are doing, so that no mixture of mismatched calls hangs.
//!
//! Calls that differ usually meet in a message, and their stamps tell. Those that never meet (two ranks that both think
//! they are the root, or that both wait) are found so: a rank whose call has not moved for a while sends its stamp to
//! the ranks it waits for. One whose call of that number differs answers with the mismatch; one that has not come so
//! far remembers the question and looks at it when it does; one for which the communicator is dead or closed says so. Of
//! messages, whose calls have no number, nothing but that is answered.

#![forbid(unsafe_code)]

use super::core::Core;
use super::run::Phase;
use std::time::{Duration, Instant};

/// Longest wait between two inquiries of one call, in milliseconds.
pub const MAX_INQUIRY_MS: u64 = 5_000;
/// How long a rank that withdrew its half of a message may take to say why, in milliseconds.
const WITHDRAWN_MS: u64 = 2_000;
/// Ranks asked per inquiry, at most.
const MAX_ASKED: usize = 8;

impl Core {
    /// Looks after the calls that do not move. Cheap when nothing is due.
    pub(super) fn tick(&mut self, now: Instant) {
        if now < self.next_tick {
            return;
        }
        let first_ms = self.options.inquiry_ms.max(1);
        self.next_tick = now + Duration::from_millis(first_ms);
        self.settle_doubts();
        let mut at = 0;
        while let Some(&slot) = self.active.get(at) {
            at += 1;
            let run = &mut self.runs[usize::from(slot)];
            if run.phase != Phase::Active {
                continue;
            }
            let still_since = match run.still_since {
                Some(since) if !run.moved => since,
                _ => {
                    (run.moved, run.still_since, run.patience_ms) = (false, Some(now), first_ms);
                    continue;
                }
            };
            if let Some(rank) = run.withdrawn {
                if now.duration_since(still_since) >= Duration::from_millis(WITHDRAWN_MS) {
                    self.give_up_on(slot, rank, still_since, now);
                }
            } else if now.duration_since(still_since) >= Duration::from_millis(run.patience_ms) {
                run.patience_ms = (run.patience_ms * 2).min(run.patience_ms + MAX_INQUIRY_MS);
                self.inquire(slot);
            }
        }
    }

    /// Asks the ranks that a call waits for.
    fn inquire(&mut self, slot: u16) {
        let mut asked: Vec<u32> = Vec::with_capacity(MAX_ASKED);
        for step in self.runs[usize::from(slot)].awaited() {
            if asked.len() < MAX_ASKED && !asked.contains(&step.peer()) {
                asked.push(step.peer());
            }
        }
        for rank in asked {
            self.ask(slot, rank);
        }
    }
}
