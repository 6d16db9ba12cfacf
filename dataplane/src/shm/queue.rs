//! The words that two processes share, and the rules by which they read and write them: pure, over any kind of atomic
//! word, so that a model checker runs what the transport runs.
//!
//! A [`Lane`] is one direction between two processes: a ring of bytes with one producer and one consumer. Positions count
//! bytes since the beginning and never wrap. Each side writes its own line alone, and keeps what it last read of the
//! other's, so that while there is room, or something to read, no line moves between the cores but the one with the news.
//!
//! A [`Sleeper`] has one word that all its peers read: odd while it sleeps or is about to, another number each time.
//!
//! - **Q1** What the consumer reads, up to the tail, was written before it was published; what the producer writes over
//!   was read before it was released.
//! - **Q2** No news is slept through: the sleeper writes its word and then looks for news, with a full fence between; who
//!   has news writes it and then looks at the word, with a full fence between. One of them sees the other's.
//! - **Q3** What the other side wrote is a number that it may have made up: one that cannot be is an error, and no other
//!   number leads outside of the ring.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word of memory that another process sees.
pub trait Word {
    /// Reads it.
    fn load(&self, order: Ordering) -> u64;
    /// Writes it.
    fn store(&self, value: u64, order: Ordering);
    /// Orders all that was read and written before it with all after it, for everybody.
    fn full_fence();
    /// Orders what was read before it with all after it.
    fn acquire_fence();
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    fn full_fence() {
        fence(Ordering::SeqCst);
    }

    fn acquire_fence() {
        fence(Ordering::Acquire);
    }
}

/// What the producer writes. Two cache lines, since processors fetch pairs of them.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct FromProducer<W> {
    /// Bytes published so far.
    tail: W,
    /// Not 0: it waits for room, and is to be roused when there is some.
    wants_room: W,
    /// Not 0: it is over, and memory that was shown may change.
    closed: W,
}

/// What the consumer writes.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct FromConsumer<W> {
    /// Bytes released so far.
    head: W,
}

/// The shared words of one direction. All zero to begin with.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lane<W> {
    from_producer: FromProducer<W>,
    from_consumer: FromConsumer<W>,
}

/// The other side has written what cannot be (Q3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// More is published than fits, or less than before.
    #[error("it says that it wrote up to byte {tail}, where {head} are read and {capacity} fit")]
    Tail {
        /// What it says.
        tail: u64,
        /// What this side has read.
        head: u64,
        /// Size of the ring.
        capacity: u64,
    },
    /// More is released than was published, or less than before.
    #[error("it says that it read up to byte {head}, where {tail} are written and {before} were read before")]
    Head {
        /// What it says.
        head: u64,
        /// What this side has written.
        tail: u64,
        /// What it said before.
        before: u64,
    },
    /// A record that is longer than what was published.
    #[error("it published {published} bytes, of a record of {record}")]
    Record {
        /// Length of the record.
        record: u64,
        /// What is there of it.
        published: u64,
    },
}

/// The writing end of a lane.
#[derive(Debug)]
pub struct Producer {
    capacity: u64,
    tail: u64,
    head: u64,
    asked: bool,
}

impl Producer {
    /// Of a new ring of `capacity` bytes.
    pub fn new(capacity: u64) -> Producer {
        Producer { capacity, tail: 0, head: 0, asked: false }
    }

    /// Where the next byte goes.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Whether `bytes` fit now.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn has_room<W: Word>(&mut self, lane: &Lane<W>, bytes: u64) -> Result<bool, Corrupt> {
        if self.capacity - (self.tail - self.head) >= bytes {
            return Ok(true);
        }
        let head = lane.from_consumer.head.load(Ordering::Acquire);
        if head < self.head || head > self.tail {
            return Err(Corrupt::Head { head, tail: self.tail, before: self.head });
        }
        self.head = head;
        let fits = self.capacity - (self.tail - self.head) >= bytes;
        if fits && self.asked {
            self.asked = false;
            lane.from_producer.wants_room.store(0, Ordering::Relaxed);
        }
        Ok(fits)
    }

    /// `bytes` more are written, which [`Self::has_room`] has found room for: the consumer may read them (Q1).
    pub fn publish<W: Word>(&mut self, lane: &Lane<W>, bytes: u64) {
        self.tail += bytes;
        lane.from_producer.tail.store(self.tail, Ordering::Release);
    }

    /// Asks to be roused when something was read. Before [`Sleeper::lie_down`], after which there is one more look.
    pub fn ask_for_room<W: Word>(&mut self, lane: &Lane<W>) {
        self.asked = true;
        lane.from_producer.wants_room.store(1, Ordering::Relaxed);
    }

    /// Says that it is over. What follows in this thread is seen after it.
    pub fn close<W: Word>(&self, lane: &Lane<W>) {
        lane.from_producer.closed.store(1, Ordering::Relaxed);
        W::full_fence();
    }
}

/// The reading end of a lane.
#[derive(Debug)]
pub struct Consumer {
    capacity: u64,
    head: u64,
    tail: u64,
    released: u64,
}

impl Consumer {
    /// Of a new ring of `capacity` bytes.
    pub fn new(capacity: u64) -> Consumer {
        Consumer { capacity, head: 0, tail: 0, released: 0 }
    }

    /// Where the next byte to read is.
    pub fn position(&self) -> u64 {
        self.head
    }

    /// How many bytes there are to read (Q1).
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn available<W: Word>(&mut self, lane: &Lane<W>) -> Result<u64, Corrupt> {
        if self.tail == self.head {
            let tail = lane.from_producer.tail.load(Ordering::Acquire);
            if tail < self.tail || tail - self.head > self.capacity {
                return Err(Corrupt::Tail { tail, head: self.head, capacity: self.capacity });
            }
            self.tail = tail;
        }
        Ok(self.tail - self.head)
    }

    /// Whether the producer has published what was not read: for the last look before sleep. What cannot be counts as
    /// news too, which reading finds.
    pub fn has_news<W: Word>(&self, lane: &Lane<W>) -> bool {
        lane.from_producer.tail.load(Ordering::Acquire) != self.head
    }

    /// `bytes` were read; they stay until [`Self::release`].
    ///
    /// # Errors
    /// [`Corrupt::Record`] when there are not so many.
    pub fn advance(&mut self, bytes: u64) -> Result<(), Corrupt> {
        let published = self.tail - self.head;
        if bytes > published {
            return Err(Corrupt::Record { record: bytes, published });
        }
        self.head += bytes;
        Ok(())
    }

    /// Bytes that were read and not released.
    pub fn unreleased(&self) -> u64 {
        self.head - self.released
    }

    /// Gives what was read back to the producer (Q1).
    pub fn release<W: Word>(&mut self, lane: &Lane<W>) {
        if self.released != self.head {
            self.released = self.head;
            lane.from_consumer.head.store(self.head, Ordering::Release);
        }
    }

    /// Whether the producer waits to be roused for what was released. A full fence comes first (Q2).
    pub fn is_room_wanted<W: Word>(&self, lane: &Lane<W>) -> bool {
        W::full_fence();
        lane.from_producer.wants_room.load(Ordering::Relaxed) != 0
    }

    /// Whether the producer has said that it is over, after what was read before in this thread.
    pub fn is_closed<W: Word>(&self, lane: &Lane<W>) -> bool {
        W::acquire_fence();
        lane.from_producer.closed.load(Ordering::Relaxed) != 0
    }
}

/// One who sleeps, by its word.
#[derive(Debug, Default)]
pub struct Sleeper {
    times: u64,
}

impl Sleeper {
    /// Says that it is about to sleep. It looks for news after this, and sleeps if there is none (Q2).
    pub fn lie_down<W: Word>(&mut self, word: &W) {
        self.times |= 1;
        word.store(self.times, Ordering::Relaxed);
        W::full_fence();
    }

    /// Says that it looks by itself again.
    pub fn rise<W: Word>(&mut self, word: &W) {
        if self.times & 1 == 1 {
            self.times += 1;
            word.store(self.times, Ordering::Relaxed);
        }
    }

    /// Whether it has said that it sleeps.
    pub fn is_down(&self) -> bool {
        self.times & 1 == 1
    }
}

/// One who rouses a sleeper: once per sleep.
#[derive(Debug, Default)]
pub struct Ringer {
    rung: u64,
}

impl Ringer {
    /// Whether the sleeper is to be roused for what was published or released before (Q2).
    pub fn must_ring<W: Word>(&mut self, word: &W) -> bool {
        W::full_fence();
        let now = word.load(Ordering::Relaxed);
        let must = now & 1 == 1 && now != self.rung;
        if must {
            self.rung = now;
        }
        must
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::Notify;
    use loom::sync::atomic::AtomicU64 as Modelled;

    impl Word for Modelled {
        fn load(&self, order: Ordering) -> u64 {
            Modelled::load(self, order)
        }

        fn store(&self, value: u64, order: Ordering) {
            Modelled::store(self, value, order);
        }

        fn full_fence() {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }

        fn acquire_fence() {
            loom::sync::atomic::fence(Ordering::Acquire);
        }
    }

    fn word() -> Modelled {
        Modelled::new(0)
    }

    /// A lane with its ring of two cells, and the words and bells of both ends.
    struct Shared {
        lane: Lane<Modelled>,
        cells: [UnsafeCell<u64>; 2],
        words: [Modelled; 2],
        bells: [Notify; 2],
    }

    fn shared() -> Arc<Shared> {
        let from_producer = FromProducer { tail: word(), wants_room: word(), closed: word() };
        let lane = Lane { from_producer, from_consumer: FromConsumer { head: word() } };
        Arc::new(Shared {
            lane,
            cells: [UnsafeCell::new(0), UnsafeCell::new(0)],
            words: [word(), word()],
            bells: [Notify::new(), Notify::new()],
        })
    }

    const PRODUCER: usize = 0;
    const CONSUMER: usize = 1;

    impl Shared {
        /// Writes one item, sleeping while there is no room.
        fn produce(&self, end: &mut Producer, sleeper: &mut Sleeper, ringer: &mut Ringer, item: u64) {
            while !end.has_room(&self.lane, 1).unwrap() {
                end.ask_for_room(&self.lane);
                sleeper.lie_down(&self.words[PRODUCER]);
                if !end.has_room(&self.lane, 1).unwrap() {
                    self.bells[PRODUCER].wait();
                }
                sleeper.rise(&self.words[PRODUCER]);
            }
            let at = (end.position() % 2) as usize;
            self.cells[at].with_mut(|cell| write(cell, item));
            end.publish(&self.lane, 1);
            if ringer.must_ring(&self.words[CONSUMER]) {
                self.bells[CONSUMER].notify();
            }
        }

        /// Reads one item, sleeping while there is none.
        fn consume(&self, end: &mut Consumer, sleeper: &mut Sleeper, ringer: &mut Ringer) -> u64 {
            while end.available(&self.lane).unwrap() == 0 {
                sleeper.lie_down(&self.words[CONSUMER]);
                if !end.has_news(&self.lane) {
                    self.bells[CONSUMER].wait();
                }
                sleeper.rise(&self.words[CONSUMER]);
            }
            let at = (end.position() % 2) as usize;
            let item = self.cells[at].with(read);
            end.advance(1).unwrap();
            end.release(&self.lane);
            if end.is_room_wanted(&self.lane) && ringer.must_ring(&self.words[PRODUCER]) {
                self.bells[PRODUCER].notify();
            }
            item
        }
    }

    fn write(cell: *mut u64, item: u64) {
        super::super::segment::write_word(cell, item);
    }

    fn read(cell: *const u64) -> u64 {
        super::super::segment::read_word(cell)
    }

    fn model(items: u64, preemptions: Option<usize>) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(move || {
            let shared = shared();
            let theirs = Arc::clone(&shared);
            let producing = loom::thread::spawn(move || {
                let (mut end, mut sleeper, mut ringer) =
                    (Producer::new(2), Sleeper::default(), Ringer::default());
                (0..items).for_each(|item| theirs.produce(&mut end, &mut sleeper, &mut ringer, item + 1));
            });
            let (mut end, mut sleeper, mut ringer) =
                (Consumer::new(2), Sleeper::default(), Ringer::default());
            for item in 0..items {
                assert_eq!(shared.consume(&mut end, &mut sleeper, &mut ringer), item + 1);
            }
            producing.join().unwrap();
        });
    }

    #[test]
    fn every_item_comes_once_and_in_order_and_nobody_sleeps_for_ever() {
        // Q1 and Q2: loom finds a race on a cell, and a sleep that nothing ends.
        model(3, Some(2));
    }

    #[test]
    fn the_first_news_is_not_slept_through() {
        // Q2, with every interleaving.
        model(1, None);
    }

    #[test]
    fn two_producers_rouse_one_sleeper() {
        // Q2 for one word and several lanes: a sleeper that was roused by one finds the other's news too.
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let word = Arc::new(word());
            let bell = Arc::new(Notify::new());
            let lanes: [_; 2] = std::array::from_fn(|_| shared());
            let producing = lanes.clone().map(|shared| {
                let (word, bell) = (Arc::clone(&word), Arc::clone(&bell));
                loom::thread::spawn(move || {
                    let (mut end, mut ringer) = (Producer::new(2), Ringer::default());
                    assert!(end.has_room(&shared.lane, 1).unwrap());
                    end.publish(&shared.lane, 1);
                    if ringer.must_ring(&*word) {
                        bell.notify();
                    }
                })
            });
            let (mut ends, mut sleeper) = ([Consumer::new(2), Consumer::new(2)], Sleeper::default());
            let mut left = 2;
            while left > 0 {
                for (end, shared) in ends.iter_mut().zip(&lanes) {
                    if end.available(&shared.lane).unwrap() > 0 {
                        end.advance(1).unwrap();
                        left -= 1;
                    }
                }
                if left > 0 {
                    sleeper.lie_down(&*word);
                    if !ends.iter().zip(&lanes).any(|(end, shared)| end.has_news(&shared.lane)) {
                        bell.wait();
                    }
                    sleeper.rise(&*word);
                }
            }
            for thread in producing {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn what_was_shown_is_not_taken_after_the_end() {
        // A reader that finds no end after it has read has read what was there before the end.
        loom::model(|| {
            let shared = shared();
            let shown = Arc::new(Modelled::new(1));
            let (theirs, changed) = (Arc::clone(&shared), Arc::clone(&shown));
            let owner = loom::thread::spawn(move || {
                Producer::new(2).close(&theirs.lane);
                changed.store(2, Ordering::Relaxed);
            });
            let read = shown.load(Ordering::Relaxed);
            if !Consumer::new(2).is_closed(&shared.lane) {
                assert_eq!(read, 1);
            }
            owner.join().unwrap();
        });
    }

    #[test]
    fn numbers_that_cannot_be_are_errors() {
        // Q3
        let lane: Lane<AtomicU64> = Lane::default();
        let (mut producer, mut consumer) = (Producer::new(64), Consumer::new(64));
        assert!(producer.has_room(&lane, 64).unwrap() && !producer.has_room(&lane, 65).unwrap());
        producer.publish(&lane, 40);
        assert_eq!(consumer.available(&lane), Ok(40));
        assert_eq!(consumer.advance(41), Err(Corrupt::Record { record: 41, published: 40 }));
        consumer.advance(40).unwrap();
        for tail in [0, 39, 105, u64::MAX] {
            lane.from_producer.tail.store(tail, Ordering::Relaxed);
            assert_eq!(consumer.available(&lane), Err(Corrupt::Tail { tail, head: 40, capacity: 64 }));
        }
        for head in [41, u64::MAX] {
            lane.from_consumer.head.store(head, Ordering::Relaxed);
            assert_eq!(producer.has_room(&lane, 64), Err(Corrupt::Head { head, tail: 40, before: 0 }));
        }
        lane.from_consumer.head.store(30, Ordering::Relaxed);
        assert!(producer.has_room(&lane, 54).unwrap());
        lane.from_consumer.head.store(29, Ordering::Relaxed);
        assert!(producer.has_room(&lane, 64).is_err());
    }
}
