//! One size between two ranks: buffers for a window of messages, and the messages over them.

use super::args::Op;
use crate::cli::bench::measure::BenchError;
use crate::cli::bench::values;
use ringway::{Buffer, Communicator, DType, Handle};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Bytes that may be under way at once, per direction; two messages of any size.
pub(super) const WINDOW_BYTES: u64 = 64 << 20;
/// Receives that are posted ahead of the messages of round trips.
const AHEAD: usize = 2;
/// Round trips of messages of up to so many bytes are made by blocking calls, as small questions and answers are; longer
/// messages go into receives that are posted ahead.
const BLOCKING_BYTES: usize = 4 << 10;
/// How far apart the patterns of one window's messages begin: no power of two.
const PATTERN_STEP: u64 = 1009;

/// Tags of round trips, of streams, and of the word that a stream has arrived.
const ROUND_TRIP: u32 = 0;
const STREAM: u32 = 1;
const ARRIVED: u32 = 2;

pub(super) type Result<T> = std::result::Result<T, BenchError>;

/// Messages of one size between the two ranks.
pub(super) trait Exchange {
    /// Messages under way at once, at most.
    fn window(&self) -> u64;

    /// Length of a message.
    fn bytes(&self) -> u64;

    /// Goes there and back so many times, begun by rank 0. Its time of each; on rank 1 nothing that means something.
    fn round_trips(&mut self, count: u64) -> Result<Vec<Duration>>;

    /// Streams so many messages to one rank, and as many to the other if it goes both ways. Rank 0's time, until it knows that
    /// all has arrived.
    fn stream(&mut self, count: u64, both_ways: bool) -> Result<Duration>;

    /// Sends a window of messages both ways, each with its own pattern. How many bytes of those that this rank received
    /// are wrong.
    fn wrong(&mut self) -> Result<u64>;
}

/// This rank's half.
pub(super) struct Pair<'a> {
    comm: &'a Communicator,
    peer: u32,
    bytes: usize,
    /// Whether receives are posted ahead of round trips.
    ahead: bool,
    /// What is sent from and received into: a window of each, in the order of use.
    from: VecDeque<Buffer<u8>>,
    into: VecDeque<Buffer<u8>>,
}

impl<'a> Pair<'a> {
    /// Memory for `window` messages of `bytes` in each direction, or fewer if they are long.
    ///
    /// `op` says how messages travel.
    pub(super) fn new(comm: &'a Communicator, op: Op, bytes: u64, window: u64) -> Result<Self> {
        let window = window.min((WINDOW_BYTES / bytes.max(1)).max(AHEAD as u64));
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let buffers = || (0..window).map(|_| Ok(comm.alloc(bytes)?)).collect::<Result<_>>();
        let ahead = op == Op::Write || bytes > BLOCKING_BYTES;
        Ok(Pair { comm, peer: 1 - comm.rank(), bytes, ahead, from: buffers()?, into: buffers()? })
    }

    fn send(&mut self, tag: u32) -> Result<Handle<u8>> {
        let buffer = self.from.pop_front().unwrap_or_else(|| unreachable!("at most a window is under way"));
        Ok(self.comm.send_start(buffer, self.peer, tag)?)
    }

    fn receive(&mut self, tag: u32) -> Result<Handle<u8>> {
        let buffer = self.into.pop_front().unwrap_or_else(|| unreachable!("at most a window is under way"));
        Ok(self.comm.recv_start(buffer, self.peer, tag)?)
    }

    fn post_receives(&mut self, left: &mut u64, posted: &mut VecDeque<Handle<u8>>) -> Result<()> {
        while *left > 0 && !self.into.is_empty() {
            posted.push_back(self.receive(STREAM)?);
            *left -= 1;
        }
        Ok(())
    }

    /// Round trips by blocking calls.
    fn ask_and_answer(&mut self, count: u64) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(count as usize);
        let (leads, peer) = (self.comm.rank() == 0, self.peer);
        let (Some(from), Some(into)) = (self.from.front(), self.into.front_mut()) else { return Ok(times) };
        self.comm.barrier()?;
        let mut since = Instant::now();
        for _ in 0..count {
            if leads {
                self.comm.send(from, peer, ROUND_TRIP)?;
            }
            self.comm.recv(into, peer, ROUND_TRIP)?;
            if leads {
                // One look at the clock for each, as perftest's.
                let now = Instant::now();
                times.push(now.duration_since(since));
                since = now;
            } else {
                self.comm.send(from, peer, ROUND_TRIP)?;
            }
        }
        // The other rank measures nothing.
        times.resize(count as usize, Duration::from_nanos(1));
        Ok(times)
    }

    /// Whoever has received a stream says so to the other.
    fn confirm(&self, both_ways: bool) -> Result<()> {
        let mut heard = [0u8];
        Ok(match self.comm.rank() {
            _ if both_ways => self.comm.sendrecv(&[1u8], self.peer, &mut heard, self.peer, ARRIVED),
            0 => self.comm.recv(&mut heard, self.peer, ARRIVED),
            _ => self.comm.send(&[1u8], self.peer, ARRIVED),
        }?)
    }
}

impl Exchange for Pair<'_> {
    fn window(&self) -> u64 {
        self.from.len() as u64
    }

    fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    fn round_trips(&mut self, count: u64) -> Result<Vec<Duration>> {
        if !self.ahead {
            return self.ask_and_answer(count);
        }
        let leads = self.comm.rank() == 0;
        let mut times = Vec::with_capacity(count as usize);
        let mut posted = VecDeque::with_capacity(AHEAD);
        let ahead = AHEAD.min(self.into.len()) as u64;
        for _ in 0..count.min(ahead) {
            posted.push_back(self.receive(ROUND_TRIP)?);
        }
        self.comm.barrier()?;
        for done in 0..count {
            let begun = Instant::now();
            let sent = if leads { Some(self.send(ROUND_TRIP)?) } else { None };
            if let Some(received) = posted.pop_front() {
                self.into.push_back(received.wait()?);
            }
            times.push(begun.elapsed());
            let sent = match sent {
                Some(sent) => sent,
                None => self.send(ROUND_TRIP)?,
            };
            if done + ahead < count {
                posted.push_back(self.receive(ROUND_TRIP)?);
            }
            self.from.push_back(sent.wait()?);
        }
        Ok(times)
    }

    fn stream(&mut self, count: u64, both_ways: bool) -> Result<Duration> {
        let leads = self.comm.rank() == 0;
        let (mut to_send, mut to_receive) =
            if both_ways { (count, count) } else { (count * u64::from(leads), count * u64::from(!leads)) };
        let (mut sent, mut received) = (VecDeque::new(), VecDeque::new());
        // Receives come first, so that the first message finds one.
        self.post_receives(&mut to_receive, &mut received)?;
        self.comm.barrier()?;
        let begun = Instant::now();
        loop {
            while to_send > 0 && !self.from.is_empty() {
                sent.push_back(self.send(STREAM)?);
                to_send -= 1;
            }
            self.post_receives(&mut to_receive, &mut received)?;
            if let Some(oldest) = received.pop_front() {
                self.into.push_back(oldest.wait()?);
            }
            if let Some(oldest) = sent.pop_front() {
                self.from.push_back(oldest.wait()?);
            }
            if sent.is_empty() && received.is_empty() && to_send == 0 && to_receive == 0 {
                break;
            }
        }
        self.confirm(both_ways)?;
        Ok(begun.elapsed())
    }

    fn wrong(&mut self) -> Result<u64> {
        let pattern = |message: usize| message as u64 * PATTERN_STEP;
        let (rank, peer) = (self.comm.rank(), self.peer);
        for (message, buffer) in self.from.iter_mut().enumerate() {
            values::fill(DType::U8, None, rank, 2, pattern(message), buffer);
        }
        self.into.iter_mut().for_each(|buffer| buffer.fill(0xa5));
        self.stream(self.window(), true)?;
        // A whole window came and went: the buffers stand in the order of the messages again.
        let wrong = |(message, buffer): (usize, &Buffer<u8>)| {
            values::wrong_copy(DType::U8, peer, 2, pattern(message), buffer)
        };
        Ok(self.into.iter().enumerate().map(wrong).sum())
    }
}
