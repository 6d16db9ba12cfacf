//! From a dialled or accepted socket to an agreement with the right peer. A1, A2 and A3 hold here.
#![forbid(unsafe_code)]

use super::attach::{self, Credentials};
use super::device::{Published, Shown};
use super::segment::{Bell, Segment, Window};
use super::wire::{GREETING_BYTES, Greeting, Identity, Offer};
use crate::transport::authentication::Nonce;
use crate::transport::matching::Agreed;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Most descriptors of a greeting: queue, doorbell, word, blocks.
const MAX_FDS: usize = 4;

/// What has come over a socket.
pub(super) enum Heard {
    /// Nothing yet.
    Nothing,
    /// A greeting, with its descriptors.
    Greeting(Greeting, Vec<OwnedFd>),
    /// The other end is gone.
    Ended,
    /// Something else.
    Nonsense(String),
}

/// Sends a greeting. Sockets hold many times as much, so one that has no room is broken.
pub(super) fn say(socket: &OwnedFd, greeting: &Greeting, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = greeting.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors in a greeting"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(())
}

/// Takes what has come.
pub(super) fn hear(socket: &OwnedFd) -> Heard {
    let mut bytes = [0u8; GREETING_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    match received {
        Ok(got) if got.bytes == 0 => Heard::Ended,
        Ok(got) if got.bytes == GREETING_BYTES => match Greeting::decode(&bytes) {
            Ok(greeting) => Heard::Greeting(greeting, fds),
            Err(why) => Heard::Nonsense(why),
        },
        Ok(got) => Heard::Nonsense(format!("it sent {} bytes instead of a greeting", got.bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
        Err(Errno::CONNRESET | Errno::PIPE) => Heard::Ended,
        Err(e) => Heard::Nonsense(e.to_string()),
    }
}

/// Whether the other end of a socket is there.
pub(super) fn is_alive(socket: &OwnedFd) -> bool {
    let mut byte = [0u8; 1];
    let peeked = rustix::net::recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
    matches!(peeked, Err(Errno::AGAIN | Errno::INTR))
}

/// What goes with a greeting of this side.
pub(super) fn fds<'a>(queue: Option<&'a OwnedFd>, shown: &'a Shown) -> Vec<BorrowedFd<'a>> {
    let mut fds: Vec<BorrowedFd<'_>> = queue.map(|f| f.as_fd()).into_iter().collect();
    fds.extend([shown.doorbell.as_fd(), shown.bell_file.as_fd()]);
    fds.extend(shown.blocks.as_ref().ok().map(|f| f.as_fd()));
    fds
}

/// What a peer has shown.
#[derive(Debug)]
pub(super) struct Other {
    /// Rung while it sleeps.
    pub(super) doorbell: OwnedFd,
    pub(super) bell: Bell,
    /// Its blocks, or why they are not to be read.
    pub(super) window: Result<Arc<Window>, String>,
    /// Its process, if its memory can be read, or why not.
    pub(super) attach: Result<u32, String>,
}

/// What this side is willing to do to read a peer's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    pub(super) map: bool,
    pub(super) attach: bool,
}

impl Other {
    /// Maps what came with a greeting, the queue of a `Hello` taken out before, and tries to read the peer's memory.
    ///
    /// # Errors
    /// In words.
    pub(super) fn new(
        socket: &OwnedFd,
        offer: &Offer,
        fds: Vec<OwnedFd>,
        means: Means,
    ) -> Result<Other, String> {
        let mut fds = fds.into_iter();
        let (Some(doorbell), Some(bell)) = (fds.next(), fds.next()) else {
            return Err("it does not show its doorbell and word".to_owned());
        };
        // Ringing must not block.
        let flags = fcntl_getfl(&doorbell).map_err(|e| e.to_string())?;
        if !flags.contains(OFlags::NONBLOCK) {
            return Err("its doorbell would block".to_owned());
        }
        let bell = Bell::of_peer(&bell).map_err(|e| e.to_string())?;
        let window = match fds.next() {
            _ if !means.map => Err("switched off".to_owned()),
            Some(blocks) => Window::new(&blocks).map(Arc::new).map_err(|e| e.to_string()),
            None => Err("it does not show them".to_owned()),
        };
        Ok(Other { doorbell, bell, window, attach: probe(socket, offer, means) })
    }
}

/// Tries to read the peer's memory, once and for real: there are many ways to forbid it.
fn probe(socket: &OwnedFd, offer: &Offer, means: Means) -> Result<u32, String> {
    if !means.attach {
        return Err("as chosen".to_owned());
    }
    let pid = match attach::credentials(socket) {
        Ok(Credentials { pid: 0, .. }) => return Err("in a process namespace out of sight".to_owned()),
        Ok(Credentials { pid, .. }) => pid,
        Err(e) => return Err(e.to_string()),
    };
    let mut word = [0; 8];
    match attach::read(pid, offer.probe_address, &mut word) {
        Ok(()) if u64::from_ne_bytes(word) == offer.probe => Ok(pid),
        Ok(()) => Err(format!("process {pid} is another one")),
        Err(e) => Err(format!("process_vm_readv: {e}")),
    }
}

/// Whether the kernel's word on who is there fits the address.
///
/// # Errors
/// What does not.
pub(super) fn check(socket: &OwnedFd, ours: &Published, theirs: &Published) -> Result<(), String> {
    let found = attach::credentials(socket).map_err(|e| e.to_string())?;
    if found.uid != ours.home.uid {
        return Err(format!("user {} is there", found.uid));
    }
    // Elsewhere process numbers differ.
    if ours.home.processes == theirs.home.processes && found.pid != theirs.pid {
        return Err(format!("process {} is there, and its address says {}", found.pid, theirs.pid));
    }
    Ok(())
}

/// What both sides have agreed on.
pub(super) fn agree(ours: &Offer, theirs: &Offer) -> Agreed {
    Agreed {
        eager_bytes: ours.eager_bytes.min(theirs.eager_bytes).into(),
        their_window: theirs.window_units,
        our_window: ours.window_units,
    }
}

/// A connection that is being dialled.
pub(super) struct Dial {
    /// Since when, for the time limit.
    pub(super) began_ms: u64,
    pub(super) stage: Stage,
}

/// How far a dial is.
pub(super) enum Stage {
    /// Not connected: the listener had too many to accept, or the peer is not admitted here yet.
    Busy,
    /// It has said this of itself, and waits for the listener's proof.
    Knocked { socket: OwnedFd, id: Identity },
    /// Greeted with this queue.
    Greeted { socket: OwnedFd, segment: Segment },
    /// The peer dials by itself.
    Awaited,
}

impl Stage {
    /// The socket on which an answer is waited for.
    pub(super) fn asked(&self) -> Option<&OwnedFd> {
        match self {
            Stage::Busy | Stage::Awaited => None,
            Stage::Knocked { socket, .. } | Stage::Greeted { socket, .. } => Some(socket),
        }
    }
}

/// An accepted connection that is no peer's yet.
pub(super) struct Stranger {
    pub(super) socket: OwnedFd,
    pub(super) number: u32,
    /// Its process, as the kernel has it.
    pub(super) pid: u32,
    /// Since when it is this far.
    pub(super) since_ms: u64,
    pub(super) said: Said,
}

/// What a stranger has said.
#[derive(Clone, Copy)]
pub(super) enum Said {
    Nothing,
    /// Who it is. It waits to be introduced, and then to be admitted, which `introduced` says.
    Knock {
        id: Identity,
        introduced: bool,
    },
    /// And it was challenged with this.
    Challenged(Identity, Nonce),
}

impl Stranger {
    /// Whether it is this side that is waited for, without a limit.
    pub(super) fn is_patient(&self) -> bool {
        matches!(self.said, Said::Knock { .. })
    }

    /// Whether nothing but its key is missing.
    pub(super) fn wants_key(&self) -> bool {
        matches!(self.said, Said::Knock { introduced: true, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::wire::Refusal;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_greeting_brings_what_is_shown() {
        let (a, b) = pair();
        let shown = Shown::new(true).unwrap();
        let (segment, queue) = Segment::new().unwrap();
        let probe_address = (&raw const *shown.probe).addr() as u64;
        let offer = Offer { probe_address, probe: *shown.probe, ..Offer::default() };
        assert!(matches!(hear(&b), Heard::Nothing) && is_alive(&b));
        say(&a, &Greeting::Hello(offer, [1; 32]), &fds(Some(&queue), &shown)).unwrap();
        let Heard::Greeting(Greeting::Hello(heard, _), mut got) = hear(&b) else { panic!("no greeting") };
        assert_eq!((heard, got.len()), (offer, 4));
        let theirs = Segment::of_peer(&got.remove(0)).unwrap();
        let other = Other::new(&b, &offer, got, Means { map: true, attach: true }).unwrap();
        assert!(other.window.is_ok(), "{:?}", other.window);
        println!("attach: {:?}", other.attach);
        let (mut out, mut into) = (segment.ends(true).0, theirs.ends(false).1);
        out.push(&[1; 64], &[]);
        assert!(into.header().unwrap().is_some());
        let off = Other::new(&b, &offer, Vec::new(), Means { map: false, attach: false });
        assert!(off.unwrap_err().contains("doorbell"));
    }

    #[test]
    fn nonsense_and_the_end_are_told_apart() {
        let (a, b) = pair();
        rustix::net::send(&a, &[1; 20], SendFlags::empty()).unwrap();
        assert!(matches!(hear(&b), Heard::Nonsense(why) if why.contains("20 bytes")));
        rustix::net::send(&a, &[1; GREETING_BYTES], SendFlags::empty()).unwrap();
        assert!(matches!(hear(&b), Heard::Nonsense(_)));
        say(&a, &Greeting::Refuse(Ok(Refusal::Unproven)), &[]).unwrap();
        assert!(
            matches!(hear(&b), Heard::Greeting(Greeting::Refuse(Ok(Refusal::Unproven)), fds) if fds.is_empty())
        );
        drop(a);
        assert!(matches!(hear(&b), Heard::Ended) && !is_alive(&b));
    }

    #[test]
    fn another_process_than_the_address_says_is_refused() {
        let (a, _b) = pair();
        let home = crate::shm::device::Home::here().unwrap();
        let me = Published { home, pid: std::process::id(), ..Published::default() };
        assert_eq!(check(&a, &me, &me), Ok(()));
        assert!(check(&a, &me, &Published { pid: 1, ..me }).unwrap_err().contains("its address says 1"));
        let elsewhere = crate::shm::device::Home { uid: 77, ..home };
        assert!(check(&a, &Published { home: elsewhere, ..me }, &me).is_err());
    }
}
