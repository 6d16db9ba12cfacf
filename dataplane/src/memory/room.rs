//! Whether there is memory for what is about to be taken: a block that the machine does not have costs the process, since
//! the kernel says no by killing it.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use ringway_topology::host::memory::Memory;
use rustix::process::{Resource, getrlimit};

use super::pool::AllocError;

/// Blocks of fewer bytes are not asked for: looking would take longer than they do.
pub const ASKED_BYTES: usize = 2 << 20;
/// Bytes of memory that large blocks leave to everything else.
pub const SPARED_BYTES: u64 = 64 << 20;

/// Room that is taken and not yet filled, and so not yet seen in what the system says.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Room for some bytes, until it is dropped: then they are in use, or not wanted any more.
#[derive(Debug)]
#[must_use]
pub struct Room(u64);

impl Drop for Room {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Whether a file in memory may have this length: the kernel ends a process that makes one longer than its limit (SIGXFSZ).
///
/// # Errors
/// The limit, in words.
pub(crate) fn within_file_limit(bytes: usize) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if most < bytes as u64 => {
            let why = format!("the limit on file sizes (ulimit -f) is {most} bytes, and {bytes} are needed");
            Err(io::Error::other(why))
        }
        _ => Ok(()),
    }
}

/// Takes room for `bytes` that are about to be filled. Where the system does not say how much it has, there is room.
///
/// # Errors
/// [`AllocError::NoRoom`] when this machine, or what control groups leave of it to this process, has not so much.
pub fn room(bytes: usize) -> Result<Room, AllocError> {
    if bytes < ASKED_BYTES {
        return Ok(Room(0));
    }
    let wanted = bytes as u64;
    let room = Room(wanted);
    let taken = TAKEN.fetch_add(wanted, Ordering::Relaxed);
    let Some(available) = available_bytes() else { return Ok(room) };
    let left = available.saturating_sub(SPARED_BYTES).saturating_sub(taken);
    if wanted > left {
        return Err(AllocError::NoRoom { bytes, left_bytes: left });
    }
    Ok(room)
}

/// `None` where the system does not say.
fn available_bytes() -> Option<u64> {
    static MEMORY: OnceLock<Option<Memory>> = OnceLock::new();
    let found = || {
        let found = Memory::of_this_process();
        found.inspect_err(|error| tracing::warn!("memory is not watched: {error}")).ok()
    };
    MEMORY.get_or_init(found).as_ref()?.available_bytes().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_does_not_have_is_refused_and_costs_nothing() {
        // More than can come free meanwhile.
        let all = usize::try_from(available_bytes().unwrap()).unwrap() + (64 << 30);
        for _ in 0..2 {
            let error = room(all).unwrap_err();
            assert!(matches!(error, AllocError::NoRoom { bytes, .. } if bytes == all), "{error}");
            assert!(error.to_string().contains(&all.to_string()), "{error}");
        }
        assert!(room(ASKED_BYTES).is_ok() && room(0).is_ok());
    }
}
