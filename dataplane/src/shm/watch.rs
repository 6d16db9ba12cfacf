//! The one epoll of a transport: what it sleeps on and finds the unexpected with.
#![forbid(unsafe_code)]

use rustix::event::{Timespec, epoll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Events taken at once.
pub(super) const EVENTS: usize = 64;

/// What a watched fd belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Listener,
    Waker,
    /// The doorbell that peers ring.
    Bell,
    Stranger(u32),
    Link(u32),
}

impl Token {
    fn data(self) -> epoll::EventData {
        let (kind, number) = match self {
            Token::Listener => (0u64, 0),
            Token::Waker => (1, 0),
            Token::Bell => (2, 0),
            Token::Stranger(n) => (3, n),
            Token::Link(n) => (4, n),
        };
        epoll::EventData::new_u64(kind << 32 | u64::from(number))
    }

    fn from_data(data: epoll::EventData) -> Token {
        let bits = data.u64();
        match bits >> 32 {
            0 => Token::Listener,
            1 => Token::Waker,
            2 => Token::Bell,
            3 => Token::Stranger(bits as u32),
            _ => Token::Link(bits as u32),
        }
    }
}

pub(super) struct Watch {
    fd: OwnedFd,
    tokens: Vec<Token>,
}

impl Watch {
    pub(super) fn new() -> io::Result<Watch> {
        Ok(Watch { fd: epoll::create(epoll::CreateFlags::CLOEXEC)?, tokens: Vec::with_capacity(EVENTS) })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Watches for something to read, and for the other end's end.
    pub(super) fn add(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        Ok(epoll::add(&self.fd, fd, token.data(), epoll::EventFlags::IN | epoll::EventFlags::RDHUP)?)
    }

    /// Makes a watched fd another's.
    pub(super) fn change(&self, fd: impl AsFd, token: Token) {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if let Err(e) = epoll::modify(&self.fd, fd, token.data(), flags) {
            tracing::error!("epoll_ctl failed: {e}");
        }
    }

    pub(super) fn remove(&self, fd: impl AsFd) {
        // Failing means that it is not watched, which is what is wanted.
        let _ = epoll::delete(&self.fd, fd);
    }

    /// Looks, and returns how many things happened.
    pub(super) fn look(&mut self) -> usize {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; EVENTS];
        // An interrupted look reports nothing; the next one asks again.
        let n = epoll::wait(&self.fd, &mut events, Some(&now)).unwrap_or(0);
        self.tokens.clear();
        self.tokens.extend(events.iter().take(n).map(|e| Token::from_data(e.data)));
        n
    }

    /// The `i`-th of the things that happened.
    pub(super) fn happened(&self, i: usize) -> Option<Token> {
        self.tokens.get(i).copied()
    }
}
