//! That no thread is left asleep which something is left to do for, whoever took in what would have roused it.

#[allow(dead_code)]
mod harness;

use harness::{communicator, within};
use ringway_collectives::engine::{EngineOptions, OnProgressThread};
use ringway_collectives::reduce::ReduceOp;
use ringway_dataplane::memory::{Region, RegionId};
use ringway_dataplane::transport::{
    Address, Caps, Cause, ConnectError, Copies, Event, Hub, Loopback, LoopbackConfig, Note, Op, OpId, Peer,
    PostError, RegionKey, RegisterError, Stamp, Tag, Transport, Waker,
};
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

/// What goes no further than this transport.
const KEPT: &[u8] = b"kept";

/// A loopback on which the progress thread alone sleeps, whom nothing rouses but the engine: all that comes is as if somebody
/// else had taken it in before the sleeper could look.
struct Deaf {
    inner: Loopback,
    waker: Waker,
    asleep: bool,
    /// Whether a message that is [`KEPT`] waits for a poll of the progress thread.
    unsent: bool,
    /// Told when the progress thread goes to sleep, and when it polls again.
    sleeps: Sender<()>,
    polls: Sender<()>,
}

fn is_progress_thread() -> bool {
    std::thread::current().name() == Some("ringway-progress")
}

impl Deaf {
    fn new(inner: Loopback, sleeps: Sender<()>, polls: Sender<()>) -> Deaf {
        let waker = Waker::new().expect("a descriptor");
        Deaf { inner, waker, asleep: false, unsent: false, sleeps, polls }
    }
}

impl Transport for Deaf {
    fn poll(&mut self, out: &mut Vec<Event>) -> bool {
        if is_progress_thread() {
            self.unsent = false;
            if std::mem::take(&mut self.asleep) {
                // The test may be over.
                let _ = self.polls.send(());
            }
        }
        self.inner.poll(out)
    }

    fn send_now(&mut self, _to: Peer, _tag: Tag, _stamp: &Stamp, bytes: &[u8]) -> bool {
        let keeps = bytes == KEPT;
        self.unsent |= keeps;
        keeps
    }

    fn has_unsent(&self) -> bool {
        self.unsent
    }

    fn prepare_sleep(&mut self) -> bool {
        if !is_progress_thread() {
            return false;
        }
        self.asleep = !self.waker.take() && self.inner.prepare_sleep();
        if self.asleep {
            let _ = self.sleeps.send(());
        }
        self.asleep
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.waker.fd())
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn next_timer_ms(&self) -> Option<u64> {
        None
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

/// D3
#[test]
fn who_stops_driving_rouses_the_thread_that_slept_through_it() {
    let [(sleeps, asleep), (polls, polled), (begin, begun)] = [channel(), channel(), channel()];
    let [(tell, told), (tell_again, told_again)] = [channel::<()>(), channel()];
    let mut transports = Hub::new(LoopbackConfig::default()).group(2).unwrap().into_iter();
    let (inner, other) = (transports.next().unwrap(), transports.next().unwrap());
    let deaf = Deaf::new(inner, sleeps, polls);
    // No inquiry rouses the thread instead.
    let options = EngineOptions { inquiry_ms: 1_000_000_000, ..EngineOptions::default() };
    let begun = Mutex::new(begun);
    let once_told = OnProgressThread(Arc::new(move || begun.lock().unwrap().recv().unwrap()));
    within("a thread that nobody rouses", || {
        std::thread::scope(|scope| {
            let plain = &options;
            scope.spawn(move || {
                let c = communicator(other, 1, 2, plain);
                told.recv().unwrap();
                c.send(&[7.0f32], 0, 0).unwrap();
                told_again.recv().unwrap();
                c.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap();
            });
            let options = EngineOptions { on_progress_thread: Some(once_told), ..options.clone() };
            let c = communicator(deaf, 0, 2, &options);
            let message = c.recv_start(c.alloc::<f32>(1).unwrap(), 1, 0).unwrap();
            let sum = c.all_reduce_start(c.alloc::<f32>(1).unwrap(), ReduceOp::Sum).unwrap();
            begin.send(()).unwrap();
            asleep.recv().unwrap();
            // The thread lies; a caller takes over, and leaves while the other call is under way.
            tell.send(()).unwrap();
            assert_eq!(message.wait().unwrap()[..], [7.0]);
            polled.recv().expect("the thread drives again");
            tell_again.send(()).unwrap();
            assert_eq!(sum.wait().unwrap()[..], [1.0]);
        });
    });
}

/// D6
#[test]
fn who_leaves_something_behind_rouses_the_thread_that_slept_through_all_else() {
    let [(sleeps, asleep), (polls, polled), (begin, begun)] = [channel(), channel(), channel::<()>()];
    let mut transports = Hub::new(LoopbackConfig::default()).group(2).unwrap().into_iter();
    let (inner, other) = (transports.next().unwrap(), transports.next().unwrap());
    let deaf = Deaf::new(inner, sleeps, polls);
    // No inquiry rouses the thread instead.
    let options = EngineOptions { inquiry_ms: 1_000_000_000, ..EngineOptions::default() };
    within("a thread that nobody rouses", || {
        std::thread::scope(|scope| {
            let plain = &options;
            scope.spawn(move || {
                let c = communicator(other, 1, 2, plain);
                begun.recv().unwrap();
                c.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap();
            });
            let c = communicator(deaf, 0, 2, &options);
            let sum = c.all_reduce_start(c.alloc::<f32>(1).unwrap(), ReduceOp::Sum).unwrap();
            asleep.recv().unwrap();
            begin.send(()).unwrap();
            // The thread lies, and a caller ends all that there is to do.
            assert_eq!(sum.wait().unwrap()[..], [1.0]);
            c.send(KEPT, 1, 0).unwrap();
            polled.recv().expect("the thread drives again");
        });
    });
}
