//! Whether bytes go straight from the memory of one host's GPU to that of another's, or by way of the hosts' memory, and why.
//!
//! Straight is: the buffer is given out as dma-buf by the driver, registered with the network cards by the transport, and read
//! and written by them. Which pairs of ranks can is found out once, by trial; whether a buffer can be registered, when it is used:
//! there the ranks of a call agree first, as both sides of a message go the same way.
//!
//! - **S1** Memory that a network card is to read has seen all work that the GPU was given before, and what a card has written is
//!   made visible to the GPU before the call returns.
//! - **S2** A registration is held for the call, may then go when room is needed, and is dropped before the memory is given back.

#![forbid(unsafe_code)]

use super::communicator::DeviceCommunicator;
use super::error::DeviceError;
use super::memory::DeviceBuffer;
use crate::engine::{CollectiveError, Communicator};
use ringway_dataplane::memory::{DeviceMemory, Element};
use ringway_dataplane::transport::RegisterError;

/// Shorter payloads go by way of the host: agreeing and the host's copies take less than what a card would save.
pub(super) const STRAIGHT_FROM_BYTES: usize = 64 << 10;
/// Bytes of the buffer that is registered by way of trial.
const TRIAL_BYTES: usize = 64 << 10;
/// Bytes of a reason that other ranks are told.
const WORDS_BYTES: usize = 240;

/// Judges whether a GPU and the network cards that would reach its memory are near enough: by the topology and the settings,
/// which are the control plane's to know.
pub trait Nearness: Send + Sync {
    /// Why bytes are not to go straight between the GPU at this PCI address and these RDMA devices; `None`: they may.
    fn objects(&self, gpu: &str, cards: &[String]) -> Option<String>;
}

/// How the ranks on other hosts are reached, by rank of the whole group.
#[derive(Debug)]
pub(super) struct Ways {
    to: Vec<Result<Vec<String>, String>>,
    /// Whether each rank (row) can go straight with each other, as it says.
    can: Vec<u8>,
}

impl Ways {
    /// Finds out. All ranks of `whole` call it; `is_near` tells which of them NCCL connects.
    pub(super) fn find(
        whole: &Communicator,
        inside: &DeviceCommunicator,
        nearness: Option<&dyn Nearness>,
        is_near: &dyn Fn(u32) -> bool,
    ) -> Result<Ways, DeviceError> {
        let (me, size) = (whole.rank() as usize, whole.size());
        let tried = try_out(whole, inside);
        let way = |rank: u32| -> Result<Vec<String>, String> {
            if is_near(rank) {
                return Err("NCCL connects them".to_owned());
            }
            let cards = whole.reaches_devices(rank)?;
            tried.clone()?;
            match nearness.and_then(|near| near.objects(&inside.device().pci_address(), &cards)) {
                Some(why) => Err(why),
                None => Ok(cards),
            }
        };
        let mut to: Vec<Result<Vec<String>, String>> = (0..size).map(way).collect();
        let mut can = vec![0u8; to.len() * to.len()];
        let row: Vec<u8> = to.iter().map(|way| u8::from(way.is_ok())).collect();
        whole.all_gather(&row, &mut can)?;
        let mine = (0..size).filter(|rank| !is_near(*rank)).find_map(|rank| to[rank as usize].as_ref().err());
        let words = told(mine.map_or("", String::as_str));
        let mut all = vec![0u8; WORDS_BYTES * to.len()];
        whole.all_gather(&words, &mut all)?;
        for (rank, way) in to.iter_mut().enumerate() {
            if way.is_ok() && can[rank * size as usize + me] == 0 {
                let words = all[rank * WORDS_BYTES..][..WORDS_BYTES].split(|byte| *byte == 0).next();
                let words = String::from_utf8_lossy(words.unwrap_or_default()).into_owned();
                *way = Err(format!("rank {rank} says: {words}"));
            }
        }
        Ok(Ways { to, can })
    }

    /// By which devices bytes go straight to a rank, or why not.
    pub(super) fn to(&self, rank: u32) -> &Result<Vec<String>, String> {
        &self.to[rank as usize]
    }

    /// Whether all of these ranks go straight with each other: the same answer on all of them.
    pub(super) fn is_straight_among(&self, ranks: &[u32]) -> bool {
        let size = self.to.len();
        let can = |a: u32, b: u32| a == b || self.can[a as usize * size + b as usize] == 1;
        ranks.iter().all(|a| ranks.iter().all(|b| can(*a, *b)))
    }
}

/// A reason, cut to what fits.
fn told(words: &str) -> [u8; WORDS_BYTES] {
    let mut bytes = [0; WORDS_BYTES];
    let end = (0..=words.len().min(WORDS_BYTES - 1)).rfind(|end| words.is_char_boundary(*end)).unwrap_or(0);
    bytes[..end].copy_from_slice(&words.as_bytes()[..end]);
    bytes
}

/// Exports and registers a buffer, to see whether that can be done here at all.
fn try_out(whole: &Communicator, inside: &DeviceCommunicator) -> Result<(), String> {
    inside.device().takes_writes_of_others()?;
    if (0..whole.size()).all(|rank| rank == whole.rank() || whole.reaches_devices(rank).is_err()) {
        // Nobody is there to register it for, and each way has its own reason.
        return Ok(());
    }
    let buffer: DeviceBuffer<u8> = inside.alloc(TRIAL_BYTES).map_err(|error| error.to_string())?;
    hold(whole, &buffer).map(drop)
}

/// A buffer that is registered, and held so for a call (S2).
pub(super) struct Held<'a> {
    comm: &'a Communicator,
    pub(super) memory: &'a DeviceMemory,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.comm.release_registered(self.memory.id());
    }
}

/// Registers a buffer with the transports of `comm`, or finds that it is.
pub(super) fn hold<'a, T: Element>(
    comm: &'a Communicator,
    buffer: &'a DeviceBuffer<T>,
) -> Result<Held<'a>, String> {
    let memory = buffer.on_device().map_err(|error| error.to_string())?;
    let region = memory.region(0..memory.len()).map_err(|error| error.to_string())?;
    comm.keep_registered(&region).map_err(|error| match error {
        // The rest of its words is of the host's memory.
        RegisterError::Refused { why, .. } => why,
        other => other.to_string(),
    })?;
    buffer.is_known_to(&comm.reporter());
    Ok(Held { comm, memory })
}

/// As [`hold`], where all who take part in a call can: `agree` tells them whether this one can, and answers whether all do.
/// `None`: the call is staged.
pub(super) fn hold_together<'a, T: Element>(
    comm: &'a Communicator,
    buffer: &'a DeviceBuffer<T>,
    agree: impl FnOnce(bool) -> Result<bool, CollectiveError>,
) -> Result<Option<Held<'a>>, CollectiveError> {
    let held = hold(comm, buffer);
    let all = agree(held.is_ok())?;
    let held = held.inspect_err(|why| tracing::warn!("memory of a GPU is staged through the host's: {why}"));
    Ok(held.ok().filter(|_| all))
}

/// Whether all ranks of `comm` can, if this one `can`: each says so before a call.
pub(super) fn agree(comm: &Communicator, can: bool) -> Result<bool, CollectiveError> {
    let mut all = [u8::from(can)];
    comm.all_reduce(&mut all, crate::reduce::ReduceOp::Min)?;
    Ok(all[0] == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_cut_between_letters() {
        let words = "é".repeat(WORDS_BYTES);
        let bytes = told(&words);
        let text = std::str::from_utf8(bytes.split(|byte| *byte == 0).next().unwrap()).unwrap();
        assert!(text.chars().all(|letter| letter == 'é') && text.len() == (WORDS_BYTES - 1) / 2 * 2);
        assert_eq!(told("short")[..6], *b"short\0");
    }

    #[test]
    fn a_group_goes_straight_if_each_pair_does() {
        let mut ways = Ways { to: vec![Err(String::new()); 4], can: vec![1; 16] };
        assert!(ways.is_straight_among(&[0, 2, 3]));
        ways.can[3 * 4 + 2] = 0;
        assert!(ways.is_straight_among(&[0, 1, 2]) && !ways.is_straight_among(&[2, 3]));
        assert!(ways.is_straight_among(&[3]) && ways.is_straight_among(&[]));
    }
}
