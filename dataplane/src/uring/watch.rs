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
    Stranger(u32),
    Link(u32),
}

impl Token {
    fn data(self) -> epoll::EventData {
        let (kind, number) = match self {
            Token::Listener => (0u64, 0),
            Token::Waker => (1, 0),
            Token::Stranger(n) => (2, n),
            Token::Link(n) => (3, n),
        };
        epoll::EventData::new_u64(kind << 32 | u64::from(number))
    }

    fn from_data(data: epoll::EventData) -> Token {
        let bits = data.u64();
        match bits >> 32 {
            0 => Token::Listener,
            1 => Token::Waker,
            2 => Token::Stranger(bits as u32),
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

    fn flags(room: bool) -> epoll::EventFlags {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if room { flags | epoll::EventFlags::OUT } else { flags }
    }

    /// Watches for something to read, and for room to send if `room`.
    pub(super) fn add(&self, fd: impl AsFd, token: Token, room: bool) -> io::Result<()> {
        Ok(epoll::add(&self.fd, fd, token.data(), Watch::flags(room))?)
    }

    /// Changes what a watched fd is watched for.
    pub(super) fn change(&self, fd: impl AsFd, token: Token, room: bool) {
        if let Err(e) = epoll::modify(&self.fd, fd, token.data(), Watch::flags(room)) {
            tracing::error!("epoll_ctl failed: {e}");
        }
    }

    pub(super) fn remove(&self, fd: impl AsFd) {
        // Failing means that it is not watched, which is what is wanted.
        let _ = epoll::delete(&self.fd, fd);
    }

    /// Waits for up to `timeout_ms` and returns how many things happened.
    pub(super) fn wait(&mut self, timeout_ms: u64) -> usize {
        let timeout = Timespec {
            tv_sec: (timeout_ms / 1000) as i64,
            tv_nsec: ((timeout_ms % 1000) * 1_000_000) as i64,
        };
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; EVENTS];
        // An interrupted wait reports nothing; the next poll asks again.
        let n = epoll::wait(&self.fd, &mut events, Some(&timeout)).unwrap_or(0);
        self.tokens.clear();
        self.tokens.extend(events.iter().take(n).map(|e| Token::from_data(e.data)));
        n
    }

    /// The `i`-th of the things that happened.
    pub(super) fn happened(&self, i: usize) -> Option<Token> {
        self.tokens.get(i).copied()
    }
}
