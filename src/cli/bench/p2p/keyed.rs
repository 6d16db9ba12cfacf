//! One size between two ranks by the rendezvous: each message is a value that one rank has and the other asks for.

use super::pair::{Exchange, Result, WINDOW_BYTES};
use crate::cli::bench::measure::BenchError;
use crate::cli::bench::values;
use ringway::rendezvous::{
    Key, KeyError, Meta, Rendezvous, RendezvousError, SharedBytes, StepId, UniqueBytes, Value,
};
use ringway::{Communicator, DType};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long one value may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How far apart the patterns of one window's values begin: no power of two.
const PATTERN_STEP: u64 = 1009;

/// This rank's half.
pub(super) struct Keyed<'a> {
    comm: &'a Communicator,
    tensors: &'a Rendezvous,
    peer: u32,
    bytes: usize,
    window: usize,
    /// Its own values, one after another.
    values: Vec<SharedBytes>,
    /// Every batch of values is a step.
    step: &'a mut StepId,
    word: Key,
}

impl<'a> Keyed<'a> {
    pub(super) fn new(
        comm: &'a Communicator,
        tensors: &'a Rendezvous,
        step: &'a mut StepId,
        bytes: u64,
        window: u64,
    ) -> Result<Self> {
        let window = window.min((WINDOW_BYTES / bytes.max(1)).max(1)) as usize;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut own = Vec::with_capacity(window);
        for message in 0..window {
            let mut made = UniqueBytes::new(bytes, tensors.pool()).map_err(failed)?;
            values::fill(DType::U8, None, comm.rank(), 2, message as u64 * PATTERN_STEP, &mut made);
            own.push(made.freeze());
        }
        let word = Key::new("all is there").map_err(failed)?;
        Ok(Keyed { comm, tensors, peer: 1 - comm.rank(), bytes, window, values: own, step, word })
    }

    fn key(message: u64) -> std::result::Result<Key, KeyError> {
        Key::new(&format!("message {message}"))
    }

    /// Has `count` values ready for the other rank, and knows that it has as many.
    fn offer(&mut self, count: u64) -> Result<Vec<Key>> {
        self.step.0 += 1;
        let mut keys = Vec::with_capacity(count as usize);
        for message in 0..count {
            let key = Self::key(message).map_err(failed)?;
            let payload = self.values[message as usize % self.window].clone();
            self.tensors.send(*self.step, &key, Value::new(Meta::default(), payload)).map_err(failed)?;
            keys.push(key);
        }
        self.meet()?;
        Ok(keys)
    }

    /// Both ranks are here. No barrier: its thread would poll beside the rendezvous's.
    fn meet(&mut self) -> Result<()> {
        self.tensors.send(*self.step, &self.word, Value::default()).map_err(failed)?;
        let from = self.tensors.rank(self.peer);
        self.tensors.recv_wait(*self.step, &self.word, from, PATIENCE).map_err(failed)?;
        Ok(())
    }

    fn over(&mut self) -> Result<()> {
        self.meet()?;
        self.tensors.cleanup(StepId(self.step.0 - 1));
        Ok(())
    }

    /// Asks for all of them, a window at a time.
    fn fetch(&self, keys: &[Key], mut each: impl FnMut(usize, &SharedBytes)) -> Result<()> {
        let from = self.tensors.rank(self.peer);
        let mut asked = VecDeque::with_capacity(self.window);
        let mut come = |at: usize, got: std::result::Result<Value, RendezvousError>| {
            got.map(|value| each(at, &value.payload)).map_err(failed)
        };
        let mut next = 0;
        for key in keys {
            if asked.len() == self.window {
                let oldest: ringway::rendezvous::Receive =
                    asked.pop_front().unwrap_or_else(|| unreachable!("a window is not empty"));
                come(next, oldest.wait(PATIENCE))?;
                next += 1;
            }
            asked.push_back(self.tensors.receive(*self.step, key, from));
        }
        for left in asked {
            come(next, left.wait(PATIENCE))?;
            next += 1;
        }
        Ok(())
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> BenchError {
    BenchError::Tensors(Box::new(error))
}

impl Exchange for Keyed<'_> {
    fn window(&self) -> u64 {
        self.window as u64
    }

    fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Asks for one value after another that is there. The time of each, there and back.
    fn round_trips(&mut self, count: u64) -> Result<Vec<Duration>> {
        let leads = self.comm.rank() == 0;
        let keys = self.offer(count)?;
        let mut times = Vec::with_capacity(count as usize);
        let from = self.tensors.rank(self.peer);
        for key in keys.iter().filter(|_| leads) {
            let begun = Instant::now();
            self.tensors.recv_wait(*self.step, key, from, PATIENCE).map_err(failed)?;
            times.push(begun.elapsed());
        }
        self.step.0 += 1;
        self.over()?;
        // The other rank measures nothing.
        times.resize(count as usize, Duration::from_nanos(1));
        Ok(times)
    }

    /// Rank 0 asks for so many values, and rank 1 as well if it goes both ways.
    fn stream(&mut self, count: u64, both_ways: bool) -> Result<Duration> {
        let asks = both_ways || self.comm.rank() == 0;
        let keys = self.offer(count)?;
        let begun = Instant::now();
        if asks {
            self.fetch(&keys, |_, _| {})?;
        }
        let took = begun.elapsed();
        self.step.0 += 1;
        self.over()?;
        Ok(took)
    }

    fn wrong(&mut self) -> Result<u64> {
        let keys = self.offer(self.window as u64)?;
        let (mut wrong, peer) = (0, self.peer);
        self.fetch(&keys, |at, payload| {
            wrong += values::wrong_copy(DType::U8, peer, 2, at as u64 * PATTERN_STEP, payload);
        })?;
        self.step.0 += 1;
        self.over()?;
        Ok(wrong)
    }
}
