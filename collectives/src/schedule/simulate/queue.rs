//! Events in the order of their times. Many fall on one moment, where ranks go in step; those come in the order in which
//! they were put in, so that only distinct moments have to be sorted.

#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// Scatters one number: the multiplication of Knuth's, "The Art of Computer Programming" 3, section 6.4.
#[derive(Default)]
pub(super) struct Scatter(u64);

impl Hasher for Scatter {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }
}

/// A queue of events.
pub(super) struct Queue<T> {
    /// Moments to come, each once, with the place of their events.
    moments: BinaryHeap<Reverse<(u64, u32)>>,
    places: HashMap<u64, u32, BuildHasherDefault<Scatter>>,
    /// Events by place. Those of places that are free are empty.
    events: Vec<Vec<T>>,
    free: Vec<u32>,
    /// The moment that an event was put at last, and its place: the next is often the same.
    last: Option<(u64, u32)>,
    /// What is left of the present moment's, in reverse.
    present: Vec<T>,
    now: u64,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Queue {
            moments: BinaryHeap::new(),
            places: HashMap::default(),
            events: Vec::new(),
            free: Vec::new(),
            last: None,
            present: Vec::new(),
            now: 0,
        }
    }

    /// Puts an event in, at a moment that is not before the present.
    pub(super) fn push(&mut self, at: u64, event: T) {
        let place = match self.last {
            Some((last, place)) if last == at => place,
            _ => self.place(at),
        };
        self.last = Some((at, place));
        self.events[place as usize].push(event);
    }

    fn place(&mut self, at: u64) -> u32 {
        if let Some(place) = self.places.get(&at) {
            return *place;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(Vec::new());
            self.events.len() as u32 - 1
        });
        self.places.insert(at, place);
        self.moments.push(Reverse((at, place)));
        place
    }

    /// The next event of the present moment.
    pub(super) fn next_of_now(&mut self) -> Option<T> {
        if self.present.is_empty() {
            match self.moments.peek() {
                Some(Reverse((at, _))) if *at == self.now => self.load(),
                _ => return None,
            }
        }
        self.present.pop()
    }

    /// Goes to the next moment that has events, once the present has none; answers when it is.
    pub(super) fn advance(&mut self) -> Option<u64> {
        self.now = self.moments.peek()?.0.0;
        Some(self.now)
    }

    fn load(&mut self) {
        let Some(Reverse((at, place))) = self.moments.pop() else { return };
        self.places.remove(&at);
        self.last = None;
        self.present.append(&mut self.events[place as usize]);
        self.present.reverse();
        self.free.push(place);
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::mix;
    use super::*;

    /// The order is that of a sort by time that keeps equal ones as they came, also of what is put in meanwhile.
    #[test]
    fn events_come_in_the_order_of_times_and_then_as_they_were_put_in() {
        for seed in 0..20u64 {
            let mut queue = Queue::new();
            let (mut waiting, mut number) = (Vec::new(), 0u64);
            let mut put = |queue: &mut Queue<u64>, waiting: &mut Vec<(u64, u64)>, now: u64| {
                let at = now + mix(seed ^ (number << 8)) % 6;
                queue.push(at, number);
                waiting.push((at, number));
                number += 1;
            };
            (0..50).for_each(|_| put(&mut queue, &mut waiting, 0));
            let mut taken = 0;
            while let Some(now) = queue.advance() {
                while let Some(event) = queue.next_of_now() {
                    let least = *waiting.iter().min().unwrap();
                    assert_eq!((now, event), least, "seed {seed}");
                    waiting.retain(|other| *other != least);
                    taken += 1;
                    if taken < 500 {
                        put(&mut queue, &mut waiting, now);
                    }
                }
            }
            assert!(waiting.is_empty() && taken >= 500, "seed {seed}");
        }
    }
}
