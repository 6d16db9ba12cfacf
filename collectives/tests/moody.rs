//! That calls made at once may leave off wherever the transport does not serve them, and go on as runs: with every slice where it
//! stood, over shared memory.

#[allow(dead_code)]
mod harness;

use harness::ranks_over;
use ringway_collectives::engine::{Communicator, EngineOptions};
use ringway_collectives::reduce::ReduceOp;
use ringway_dataplane::memory::{ForeignBytes, ReadLease, Region, RegionId};
use ringway_dataplane::shm::{Config, ShmTransport};
use ringway_dataplane::transport::{
    Address, Caps, Cause, ConnectError, Copies, Event, Found, Keyring, Note, Op, OpId, Peer, PostError,
    RegionKey, RegisterError, Sight, Stamp, Tag, Transport, Waker,
};
use std::os::fd::BorrowedFd;

/// Shared memory that says no now and then, where it may.
struct Moody {
    inner: ShmTransport,
    /// Of a random sequence.
    state: u64,
    /// How seldom it says no; 0: never.
    one_in: u64,
}

impl Moody {
    fn is_unwilling(&mut self) -> bool {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.one_in > 0 && (self.state >> 33).is_multiple_of(self.one_in)
    }
}

impl Transport for Moody {
    fn send_now(&mut self, to: Peer, tag: Tag, stamp: &Stamp, bytes: &[u8]) -> bool {
        !self.is_unwilling() && self.inner.send_now(to, tag, stamp, bytes)
    }

    fn take_now(
        &mut self,
        from: Peer,
        tag: Tag,
        expected: (&Stamp, usize),
        looks: u32,
        take: &mut dyn FnMut(&[u8]),
    ) -> Found {
        // Who does not look at all looks again when something has moved, and only then.
        if looks > 0 && self.is_unwilling() {
            return Found::Nothing;
        }
        self.inner.take_now(from, tag, expected, looks, take)
    }

    fn poll(&mut self, out: &mut Vec<Event>) -> bool {
        self.inner.poll(out)
    }

    fn prepare_sleep(&mut self) -> bool {
        self.inner.prepare_sleep()
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.sleep_fd()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn next_timer_ms(&self) -> Option<u64> {
        self.inner.next_timer_ms()
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn address(&self) -> Address {
        self.inner.address()
    }

    fn register(&mut self, region: &Region) -> Result<RegionKey, RegisterError> {
        self.inner.register(region)
    }

    fn deregister(&mut self, region: RegionId) {
        self.inner.deregister(region);
    }

    fn connect(&mut self, peer: Peer, to: &Address) -> Result<(), ConnectError> {
        self.inner.connect(peer, to)
    }

    fn close(&mut self, peer: Peer, why: Cause) {
        self.inner.close(peer, why);
    }

    fn post(&mut self, id: OpId, op: Op) -> Result<(), (PostError, Op)> {
        self.inner.post(id, op)
    }

    fn cancel(&mut self, id: OpId) {
        self.inner.cancel(id);
    }

    fn note(&mut self, to: Peer, note: &Note) -> Result<(), PostError> {
        self.inner.note(to, note)
    }

    fn show(&mut self, to: Peer, bytes: &ReadLease) -> Option<Sight> {
        self.inner.show(to, bytes)
    }

    fn view(&mut self, from: Peer, sight: Sight) -> Option<ForeignBytes> {
        self.inner.view(from, sight)
    }

    fn shares_memory(&self, with: Peer) -> bool {
        self.inner.shares_memory(with)
    }

    fn retire(&mut self, group: u32) {
        self.inner.retire(group);
    }

    fn leave(&mut self, linger_ms: u64) {
        self.inner.leave(linger_ms);
    }

    fn why(&self, peer: Peer) -> Option<String> {
        self.inner.why(peer)
    }

    fn copies(&self) -> Copies {
        self.inner.copies()
    }

    fn pending(&self, peer: Peer) -> (usize, usize) {
        self.inner.pending(peer)
    }
}

fn pair(one_in: [u64; 2]) -> Vec<Moody> {
    let open = |me| ShmTransport::new(Config::new(me, Keyring::of([5; 32]), 70 + u64::from(me)));
    let mut both = [0, 1].map(|me| open(me).expect("shared memory"));
    let addresses = [both[0].address(), both[1].address()];
    for (me, transport) in both.iter_mut().enumerate() {
        let other = 1 - me;
        transport.connect(Peer(other as u32), &addresses[other]).expect("an address of the same kind");
    }
    let moody = |(inner, one_in)| Moody { inner, state: one_in, one_in };
    both.into_iter().zip(one_in).map(moody).collect()
}

/// Sums whose bits are known, some of them begun as runs by one side.
fn checked_rounds(c: &Communicator) {
    const LENGTHS: [usize; 7] = [3, 5000, 16_384, 32_767, 32_769, 49_999, 65_536];
    let average = |rank: u32, i: usize, round: usize| f64::from(rank) + (i * 3 + round) as f64;
    for round in 0..20 {
        for len in LENGTHS {
            let mut x = c.alloc::<i32>(len).unwrap();
            x.iter_mut().zip(0..).for_each(|(x, i)| *x = (i * 3 + round) as i32 + c.rank() as i32);
            if round % 3 == 1 && c.rank() == 1 {
                x = c.all_reduce_start(x, ReduceOp::Sum).unwrap().wait().unwrap();
            } else {
                c.all_reduce(&mut x, ReduceOp::Sum).unwrap();
            }
            let wrong = x.iter().enumerate().position(|(i, x)| *x != 2 * (i * 3 + round) as i32 + 1);
            assert_eq!(wrong, None, "{len} in round {round}");
        }
        // What is left to do at a slice's end is done once for each.
        let mut x: Vec<f64> = (0..30_001).map(|i| average(c.rank(), i, round)).collect();
        c.all_reduce(&mut x, ReduceOp::Avg).unwrap();
        let wrong = x.iter().enumerate().position(|(i, x)| *x != average(0, i, round) + 0.5);
        assert_eq!(wrong, None, "the average in round {round}");
    }
}

#[test]
fn calls_go_on_from_where_they_could_not_be_made_at_once() {
    // A2, A6: one slice and several, of equal lengths and not, while either side or both are moody, and while none is.
    for one_in in [[0, 0], [3, 0], [0, 7], [2, 2], [5, 4], [23, 29]] {
        for slice_bytes in [None, Some(8 << 10)] {
            let options = EngineOptions { slice_bytes, ..EngineOptions::default() };
            let label = format!("{one_in:?}, {slice_bytes:?}");
            ranks_over(pair(one_in), &label, &options, |c| checked_rounds(&c));
        }
    }
}
