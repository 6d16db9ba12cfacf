//! Calls where NCCL reaches only the GPUs of one host: NCCL inside, the transports of the engine between. Here the
//! all-reduce; what only moves is in `moves`.
//!
//! ```text
//! each GPU       reduce_scatter inside: it has the sum of its host of one block
//!                the block, through pinned memory: all_reduce between the ranks of the same number on all hosts
//!                all_gather inside: it has all blocks
//! ```
//!
//! A long vector goes in pieces, so that GPUs are at work on one while the network has another. The sums between hosts are
//! made by processors, so the bytes are staged in memory of the host, and a NIC's own way to a GPU (`straight`) would not
//! shorten that.
//!
//! - **Y1** All ranks begin the same calls of NCCL in the same order, whatever the network does meanwhile.
//! - **Y2** A failure inside ends the communicator between, and the other way, so that it comes to all ranks.
//! - **Y3** Hosts agree on a call before it, as its stamp tells it: pieces that are alike do not tell how many there are, and no
//!   piece tells of an empty call, or which rank of its host is the root.
//! - **Y4** Errors have ranks of the whole group, whichever part they are of.

use super::calls::{Planned, collective};
use super::comm::Operation;
use super::communicator::{DeviceCommunicator, DeviceOptions};
use super::error::{CudaError, DeviceError};
use super::kind;
use super::memory::DeviceBuffer;
use super::order::{Said, With};
use super::shared::{Ticket, renamed};
use super::staging::{Staged, Staging};
use super::straight::Ways;
use crate::engine::{Call, CollectiveError, Communicator, During, InvalidCall, Member, Who};
use crate::reduce::ReduceOp;
use crate::schedule::Collective;
use ringway_dataplane::memory::Element;
use ringway_dataplane::transport::Stamp;
use std::ops::Range;
use std::sync::Mutex;

/// Bytes of a rank's block of one piece, at most.
pub(super) const PIECE_BYTES: usize = 4 << 20;

type Result<T> = std::result::Result<T, CollectiveError>;

/// A group of ranks on several hosts whose vectors are in memory of GPUs: NCCL connects those inside of hosts, and the engine
/// the hosts.
pub struct Hierarchy {
    pub(super) inside: DeviceCommunicator,
    /// The ranks of this one's number on all hosts.
    pub(super) between: Communicator,
    /// All ranks, for messages.
    pub(super) whole: Communicator,
    /// The part of each rank, and its number there.
    pub(super) places: Vec<(u32, u32)>,
    pub(super) ways: Ways,
    /// Whether blocks go straight among the ranks of `between`.
    pub(super) is_straight: bool,
    pub(super) staging: Staging,
    /// The blocks of all hosts of one number, kept from call to call with their registration.
    pub(super) gathered: Mutex<Option<DeviceBuffer<u8>>>,
}

impl std::fmt::Debug for Hierarchy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hierarchy({:?} inside, {:?} between)", self.inside, self.between)
    }
}

/// A piece of the vector: where it begins, and the length of one rank's block of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    first: usize,
    block: usize,
}

/// Cuts `len` elements of `element_bytes` into pieces of one block per rank, and a rest of less than one element per rank.
fn cut(len: usize, ranks: usize, element_bytes: usize) -> (Vec<Piece>, Range<usize>) {
    let longest = (PIECE_BYTES / element_bytes).max(1);
    let blocks = len / ranks;
    let pieces = blocks.div_ceil(longest);
    let cut = (0..pieces).map(|piece| {
        let (from, to) = (piece * longest, ((piece + 1) * longest).min(blocks));
        Piece { first: from * ranks, block: to - from }
    });
    (cut.collect(), blocks * ranks..len)
}

impl Hierarchy {
    /// Over all ranks of `comm`, which all call it. `inside`: NCCL connects so many neighbouring ranks; `None`: those of each
    /// host.
    ///
    /// # Errors
    /// [`DeviceError`]; [`DeviceError::Uneven`] when the hosts have different numbers of ranks.
    pub fn new(
        comm: &Communicator,
        inside: Option<u32>,
        options: DeviceOptions,
    ) -> std::result::Result<Hierarchy, DeviceError> {
        let hosts: Vec<&str> = comm.members().iter().map(|member| member.host.as_str()).collect();
        let places = places(&hosts, inside)?;
        let (part, number) = places[comm.rank() as usize];
        let some = || unreachable!("this rank gave a color");
        let mine = comm.split(Some(part), comm.rank())?.unwrap_or_else(some);
        let between = comm.split(Some(number), part)?.unwrap_or_else(some);
        let whole = comm.split(Some(0), comm.rank())?.unwrap_or_else(some);
        let nearness = options.nearness.clone();
        let abort = |error: &DeviceError| {
            between.abort(error.to_string());
            whole.abort(error.to_string());
        };
        let named = |error| match error {
            DeviceError::Collective(error) => DeviceError::Collective(of_whole(&whole, error)),
            other => other,
        };
        let inside = DeviceCommunicator::new(&mine, options).map_err(named).inspect_err(abort)?;
        let is_near = |rank: u32| places[rank as usize].0 == part;
        let ways = Ways::find(&whole, &inside, nearness.as_deref(), &is_near).inspect_err(abort)?;
        let same = (0..whole.size()).filter(|rank| places[*rank as usize].1 == number);
        let is_straight = between.size() > 1 && ways.is_straight_among(&same.collect::<Vec<u32>>());
        let (staging, gathered) = (Staging::default(), Mutex::default());
        Ok(Hierarchy { inside, between, whole, places, ways, is_straight, staging, gathered })
    }

    /// The ranks that NCCL connects, with which buffers are allocated and copied.
    #[must_use]
    pub fn inside(&self) -> &DeviceCommunicator {
        &self.inside
    }

    /// What carries the bytes, in one line.
    #[must_use]
    pub fn why(&self) -> String {
        let between = (0..self.between.size()).find_map(|rank| self.between.route(rank));
        let (moves, ways) = match self.told_ways() {
            ways if ways.is_empty() => ("", ways),
            ways => ("; what only moves ", ways),
        };
        format!(
            "{} among {} ranks; between {} of them by {}: sums staged through pinned memory of the host, as processors make \
             them{moves}{ways}",
            self.inside.why(),
            self.inside.size(),
            self.between.size(),
            between.unwrap_or_else(|| self.between.transport_name().to_owned()),
        )
    }

    /// How what only moves gets to the ranks of other hosts: those of a kind together.
    fn told_ways(&self) -> String {
        let (part, _) = self.places[self.whole.rank() as usize];
        let mut told: Vec<(String, Vec<String>)> = Vec::new();
        for rank in (0..self.whole.size()).filter(|rank| self.places[*rank as usize].0 != part) {
            let how = self.route_to(rank);
            match told.iter_mut().find(|(known, _)| *known == how) {
                Some((_, ranks)) => ranks.push(rank.to_string()),
                None => told.push((how, vec![rank.to_string()])),
            }
        }
        let told = told.iter().map(|(how, ranks)| format!("{how} (rank {})", ranks.join(", ")));
        told.collect::<Vec<_>>().join("; ")
    }

    /// How what only moves gets to a rank, and why so, in one line.
    #[must_use]
    pub fn route_to(&self, rank: u32) -> String {
        match self.ways.to(rank) {
            Ok(cards) => format!("straight from GPU to GPU, by {}", cards.join(", ")),
            Err(why) if self.places[rank as usize].0 == self.places[self.whole.rank() as usize].0 => {
                why.clone()
            }
            Err(why) => format!("staged through pinned memory of the host, because {why}"),
        }
    }

    /// Combines every rank's `buffer` element by element; all ranks end with the result. An average is taken inside and then
    /// between.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn all_reduce<T: Element>(&self, buffer: &mut DeviceBuffer<T>, op: ReduceOp) -> Result<()> {
        let call = Call { op: Some(op), ..collective(Collective::AllReduce, T::DTYPE, buffer.len()) };
        let Some((kind, code)) = kind::reduced(op, T::DTYPE) else {
            return Err(self.refuse("all_reduce", call, InvalidCall::NotByNccl { op, dtype: T::DTYPE }));
        };
        let (pieces, rest) = cut(buffer.len(), self.inside.size() as usize, size_of::<T>());
        self.compare(call)
            .and_then(|()| self.reduce_pieces(buffer, &pieces, op, (kind, code)))
            .and_then(|()| self.reduce_rest(buffer, rest, op))
            .map_err(|error| self.die(error, call))
    }

    /// Y1: scatter 0, scatter 1, gather 0, scatter 2, gather 1, ...
    fn reduce_pieces<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        pieces: &[Piece],
        op: ReduceOp,
        (kind, code): (u32, u32),
    ) -> Result<()> {
        let rank = self.inside.rank() as usize;
        let base = buffer.address();
        let at_element = |index: usize| base + (index * size_of::<T>()) as u64;
        let scatter = |piece: &Piece| {
            let (from, to) = (at_element(piece.first), at_element(piece.first + rank * piece.block));
            let call = Call { op: Some(op), ..collective(Collective::ReduceScatter, T::DTYPE, piece.block) };
            Planned {
                call,
                operation: Operation::ReduceScatter { from, to, count: piece.block, kind, op: code },
            }
        };
        let gather = |piece: &Piece| {
            let (moved, units) = kind::moved(T::DTYPE);
            let (from, to) = (at_element(piece.first + rank * piece.block), at_element(piece.first));
            let operation = Operation::AllGather { from, to, count: piece.block * units, kind: moved };
            Planned { call: collective(Collective::AllGather, T::DTYPE, piece.block), operation }
        };
        let mut gathers: Vec<Ticket> = Vec::with_capacity(pieces.len());
        let mut scattered = pieces.first().map(|piece| self.begin(&scatter(piece), buffer)).transpose()?;
        for (at, piece) in pieces.iter().enumerate() {
            let Some(mut ticket) = scattered.take() else { break };
            scattered = pieces.get(at + 1).map(|next| self.begin(&scatter(next), buffer)).transpose()?;
            self.inside.shared.finish(&mut ticket)?;
            let first = piece.first + rank * piece.block;
            self.between_hosts(buffer, first..first + piece.block, op)?;
            gathers.push(self.begin(&gather(piece), buffer)?);
            // Few are under way at once, however long the vector is.
            if let Some(before) = at.checked_sub(1) {
                self.inside.shared.finish(&mut gathers[before])?;
            }
        }
        gathers.iter_mut().try_for_each(|ticket| self.inside.shared.finish(ticket))
    }

    /// What is not a whole element per rank: every rank reduces all of it, inside and then between.
    fn reduce_rest<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        rest: Range<usize>,
        op: ReduceOp,
    ) -> Result<()> {
        if rest.is_empty() {
            return Ok(());
        }
        let at = buffer.address_of(rest.start);
        let planned = self.inside.plan_all_reduce::<T>((at, at), rest.len(), op)?;
        self.inside.shared.finish(&mut self.begin(&planned, buffer)?)?;
        self.between_hosts(buffer, rest, op)
    }

    pub(super) fn begin<T: Element>(&self, planned: &Planned, buffer: &DeviceBuffer<T>) -> Result<Ticket> {
        let said = &mut [Said { call: planned.call, with: With::Group }];
        // SAFETY: the buffer is borrowed until the call returns, by when every ticket is finished or the call has failed, and
        // its memory is kept.
        unsafe { self.inside.shared.begin(said, &[planned.operation], vec![buffer.share()]) }
    }

    /// Reduces a part of the buffer with the ranks of the same number on all hosts, through pinned memory.
    fn between_hosts<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        part: Range<usize>,
        op: ReduceOp,
    ) -> Result<()> {
        if self.between.size() == 1 {
            return Ok(());
        }
        let bytes = part.len() * size_of::<T>();
        let failed = |error: CudaError| self.failed(&error);
        let mut pinned = self.stage(bytes)?;
        let host: &mut [T] = bytemuck::cast_slice_mut(&mut pinned[..bytes]);
        let copies = &self.inside.shared.copies;
        buffer.copy_part_to(part.start, host, copies).map_err(failed)?;
        self.between.all_reduce(host, op)?;
        buffer.copy_part_from(part.start, host, copies).map_err(failed)
    }

    /// Pinned memory for a call.
    pub(super) fn stage(&self, bytes: usize) -> Result<Staged<'_>> {
        self.staging.take(self.inside.context(), bytes).map_err(|error| self.failed(&error))
    }

    /// Y3
    pub(super) fn compare(&self, call: Call) -> Result<()> {
        if self.between.size() == 1 {
            return Ok(());
        }
        let Stamp(mine) = call.stamp();
        let mut all = vec![0; mine.len() * self.between.size() as usize];
        self.between.all_gather(&mine, &mut all)?;
        let (stamps, _) = all.as_chunks();
        match stamps.iter().position(|theirs| *theirs != mine) {
            None => Ok(()),
            Some(other) => {
                let theirs = Call::from_stamp(&Stamp(stamps[other])).unwrap_or(call);
                Err(self.differs(&self.between, other as u32, call, theirs))
            }
        }
    }

    /// This rank has called something else than rank `other` of `comm`.
    pub(super) fn differs(
        &self,
        comm: &Communicator,
        other: u32,
        ours: Call,
        theirs: Call,
    ) -> CollectiveError {
        let (ours_who, theirs_who) = (comm.who(comm.rank()), comm.who(other));
        CollectiveError::Mismatch { ours_who, ours, theirs_who, theirs }
    }

    /// Y4: what a failure of a part comes from: the loss of a rank that is in another part, if there is one.
    fn cause(&self, error: CollectiveError, call: Call) -> CollectiveError {
        let lost = |error: &CollectiveError| matches!(error, CollectiveError::Lost { .. });
        let told = self.whole.look().err().or_else(|| self.whole.failure()).filter(lost);
        match (&error, told) {
            (CollectiveError::Lost { .. } | CollectiveError::Aborted { .. }, Some(told)) => {
                renamed(told, Some(call))
            }
            _ => of_whole(&self.whole, error),
        }
    }

    /// The driver has failed.
    pub(super) fn failed(&self, error: &CudaError) -> CollectiveError {
        self.inside.shared.by_words(&error.to_string(), None)
    }

    /// Y2: whichever communicator has died, the others end with it, in this rank's words.
    pub(super) fn die(&self, error: CollectiveError, call: Call) -> CollectiveError {
        let error = self.cause(error, call);
        self.inside.shared.by_words(&error.to_string(), Some(call));
        for other in [&self.between, &self.whole] {
            let (who, message) = (other.who(other.rank()), error.to_string());
            other.end_by(CollectiveError::Aborted { who, during: During::Call(call), message });
        }
        error
    }
}

/// Y4
fn of_whole(whole: &Communicator, error: CollectiveError) -> CollectiveError {
    let named = |who: Who| {
        let is = |member: &Member| member.pid == who.pid && member.host == who.host;
        let rank = whole.members().iter().position(is);
        Who { rank: rank.map_or(who.rank, |rank| rank as u32), ..who }
    };
    match error {
        CollectiveError::Lost { who, during, kind, evidence } => {
            CollectiveError::Lost { who: named(who), during, kind, evidence }
        }
        CollectiveError::Mismatch { ours_who, ours, theirs_who, theirs } => {
            let (ours_who, theirs_who) = (named(ours_who), named(theirs_who));
            CollectiveError::Mismatch { ours_who, ours, theirs_who, theirs }
        }
        CollectiveError::Aborted { who, during, message } => {
            CollectiveError::Aborted { who: named(who), during, message }
        }
        CollectiveError::Transport { who, during, evidence } => {
            CollectiveError::Transport { who: named(who), during, evidence }
        }
        other => other,
    }
}

/// The part of each rank, from 0, and its number there: by so many neighbours, or by the ranks' hosts.
fn places(hosts: &[&str], inside: Option<u32>) -> std::result::Result<Vec<(u32, u32)>, DeviceError> {
    let size = hosts.len() as u32;
    if let Some(inside) = inside {
        return match size.is_multiple_of(inside.max(1)) && inside > 0 {
            true => Ok((0..size).map(|rank| (rank / inside, rank % inside)).collect()),
            false => Err(DeviceError::Uneven { a: size, b: inside }),
        };
    }
    let mut parts: Vec<(&str, u32)> = Vec::new();
    let mut places = Vec::with_capacity(hosts.len());
    for host in hosts {
        let part = parts.iter().position(|(known, _)| known == host).unwrap_or_else(|| {
            parts.push((host, 0));
            parts.len() - 1
        });
        places.push((part as u32, parts[part].1));
        parts[part].1 += 1;
    }
    match parts.iter().find(|(_, ranks)| *ranks != parts[0].1) {
        Some((_, other)) => Err(DeviceError::Uneven { a: parts[0].1, b: *other }),
        None => Ok(places),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_their_place_by_host_wherever_they_stand() {
        assert_eq!(places(&["a", "b", "a", "b"], None).unwrap(), [(0, 0), (1, 0), (0, 1), (1, 1)]);
        assert_eq!(places(&["b", "b", "a", "a"], None).unwrap(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(places(&["a"; 4], Some(2)).unwrap(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert!(matches!(places(&["a", "b", "b"], None), Err(DeviceError::Uneven { a: 1, b: 2 })));
        assert!(places(&["a"; 4], Some(3)).is_err() && places(&["a"; 4], Some(0)).is_err());
    }

    /// Every element is in one piece or in the rest, and every block is as long on all ranks.
    #[test]
    fn pieces_cover_the_vector_once() {
        for (len, ranks, bytes) in
            [(0, 4, 4), (3, 4, 4), (4, 4, 4), (1 << 22, 3, 4), (9_000_001, 2, 8), (5, 1, 1)]
        {
            let (pieces, rest) = cut(len, ranks, bytes);
            let mut next = 0;
            for piece in &pieces {
                assert_eq!(piece.first, next, "{len} {ranks}");
                assert!(piece.block > 0 && piece.block * bytes <= PIECE_BYTES);
                next += piece.block * ranks;
            }
            assert_eq!((rest.start, rest.end), (next, len));
            assert!(rest.len() < ranks);
        }
    }
}
