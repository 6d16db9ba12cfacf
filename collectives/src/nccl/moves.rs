//! Calls of a [`Hierarchy`] that only move: between GPUs of different hosts straight where that can be, and otherwise in pieces
//! through pinned memory (`straight` has which, and why).
//!
//! ```text
//! broadcast      on the root's host by NCCL; block i to the ranks with number i of all hosts; all_gather by NCCL there
//! all_gather     the blocks of all ranks with this one's number; then each of them by NCCL to all of the host
//! messages       inside a host by NCCL; otherwise between the two ranks
//! ```

#![forbid(unsafe_code)]

use super::calls::{Planned, collective, message};
use super::comm::Operation;
use super::error::CudaError;
use super::hierarchy::{Hierarchy, PIECE_BYTES};
use super::kind;
use super::memory::DeviceBuffer;
use super::shared::lock;
use super::straight::{Held, STRAIGHT_FROM_BYTES, agree, hold_together};
use crate::engine::{Call, CollectiveError, During, InvalidCall, MAX_TAG};
use crate::schedule::Collective;
use ringway_dataplane::memory::{Element, Region};
use std::ops::Range;

type Result<T> = std::result::Result<T, CollectiveError>;

/// Of a message's tag on the whole group: what the sender says, and what the receiver does. What comes before a payload has
/// its tag, so that a receiver who expects none sees another message than its own, and does not wait for another.
const PAYLOAD: u32 = 0;
const RECEIVER_CAN: u32 = 1;
const TAGS: u32 = 2;
/// How often a message of several pieces says its length before them, so that its head is like no message of one number.
const HEAD_NUMBERS: usize = 3;

/// Pieces of a span of elements.
fn pieces(span: Range<usize>, element_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let longest = (PIECE_BYTES / element_bytes).max(1);
    span.clone().step_by(longest).map(move |from| from..(from + longest).min(span.end))
}

impl Hierarchy {
    /// Number of ranks, and this one among them: `rank`, `size`.
    fn standing(&self) -> (u32, u32) {
        (self.whole.rank(), self.whole.size())
    }

    /// Ends all parts, as this rank has called what makes no call.
    pub(super) fn refuse(&self, name: &'static str, call: Call, why: InvalidCall) -> CollectiveError {
        let (rank, _) = self.standing();
        self.die(CollectiveError::Invalid { rank, call: name, why }, call)
    }

    /// Copies `root`'s `buffer` into everybody's; `root` is a rank of the whole group.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn broadcast<T: Element>(&self, buffer: &mut DeviceBuffer<T>, root: u32) -> Result<()> {
        let call = Call { root, ..collective(Collective::Broadcast, T::DTYPE, buffer.len()) };
        let (rank, size) = self.standing();
        if root >= size {
            return Err(self.refuse(
                "broadcast",
                call,
                InvalidCall::NoSuchRank { what: "root", rank: root, size },
            ));
        }
        let ((part, _), (from, number)) = (self.places[rank as usize], self.places[root as usize]);
        let ranks = self.inside.size() as usize;
        let block = buffer.len() / ranks;
        let mine = self.inside.rank() as usize * block..(self.inside.rank() as usize + 1) * block;
        let rest = block * ranks..buffer.len();
        let made = self.compare(call).and_then(|()| match part == from {
            true => self.inside.broadcast(buffer, number),
            false => self.inside.shared.drain(call),
        });
        made.and_then(|()| self.broadcast_between(buffer, mine, from))
            .and_then(|()| self.broadcast_between(buffer, rest, from))
            .and_then(|()| if part == from || block == 0 { Ok(()) } else { self.spread(buffer, block) })
            .map_err(|error| self.die(error, call))
    }

    /// Each rank of a host has its block: all get all.
    fn spread<T: Element>(&self, buffer: &DeviceBuffer<T>, block: usize) -> Result<()> {
        let (kind, units) = kind::moved(T::DTYPE);
        let (from, to) = (buffer.address_of(block * self.inside.rank() as usize), buffer.address());
        let operation = Operation::AllGather { from, to, count: block * units, kind };
        let call = collective(Collective::AllGather, T::DTYPE, block);
        self.inside.shared.finish(&mut self.begin(&Planned { call, operation }, buffer)?)
    }

    /// Broadcasts a span of the buffer from the rank of this one's number on host `root`.
    fn broadcast_between<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        span: Range<usize>,
        root: u32,
    ) -> Result<()> {
        if self.between.size() == 1 || span.is_empty() {
            return Ok(());
        }
        let bytes = span.start * size_of::<T>()..span.end * size_of::<T>();
        if self.is_straight
            && bytes.len() >= STRAIGHT_FROM_BYTES
            && let Some(held) = hold_together(&self.between, buffer, |can| agree(&self.between, can))?
        {
            self.between.broadcast_on_device::<T>(self.region(&held, bytes)?, root)?;
            return self.arrived();
        }
        let copies = &self.inside.shared.copies;
        let failed = |error: CudaError| self.failed(&error);
        let mut pinned = self.stage(bytes.len().min(PIECE_BYTES))?;
        for piece in pieces(span, size_of::<T>()) {
            let host: &mut [T] = bytemuck::cast_slice_mut(&mut pinned[..piece.len() * size_of::<T>()]);
            let sends = self.between.rank() == root;
            if sends {
                buffer.copy_part_to(piece.start, host, copies).map_err(failed)?;
            }
            self.between.broadcast(host, root)?;
            if !sends {
                buffer.copy_part_from(piece.start, host, copies).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Gathers every rank's `input` in `output`, one block per rank in rank order, on all ranks.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn all_gather<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
    ) -> Result<()> {
        let (count, (_, size)) = (input.len(), self.standing());
        let call = collective(Collective::AllGather, T::DTYPE, count);
        let expected = count.saturating_mul(size as usize);
        if output.len() != expected {
            let (buffer, len) = ("output", output.len());
            return Err(self.refuse("all_gather", call, InvalidCall::WrongLength { buffer, len, expected }));
        }
        self.compare(call).map_err(|error| self.die(error, call))?;
        if count == 0 {
            return self
                .inside
                .all_gather(input, &mut self.nothing()?)
                .map_err(|error| self.die(error, call));
        }
        let mut gathered = lock(&self.gathered);
        self.gather_between(input, &mut gathered, call)
            .and_then(|()| match &*gathered {
                Some(gathered) => self.spread_all(gathered, output, count, call),
                None => Ok(()),
            })
            .map_err(|error| self.die(error, call))
    }

    fn nothing<T: Element>(&self) -> Result<DeviceBuffer<T>> {
        let (context, copies) = (self.inside.context(), &self.inside.shared.copies);
        DeviceBuffer::zeroed(context, 0, copies).map_err(|error| self.failed(&error))
    }

    /// The blocks of the ranks of this one's number on all hosts, side by side.
    fn gather_between<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        gathered: &mut Option<DeviceBuffer<u8>>,
        call: Call,
    ) -> Result<()> {
        let block_bytes = input.len() * size_of::<T>();
        let (hosts, mine) = (self.between.size() as usize, self.between.rank() as usize);
        if gathered.as_ref().is_none_or(|gathered| gathered.len() != hosts * block_bytes) {
            *gathered = None;
            let (context, copies) = (self.inside.context(), &self.inside.shared.copies);
            let made = DeviceBuffer::zeroed(context, hosts * block_bytes, copies);
            *gathered = Some(made.map_err(|error| self.failed(&error))?);
        }
        let Some(buffer) = gathered else { return Ok(()) };
        let (from, to) = (input.address(), buffer.address_of(mine * block_bytes));
        let kept = vec![input.share(), buffer.share()];
        let copy = Operation::Copy { from, to, bytes: block_bytes };
        let mut ticket = self.inside.begin(call, &[copy], kept)?;
        self.inside.shared.finish(&mut ticket)?;
        if hosts == 1 {
            return Ok(());
        }
        if self.is_straight
            && block_bytes >= STRAIGHT_FROM_BYTES
            && let Some(held) = hold_together(&self.between, buffer, |can| agree(&self.between, can))?
        {
            self.between.all_gather_on_device::<T>(self.region(&held, 0..held.memory.len())?)?;
            return self.arrived();
        }
        let copies = &self.inside.shared.copies;
        let failed = |error: CudaError| self.failed(&error);
        let mut pinned = self.stage(block_bytes.min(PIECE_BYTES) * hosts)?;
        for piece in pieces(0..input.len(), size_of::<T>()) {
            let (at, bytes) = (piece.start * size_of::<T>(), piece.len() * size_of::<T>());
            let host = &mut pinned[..bytes * hosts];
            buffer
                .copy_part_to(mine * block_bytes + at, &mut host[mine * bytes..][..bytes], copies)
                .map_err(failed)?;
            self.between.all_gather_in_place(bytemuck::cast_slice_mut::<u8, T>(host))?;
            for other in (0..hosts).filter(|other| *other != mine) {
                let from = &host[other * bytes..][..bytes];
                buffer.copy_part_from(other * block_bytes + at, from, copies).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Each rank of a host has the blocks of its number: all get all, in rank order, by a broadcast of each.
    fn spread_all<T: Element>(
        &self,
        gathered: &DeviceBuffer<u8>,
        output: &DeviceBuffer<T>,
        count: usize,
        call: Call,
    ) -> Result<()> {
        let (kind, units) = kind::moved(T::DTYPE);
        let block = |(rank, (part, number)): (usize, &(u32, u32))| Operation::Broadcast {
            from: gathered.address_of(*part as usize * count * size_of::<T>()),
            to: output.address_of(rank * count),
            count: count * units,
            kind,
            root: *number,
        };
        let operations: Vec<Operation> = self.places.iter().enumerate().map(block).collect();
        let kept = vec![gathered.share(), output.share()];
        let mut ticket = self.inside.begin(call, &operations, kept)?;
        self.inside.shared.finish(&mut ticket)
    }

    /// Sends `buffer` to rank `to` of the whole group. Both sides give the same tag. It may wait for the receive.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn send<T: Element>(&self, buffer: &DeviceBuffer<T>, to: u32, tag: u32) -> Result<()> {
        let call = message(T::DTYPE, tag, buffer.len());
        self.check("send", "destination", call, to, tag)?;
        let made = match self.beside(to) {
            Some(number) => self.inside.send(buffer, number, tag),
            None => self.between_two(call, || self.send_between(buffer, to, tag * TAGS)),
        };
        made.map_err(|error| self.die(error, call))
    }

    /// Receives `buffer.len()` elements from rank `from` of the whole group. Both sides give the same tag.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn recv<T: Element>(&self, buffer: &mut DeviceBuffer<T>, from: u32, tag: u32) -> Result<()> {
        let call = message(T::DTYPE, tag, buffer.len());
        self.check("recv", "source", call, from, tag)?;
        let made = match self.beside(from) {
            Some(number) => self.inside.recv(buffer, number, tag),
            None => self.between_two(call, || self.recv_between(buffer, from, tag * TAGS)),
        };
        made.map_err(|error| self.die(error, call))
    }

    /// Sends `output` to rank `to` and receives `input` from rank `from` at the same time, both with `tag`.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn sendrecv<T: Element>(
        &self,
        output: &DeviceBuffer<T>,
        to: u32,
        input: &mut DeviceBuffer<T>,
        from: u32,
        tag: u32,
    ) -> Result<()> {
        let call = message(T::DTYPE, tag, output.len());
        self.check("sendrecv", "destination", call, to, tag)?;
        self.check("sendrecv", "source", call, from, tag)?;
        if let (Some(to), Some(from)) = (self.beside(to), self.beside(from)) {
            let made = self.inside.sendrecv(output, to, input, from, tag);
            return made.map_err(|error| self.die(error, call));
        }
        // Neither waits for the other.
        std::thread::scope(|scope| {
            let sends = std::thread::Builder::new().name("ringway-send".into());
            let sent = sends.spawn_scoped(scope, || self.send(output, to, tag));
            let sent = sent.map_err(|error| {
                let why = format!("a thread ({error}): raise the limit on processes (ulimit -u)");
                self.refuse("sendrecv", call, InvalidCall::System(why))
            })?;
            let received = self.recv(input, from, tag);
            let sent = sent.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            sent.and(received)
        })
    }

    /// The number of a rank in this one's part.
    fn beside(&self, rank: u32) -> Option<u32> {
        let (part, number) = self.places[rank as usize];
        (part == self.places[self.whole.rank() as usize].0).then_some(number)
    }

    fn check(&self, name: &'static str, what: &'static str, call: Call, other: u32, tag: u32) -> Result<()> {
        let (rank, size) = self.standing();
        let max = MAX_TAG / TAGS - 1;
        let why = if other >= size {
            InvalidCall::NoSuchRank { what, rank: other, size }
        } else if other == rank {
            InvalidCall::WithItself
        } else if tag > max {
            InvalidCall::TagTooLarge { tag, max }
        } else {
            return Ok(());
        };
        Err(self.refuse(name, call, why))
    }

    /// Half of a message with a rank of another host, once the GPU has done all that it was given before.
    fn between_two(&self, call: Call, make: impl FnOnce() -> Result<()>) -> Result<()> {
        self.inside.shared.drain(call)?;
        make().map_err(|error| as_called(error, call))
    }

    /// The buffer of a message, if that goes straight: both sides say whether they can, each with a tag of its own.
    fn held_by_both<'a, T: Element>(
        &'a self,
        buffer: &'a DeviceBuffer<T>,
        with: u32,
        tags: (u32, u32),
    ) -> Result<Option<Held<'a>>> {
        if self.ways.to(with).is_err() || buffer.len() * size_of::<T>() < STRAIGHT_FROM_BYTES {
            return Ok(None);
        }
        hold_together(&self.whole, buffer, |can| Ok(self.whole.swap(u8::from(can), with, tags)? == 1))
    }

    fn send_between<T: Element>(&self, buffer: &DeviceBuffer<T>, to: u32, tag: u32) -> Result<()> {
        if let Some(held) = self.held_by_both(buffer, to, (tag + PAYLOAD, tag + RECEIVER_CAN))? {
            let region = self.region(&held, 0..held.memory.len())?;
            return self.whole.send_on_device::<T>(region, to, tag + PAYLOAD);
        }
        if buffer.len() * size_of::<T>() > PIECE_BYTES {
            self.whole.send(&[buffer.len() as u64; HEAD_NUMBERS], to, tag + PAYLOAD)?;
        }
        let mut pinned = self.stage((buffer.len() * size_of::<T>()).min(PIECE_BYTES))?;
        for piece in pieces_or_none(buffer.len(), size_of::<T>()) {
            let host: &mut [T] = bytemuck::cast_slice_mut(&mut pinned[..piece.len() * size_of::<T>()]);
            let copied = buffer.copy_part_to(piece.start, host, &self.inside.shared.copies);
            copied.map_err(|error| self.failed(&error))?;
            self.whole.send(host, to, tag + PAYLOAD)?;
        }
        Ok(())
    }

    fn recv_between<T: Element>(&self, buffer: &mut DeviceBuffer<T>, from: u32, tag: u32) -> Result<()> {
        if let Some(held) = self.held_by_both(buffer, from, (tag + RECEIVER_CAN, tag + PAYLOAD))? {
            let region = self.region(&held, 0..held.memory.len())?;
            self.whole.recv_on_device::<T>(region, from, tag + PAYLOAD)?;
            return self.arrived();
        }
        if buffer.len() * size_of::<T>() > PIECE_BYTES {
            let mut head = [0u64; HEAD_NUMBERS];
            self.whole.recv(&mut head, from, tag + PAYLOAD)?;
            if head[0] != buffer.len() as u64 {
                let ours = message(T::DTYPE, tag, buffer.len());
                return Err(self.differs(&self.whole, from, ours, Call { count: head[0], ..ours }));
            }
        }
        let mut pinned = self.stage((buffer.len() * size_of::<T>()).min(PIECE_BYTES))?;
        for piece in pieces_or_none(buffer.len(), size_of::<T>()) {
            let host: &mut [T] = bytemuck::cast_slice_mut(&mut pinned[..piece.len() * size_of::<T>()]);
            self.whole.recv(host, from, tag + PAYLOAD)?;
            let copied = buffer.copy_part_from(piece.start, host, &self.inside.shared.copies);
            copied.map_err(|error| self.failed(&error))?;
        }
        Ok(())
    }

    /// S1 of `straight`.
    fn arrived(&self) -> Result<()> {
        self.inside.context().see_writes_of_others().map_err(|error| self.failed(&error))
    }

    /// Bytes of a buffer, to be lent.
    fn region(&self, held: &Held<'_>, bytes: Range<usize>) -> Result<Region> {
        held.memory.region(bytes).map_err(|error| self.inside.shared.by_words(&error.to_string(), None))
    }
}

/// As [`pieces`] of a whole message; one of no elements is a message too.
fn pieces_or_none(len: usize, element_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    pieces(0..len, element_bytes).chain((len == 0).then_some(0..0))
}

/// A message's own tags and pieces are not what was called.
fn as_called(error: CollectiveError, call: Call) -> CollectiveError {
    let of = |piece: Call| match piece.collective {
        None => Call { root: piece.root / TAGS, ..piece },
        Some(_) => piece,
    };
    match error {
        CollectiveError::Mismatch { ours_who, ours, theirs_who, theirs } => {
            CollectiveError::Mismatch { ours_who, ours: of(ours), theirs_who, theirs: of(theirs) }
        }
        CollectiveError::Lost {
            who,
            during: During::Call(Call { collective: None, .. }),
            kind,
            evidence,
        } => CollectiveError::Lost { who, during: During::Call(call), kind, evidence },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_span_in_order() {
        for (span, bytes) in [(0..0, 4), (5..6, 8), (100..5_000_001, 4), (3..(4 << 20) + 3, 1)] {
            let mut at = span.start;
            for piece in pieces(span.clone(), bytes) {
                assert!(piece.start == at && !piece.is_empty() && piece.len() * bytes <= PIECE_BYTES);
                at = piece.end;
            }
            assert_eq!(at, span.end);
        }
        assert_eq!((pieces_or_none(0, 4).next(), pieces_or_none(0, 4).count()), (Some(0..0), 1));
    }
}
