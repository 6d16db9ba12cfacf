//! For work that goes on beside the engine, on GPUs, and shares the fate of a communicator: it looks in while it waits, and
//! ends the communicator by causes that the engine cannot see.

#![forbid(unsafe_code)]

use super::communicator::Communicator;
use super::error::{CollectiveError, Who};
use std::time::Instant;

impl Communicator {
    /// Makes progress once, so that news of a peer are taken in, and tells why the communicator is dead, if it is.
    pub(crate) fn look(&self) -> Result<(), CollectiveError> {
        let mut core = self.owner.lock();
        core.turn();
        core.tick(Instant::now());
        self.owner.nudge(&core);
        core.check(self.index)
    }

    /// Ends the communicator on all ranks by `error`, unless it is dead already; returns the error that it is dead by.
    pub(crate) fn end_by(&self, error: CollectiveError) -> CollectiveError {
        let mut core = self.owner.lock();
        core.fail(self.index, error.clone(), None);
        self.owner.tell(&mut core);
        let cause = core.check(self.index).err().unwrap_or(error);
        drop(self.owner.write_down(core));
        cause
    }

    /// A member, as errors name it.
    pub(crate) fn who(&self, rank: u32) -> Who {
        let member = &self.members[rank as usize];
        Who { rank, host: member.host.clone(), pid: member.pid }
    }
}
