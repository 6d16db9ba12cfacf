//! Which value belongs to which waiter: pure, one matcher for values of this task and for questions of other tasks.
//!
//! A step is one run of a graph, or whatever its users number; keys are its own. What was sent and what is waited for are
//! kept per step, so that a step can be ended as a whole.
//!
//! Invariants (cited by the tests):
//! - **R1** A value goes to one waiter, the one for its step and key, whichever of the two came first. While a value
//!   is kept, another under its key is refused; so is a second waiter for a key while the first waits.
//! - **R2** A waiter leaves once: with its value, cancelled, or with the end of its step.
//! - **R3** A step ends once. The first reason is what everybody hears who still waits, and whoever sends or receives in
//!   that step later, as long as the step is remembered: it is one of the last [`MAX_ENDED`] that ended.
//! - **R4** Nothing is kept of a step in which nobody waits and nothing is kept, but its end.

use super::key::Key;
use std::collections::hash_map::Entry as Place;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Ended steps that are told from new ones.
pub const MAX_ENDED: usize = 4096;
/// Most values that are kept at a time.
pub const MAX_VALUES: usize = 1 << 20;
/// Most waiters at a time.
pub const MAX_WAITERS: usize = 1 << 20;
/// Emptied maps that are kept for other steps.
const MAX_SPARE: usize = 16;

/// Number of a step. Users do not give the number of one that has ended to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepId(pub i64);

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}", self.0)
    }
}

/// A waiter in a table, never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

/// Why a step was aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// Opaque here: a status code of whoever aborts, say.
    pub code: u32,
    /// For people: what happened, and where.
    pub message: Arc<str>,
}

impl Why {
    /// A reason.
    #[must_use]
    pub fn new(code: u32, message: &str) -> Why {
        Why { code, message: message.into() }
    }
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was aborted.
    Aborted(Why),
    /// It was over.
    Over,
}

/// Why a value or a waiter was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A value of this key is kept already, or somebody waits for it already (R1).
    Twice,
    /// The step has ended (R3).
    Ended(Ended),
    /// [`MAX_VALUES`] or [`MAX_WAITERS`] are there.
    Full,
}

/// What became of a value.
#[derive(Debug)]
pub enum Sent<V, W> {
    /// It waits for its receiver.
    Kept,
    /// It was waited for by this one, who leaves.
    Met(V, W),
}

/// What became of a waiter.
#[derive(Debug)]
pub enum Received<V, W> {
    /// Its value is there; both leave.
    Met(V, W),
    /// It waits.
    Waits(WaiterId),
}

/// What was left in a step at its end, for the caller to tell and to drop.
#[derive(Debug)]
pub struct Rest<V, W> {
    /// Who still waited, with the numbers that they had, in the order in which they came.
    pub waiters: Vec<(WaiterId, W)>,
    /// Values that nobody wanted.
    pub values: Vec<V>,
}

/// Takes the hash that a key brings along.
#[derive(Default)]
struct Given(u64);

impl Hasher for Given {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Keys write one word, below.
        bytes.iter().for_each(|b| self.0 = self.0.rotate_left(8) ^ u64::from(*b));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

type Keys<V> = HashMap<Key, Kept<V>, BuildHasherDefault<Given>>;

#[derive(Debug)]
enum Kept<V> {
    Value(V),
    Waiter(u32),
}

#[derive(Debug)]
struct Step<V> {
    keys: Keys<V>,
    /// Waiters, those for other tasks' values included.
    waiting: usize,
}

#[derive(Debug)]
struct Waiter<W> {
    step: StepId,
    /// `None`: for a value that another task will answer with.
    key: Option<Key>,
    /// In the order in which they came.
    number: u64,
    who: W,
}

#[derive(Debug)]
struct Slot<W> {
    generation: u32,
    waiter: Option<Waiter<W>>,
}

/// The matcher. `V` are values, `W` is what knows a waiter.
#[derive(Debug)]
pub struct Table<V, W> {
    steps: HashMap<StepId, Step<V>>,
    spare: Vec<Keys<V>>,
    slots: Vec<Slot<W>>,
    free: Vec<u32>,
    values: usize,
    came: u64,
    ended: HashMap<StepId, Ended>,
    /// In the order in which they ended.
    ended_order: VecDeque<StepId>,
}

impl<V, W> Default for Table<V, W> {
    fn default() -> Table<V, W> {
        Table {
            steps: HashMap::new(),
            spare: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            values: 0,
            came: 0,
            ended: HashMap::new(),
            ended_order: VecDeque::new(),
        }
    }
}

impl<V, W> Table<V, W> {
    fn step(&mut self, step: StepId) -> &mut Step<V> {
        let spare = &mut self.spare;
        let new = || Step { keys: spare.pop().unwrap_or_default(), waiting: 0 };
        self.steps.entry(step).or_insert_with(new)
    }

    /// R4
    fn tidy(&mut self, step: StepId) {
        if let Place::Occupied(place) = self.steps.entry(step)
            && place.get().keys.is_empty()
            && place.get().waiting == 0
        {
            let keys = place.remove().keys;
            if self.spare.len() < MAX_SPARE {
                self.spare.push(keys);
            }
        }
    }

    fn seat(&mut self, step: StepId, key: Option<Key>, who: W) -> u32 {
        self.came += 1;
        let waiter = Some(Waiter { step, key, number: self.came, who });
        match self.free.pop() {
            Some(at) => {
                self.slots[at as usize].waiter = waiter;
                at
            }
            None => {
                self.slots.push(Slot { generation: 0, waiter });
                (self.slots.len() - 1) as u32
            }
        }
    }

    fn id(&self, at: u32) -> WaiterId {
        WaiterId(u64::from(self.slots[at as usize].generation) << 32 | u64::from(at))
    }

    fn find(&self, id: WaiterId) -> Option<u32> {
        let at = id.0 as u32;
        let slot = self.slots.get(at as usize)?;
        (slot.waiter.is_some() && u64::from(slot.generation) == id.0 >> 32).then_some(at)
    }

    /// Frees a seat (R2).
    fn leave(&mut self, at: u32) -> Option<Waiter<W>> {
        let slot = &mut self.slots[at as usize];
        let waiter = slot.waiter.take()?;
        // One that has been used up is never given out again.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(at);
        }
        if let Some(step) = self.steps.get_mut(&waiter.step) {
            step.waiting -= 1;
        }
        Some(waiter)
    }

    fn waiters(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a value in.
    ///
    /// # Errors
    /// [`Refusal`]; the value is dropped.
    pub fn send(&mut self, step: StepId, key: &Key, value: V) -> Result<Sent<V, W>, Refusal> {
        if let Some(ended) = self.ended.get(&step) {
            return Err(Refusal::Ended(ended.clone()));
        }
        let full = self.values >= MAX_VALUES;
        match self.step(step).keys.entry(key.clone()) {
            Place::Occupied(place) => match place.get() {
                Kept::Value(_) => return Err(Refusal::Twice),
                Kept::Waiter(at) => {
                    let at = *at;
                    place.remove();
                    let waiter = self.leave(at);
                    self.tidy(step);
                    let waiter = waiter.unwrap_or_else(|| unreachable!("a key's waiter has its seat"));
                    return Ok(Sent::Met(value, waiter.who));
                }
            },
            Place::Vacant(place) if !full => {
                place.insert(Kept::Value(value));
            }
            Place::Vacant(_) => {
                self.tidy(step);
                return Err(Refusal::Full);
            }
        }
        self.values += 1;
        Ok(Sent::Kept)
    }

    /// Takes in somebody who wants a value of this task.
    ///
    /// # Errors
    /// [`Refusal`], and the waiter.
    pub fn recv(&mut self, step: StepId, key: &Key, who: W) -> Result<Received<V, W>, (Refusal, W)> {
        if let Some(ended) = self.ended.get(&step) {
            return Err((Refusal::Ended(ended.clone()), who));
        }
        if let Place::Occupied(place) = self.step(step).keys.entry(key.clone()) {
            if matches!(place.get(), Kept::Waiter(_)) {
                return Err((Refusal::Twice, who));
            }
            if let Kept::Value(value) = place.remove() {
                self.values -= 1;
                self.tidy(step);
                return Ok(Received::Met(value, who));
            }
        }
        if self.waiters() >= MAX_WAITERS {
            self.tidy(step);
            return Err((Refusal::Full, who));
        }
        let at = self.seat(step, Some(key.clone()), who);
        let kept = self.step(step);
        kept.keys.insert(key.clone(), Kept::Waiter(at));
        kept.waiting += 1;
        Ok(Received::Waits(self.id(at)))
    }

    /// Takes in somebody who waits for another task's answer: no value of this task is for it, but the end of the step is.
    ///
    /// # Errors
    /// [`Refusal`], and the waiter.
    pub fn wait_for_answer(&mut self, step: StepId, who: W) -> Result<WaiterId, (Refusal, W)> {
        if let Some(ended) = self.ended.get(&step) {
            return Err((Refusal::Ended(ended.clone()), who));
        }
        if self.waiters() >= MAX_WAITERS {
            return Err((Refusal::Full, who));
        }
        let at = self.seat(step, None, who);
        self.step(step).waiting += 1;
        Ok(self.id(at))
    }

    /// Somebody who waits, and in which step.
    pub fn waiter(&self, id: WaiterId) -> Option<(StepId, &W)> {
        let at = self.find(id)?;
        self.slots[at as usize].waiter.as_ref().map(|w| (w.step, &w.who))
    }

    /// As [`Self::waiter`], to change.
    pub fn waiter_mut(&mut self, id: WaiterId) -> Option<(StepId, &mut W)> {
        let at = self.find(id)?;
        self.slots[at as usize].waiter.as_mut().map(|w| (w.step, &mut w.who))
    }

    /// Takes a waiter out: it is cancelled, or has its answer. `None`: it has left already.
    pub fn take(&mut self, id: WaiterId) -> Option<W> {
        let at = self.find(id)?;
        self.remove(at).map(|(_, who)| who)
    }

    fn remove(&mut self, at: u32) -> Option<(StepId, W)> {
        let waiter = self.leave(at)?;
        if let (Some(key), Some(step)) = (&waiter.key, self.steps.get_mut(&waiter.step)) {
            step.keys.remove(key);
        }
        self.tidy(waiter.step);
        Some((waiter.step, waiter.who))
    }

    /// Takes out all waiters of which `which` is true, with their steps, in the order in which they came.
    pub fn take_where(&mut self, which: impl Fn(&W) -> bool) -> Vec<(StepId, W)> {
        let found = self.seats(|w| which(&w.who));
        found.into_iter().filter_map(|at| self.remove(at)).collect()
    }

    fn seats(&self, which: impl Fn(&Waiter<W>) -> bool) -> Vec<u32> {
        let mut found: Vec<(u64, u32)> = Vec::new();
        for (at, slot) in self.slots.iter().enumerate() {
            if let Some(waiter) = slot.waiter.as_ref().filter(|w| which(w)) {
                found.push((waiter.number, at as u32));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, at)| at).collect()
    }

    /// Ends a step because something failed. The first reason stays (R3); `None`: it had ended already.
    pub fn abort(&mut self, step: StepId, why: Why) -> Option<Rest<V, W>> {
        self.end(step, Ended::Aborted(why))
    }

    /// Ends a step that is over. `None`: it had ended already.
    pub fn cleanup(&mut self, step: StepId) -> Option<Rest<V, W>> {
        self.end(step, Ended::Over)
    }

    fn end(&mut self, step: StepId, how: Ended) -> Option<Rest<V, W>> {
        if self.ended.contains_key(&step) {
            return None;
        }
        if self.ended_order.len() >= MAX_ENDED
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
        self.ended.insert(step, how);
        self.ended_order.push_back(step);
        let mut rest = Rest { waiters: Vec::new(), values: Vec::new() };
        let Some(left) = self.steps.remove(&step) else { return Some(rest) };
        if left.waiting > 0 {
            let seats = self.seats(|w| w.step == step);
            for at in seats {
                let id = self.id(at);
                rest.waiters.extend(self.leave(at).map(|w| (id, w.who)));
            }
        }
        for kept in left.keys.into_values() {
            if let Kept::Value(value) = kept {
                self.values -= 1;
                rest.values.push(value);
            }
        }
        Some(rest)
    }

    /// How a step ended, if it has and is remembered.
    #[must_use]
    pub fn ended(&self, step: StepId) -> Option<&Ended> {
        self.ended.get(&step)
    }

    /// How many values are kept, how many wait, and of how many steps.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        let waiting = self.steps.values().map(|s| s.waiting).sum();
        (self.values, waiting, self.steps.len())
    }
}

#[cfg(test)]
#[path = "table/tests.rs"]
mod tests;
