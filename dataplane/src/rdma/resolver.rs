//! Finding the ways to peers' ports without waiting for it.
//!
//! On RoCE, making an address handle asks the kernel for the peer's hardware address, which it may look for on the
//! network for a second (its own limit, in `ib_core`'s `rdma_addr_find_l2_eth_by_grh`). So a few threads of their own do
//! it. What they have found is in the kernel's table of neighbours when queue pairs are connected next.
#![forbid(unsafe_code)]

use super::verbs::{AddressHandle, ProtectionDomain, Route, VerbsError};
use crate::transport::Waker;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Threads that may look for ways at a time.
const THREADS: usize = 4;

/// The way to a peer's end of a rail.
#[derive(Debug)]
pub(super) enum Resolved {
    /// Nobody has looked for it.
    Unasked,
    /// It is being looked for.
    Asked,
    /// It is known.
    Ready(Arc<AddressHandle>),
    /// There is none.
    Failed(String),
}

/// A way to look for.
pub(super) struct Ask {
    pub(super) link: u32,
    /// Of the peer.
    pub(super) incarnation: u64,
    pub(super) rail: usize,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) route: Route,
}

/// What was found.
pub(super) struct Answer {
    pub(super) link: u32,
    pub(super) incarnation: u64,
    pub(super) rail: usize,
    pub(super) found: Result<AddressHandle, VerbsError>,
}

/// The threads, and what they were asked.
pub(super) struct Resolver {
    asks: Sender<Ask>,
    asked: Arc<Mutex<Receiver<Ask>>>,
    answer: Sender<Answer>,
    answers: Receiver<Answer>,
    /// Rouses the transport's sleeper.
    pub(super) waker: Waker,
    open: usize,
    threads: usize,
}

impl Resolver {
    pub(super) fn new() -> std::io::Result<Resolver> {
        let ((asks, asked), (answer, answers)) = (channel(), channel());
        let waker = Waker::new()?;
        Ok(Resolver { asks, asked: Arc::new(Mutex::new(asked)), answer, answers, waker, open: 0, threads: 0 })
    }

    /// Looks for a way; the answer comes from [`Self::next`].
    pub(super) fn ask(&mut self, ask: Ask) -> std::io::Result<()> {
        self.open += 1;
        if self.threads < THREADS.min(self.open) {
            let (asked, answer, waker) = (Arc::clone(&self.asked), self.answer.clone(), self.waker.clone());
            let name = "ringway-resolve".to_owned();
            let spawned = std::thread::Builder::new().name(name).spawn(move || work(&asked, &answer, &waker));
            match spawned {
                Ok(_) => self.threads += 1,
                Err(why) if self.threads == 0 => {
                    self.open -= 1;
                    return Err(why);
                }
                Err(_) => {}
            }
        }
        // This side holds the receiver, so it is taken.
        let _ = self.asks.send(ask);
        Ok(())
    }

    /// Whether an answer is awaited.
    pub(super) fn is_open(&self) -> bool {
        self.open > 0
    }

    /// What was found since the last call.
    pub(super) fn next(&mut self) -> Option<Answer> {
        if self.open == 0 {
            return None;
        }
        let answer = self.answers.try_recv().ok()?;
        self.open -= 1;
        Some(answer)
    }
}

/// A thread: until the transport is gone.
fn work(asked: &Mutex<Receiver<Ask>>, answer: &Sender<Answer>, waker: &Waker) {
    loop {
        let next = asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Ask { link, incarnation, rail, domain, route }) = next else { return };
        let found = AddressHandle::create(&domain, &route);
        drop(domain);
        if answer.send(Answer { link, incarnation, rail, found }).is_err() {
            return;
        }
        waker.wake();
    }
}
