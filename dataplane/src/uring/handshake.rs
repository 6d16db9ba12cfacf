//! From a dialled or accepted socket to an agreement with the right peer, or a reason why not.
//!
//! Both sides prove themselves as [`crate::transport::authentication`] says: A1, A2 and A3 hold here.
#![forbid(unsafe_code)]

use super::device;
use super::wire::{GREETING_BYTES, Greeting, Identity, Refusal, plausible};
use crate::transport::authentication::{Keyring, Nonce, Proof, nonce};
use crate::transport::limits::own_limit;
use crate::transport::matching::Agreed;
use crate::transport::{Cause, CauseKind};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::Socket;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// First pause after all addresses failed; doubles up to [`MAX_BACKOFF_MS`].
const FIRST_BACKOFF_MS: u64 = 1;
/// Longest pause between attempts.
const MAX_BACKOFF_MS: u64 = 100;
/// How long one address may take to connect while there are others to try.
const ONE_ADDRESS_MS: u64 = 1_000;
/// How long this process may be out of file descriptors before a dial fails by that.
const OWN_LIMIT_MS: u64 = 1_000;
/// Failures that are remembered for the report.
const MAX_ERRORS: usize = 6;

/// Bytes of a greeting as they come.
struct Reading {
    bytes: [u8; GREETING_BYTES],
    got: usize,
}

enum Read {
    Partly,
    Whole(Greeting),
    /// The other side ended it, before it said anything wrong.
    Ended(String),
    Failed(String),
}

impl Reading {
    fn new() -> Reading {
        Reading { bytes: [0; GREETING_BYTES], got: 0 }
    }

    fn pull(&mut self, socket: &Socket) -> Read {
        while self.got < GREETING_BYTES {
            // Never reads past the greeting: what follows is the connection's.
            match recv(socket, &mut self.bytes[self.got..], RecvFlags::DONTWAIT).map(|(n, _)| n) {
                Ok(0) => return Read::Ended("it closed the connection before a greeting".into()),
                Ok(n) => self.got += n,
                Err(Errno::AGAIN) => {
                    let first = &self.bytes[..self.got];
                    return if plausible(first) {
                        Read::Partly
                    } else {
                        Read::Failed(format!("it begins with {first:02x?}, which is not Ringway's protocol"))
                    };
                }
                Err(Errno::INTR) => {}
                Err(e) => return Read::Ended(e.to_string()),
            }
            if !plausible(&self.bytes[..self.got]) {
                let first = &self.bytes[..self.got.min(16)];
                let text = String::from_utf8_lossy(first).into_owned();
                return Read::Failed(format!("it begins with {text:?}, which is not Ringway's protocol"));
            }
        }
        match Greeting::decode(&self.bytes) {
            Ok(greeting) => Read::Whole(greeting),
            Err(e) => Read::Failed(e.to_string()),
        }
    }
}

/// Sends a greeting into an empty socket: it fits, or the connection is broken.
pub(super) fn greet(socket: &Socket, greeting: &Greeting) -> Result<(), String> {
    match send(socket, &greeting.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(GREETING_BYTES) => Ok(()),
        Ok(n) => Err(format!("only {n} bytes of a greeting could be sent")),
        Err(e) => Err(e.to_string()),
    }
}

/// What both sides offer, combined.
pub(super) fn agree(ours: &Identity, theirs: &Identity) -> Agreed {
    Agreed {
        eager_bytes: ours.eager_bytes.min(theirs.eager_bytes).into(),
        their_window: theirs.window_units,
        our_window: ours.window_units,
    }
}

enum Attempt {
    Connecting {
        socket: Socket,
        to: SocketAddr,
        since: Instant,
    },
    /// Connected; the listener's challenge is waited for.
    Challenged {
        socket: Socket,
        to: SocketAddr,
        reading: Reading,
    },
    /// The hello is out, with this proof.
    Greeted {
        socket: Socket,
        to: SocketAddr,
        reading: Reading,
        proof: Proof,
    },
}

/// An attempt to reach one peer: all its addresses in order, again and again until the deadline.
pub(super) struct Dial {
    hello: Identity,
    keys: Keyring,
    candidates: Vec<SocketAddr>,
    next: usize,
    attempt: Option<Attempt>,
    errors: Vec<String>,
    /// Since when this side's own limit keeps it from dialling, and which.
    own_limit: Option<(Instant, String)>,
    attempts: u32,
    began: Instant,
    deadline: Instant,
    retry_at: Instant,
    backoff_ms: u64,
    buffer_bytes: Option<u32>,
}

/// What a step of dialling has come to.
pub(super) enum Dialled {
    /// Nothing new.
    Waiting,
    /// A new socket is being connected: watch it.
    Watch,
    /// An agreement.
    Welcome(Socket, SocketAddr, Identity),
    /// Given up.
    Failed(Cause),
}

impl Dial {
    pub(super) fn new(
        hello: Identity,
        keys: Keyring,
        candidates: Vec<SocketAddr>,
        timeout_ms: u64,
        buffer_bytes: Option<u32>,
    ) -> Dial {
        let now = Instant::now();
        Dial {
            hello,
            keys,
            candidates,
            next: 0,
            attempt: None,
            errors: Vec::new(),
            own_limit: None,
            attempts: 0,
            began: now,
            deadline: now + Duration::from_millis(timeout_ms),
            retry_at: now,
            backoff_ms: FIRST_BACKOFF_MS,
            buffer_bytes,
        }
    }

    /// The socket being connected or greeted on.
    pub(super) fn socket(&self) -> Option<(&Socket, bool)> {
        match self.attempt.as_ref()? {
            Attempt::Connecting { socket, .. } => Some((socket, true)),
            Attempt::Challenged { socket, .. } | Attempt::Greeted { socket, .. } => Some((socket, false)),
        }
    }

    /// Whether the other side is known to listen and may take this attempt up, so that it is the one to keep (C1).
    pub(super) fn is_greeted(&self) -> bool {
        matches!(self.attempt, Some(Attempt::Greeted { .. }))
    }

    /// When to step next, if nothing happens on the socket.
    pub(super) fn due(&self) -> Instant {
        match &self.attempt {
            None => self.retry_at.min(self.deadline),
            Some(Attempt::Connecting { since, .. }) if self.candidates.len() > 1 => {
                (*since + Duration::from_millis(ONE_ADDRESS_MS)).min(self.deadline)
            }
            Some(_) => self.deadline,
        }
    }

    fn note_failure(&mut self, to: SocketAddr, why: &str) {
        let line = format!("{to}: {why}");
        if self.errors.last() != Some(&line) {
            if self.errors.len() == MAX_ERRORS {
                self.errors.remove(0);
            }
            self.errors.push(line);
        }
        self.attempt = None;
        self.next += 1;
        if self.next == self.candidates.len() {
            self.next = 0;
            self.retry_at = Instant::now() + Duration::from_millis(self.backoff_ms);
            self.backoff_ms = (self.backoff_ms * 2).min(MAX_BACKOFF_MS);
        }
    }

    /// Does what can be done now, without waiting.
    pub(super) fn step(&mut self) -> Dialled {
        let now = Instant::now();
        if now >= self.deadline {
            return Dialled::Failed(self.unreachable());
        }
        match self.attempt.take() {
            None if now < self.retry_at => Dialled::Waiting,
            None => self.begin(now),
            Some(Attempt::Connecting { socket, to, since }) => self.connecting(now, socket, to, since),
            Some(Attempt::Challenged { socket, to, reading }) => self.challenged(socket, to, reading),
            Some(Attempt::Greeted { socket, to, reading, proof }) => self.greeted(socket, to, reading, proof),
        }
    }

    fn begin(&mut self, now: Instant) -> Dialled {
        let Some(to) = self.candidates.get(self.next).copied() else {
            return Dialled::Failed(self.unreachable());
        };
        self.attempts += 1;
        match device::dial(to, self.buffer_bytes) {
            Ok(socket) => {
                self.own_limit = None;
                self.attempt = Some(Attempt::Connecting { socket, to, since: now });
                Dialled::Watch
            }
            Err(e) => {
                self.note_failure(to, &e.to_string());
                match own_limit(&e) {
                    Some(why) => {
                        let (since, _) = self.own_limit.get_or_insert((now, why));
                        if now.duration_since(*since) >= Duration::from_millis(OWN_LIMIT_MS) {
                            return Dialled::Failed(self.unreachable());
                        }
                    }
                    None => self.own_limit = None,
                }
                Dialled::Waiting
            }
        }
    }

    fn connecting(&mut self, now: Instant, socket: Socket, to: SocketAddr, since: Instant) -> Dialled {
        let failure = match socket.take_error() {
            Ok(None) => None,
            Ok(Some(e)) | Err(e) => Some(e.to_string()),
        };
        if let Some(why) = failure {
            self.note_failure(to, &why);
            return Dialled::Waiting;
        }
        if socket.peer_addr().is_err() {
            if self.candidates.len() > 1 && now >= since + Duration::from_millis(ONE_ADDRESS_MS) {
                self.note_failure(to, &format!("no answer within {ONE_ADDRESS_MS} ms"));
            } else {
                self.attempt = Some(Attempt::Connecting { socket, to, since });
            }
            return Dialled::Waiting;
        }
        // With nobody listening, a socket on the dialled port may meet itself.
        if socket.local_addr().ok().and_then(|a| a.as_socket()) == Some(to) {
            self.note_failure(to, "nobody listens");
            return Dialled::Waiting;
        }
        self.challenged(socket, to, Reading::new())
    }

    /// Waits for the listener's nonce, and says hello.
    fn challenged(&mut self, socket: Socket, to: SocketAddr, mut reading: Reading) -> Dialled {
        let said = match reading.pull(&socket) {
            Read::Partly => {
                self.attempt = Some(Attempt::Challenged { socket, to, reading });
                return Dialled::Waiting;
            }
            Read::Ended(why) | Read::Failed(why) => Err(why),
            Read::Whole(Greeting::Challenge(challenge)) => self.say_hello(&socket, &challenge),
            Read::Whole(_) => Err("it did not begin with a challenge".into()),
        };
        match said {
            Ok(proof) => self.greeted(socket, to, Reading::new(), proof),
            Err(why) => {
                self.note_failure(to, &why);
                Dialled::Waiting
            }
        }
    }

    /// A2: a nonce for this attempt alone.
    fn say_hello(&mut self, socket: &Socket, challenge: &Nonce) -> Result<Proof, String> {
        let key = self.keys.key(self.hello.to_incarnation).ok_or("it is not admitted here yet")?;
        self.hello.nonce = nonce().map_err(|e| format!("the kernel gives no random bytes: {e}"))?;
        let proof = self.hello.prove_dialler(&key, challenge);
        greet(socket, &Greeting::Hello(self.hello, proof))?;
        Ok(proof)
    }

    /// Whether who answers is the one that was asked for.
    fn is_right(&self, id: &Identity, ours: &Proof, theirs: &Proof) -> bool {
        let hello = &self.hello;
        (id.from, id.to) == (hello.to, hello.from)
            && (id.from_incarnation, id.to_incarnation) == (hello.to_incarnation, hello.from_incarnation)
            && self.keys.key(id.from_incarnation).is_some_and(|key| id.is_listener(&key, ours, theirs))
    }

    fn greeted(&mut self, socket: Socket, to: SocketAddr, mut reading: Reading, proof: Proof) -> Dialled {
        let why = match reading.pull(&socket) {
            Read::Partly => {
                self.attempt = Some(Attempt::Greeted { socket, to, reading, proof });
                return Dialled::Waiting;
            }
            Read::Ended(why) | Read::Failed(why) => why,
            Read::Whole(Greeting::Welcome(id, theirs)) => {
                if self.is_right(&id, &proof, &theirs) {
                    return Dialled::Welcome(socket, to, id);
                }
                "another process answered in its place".into()
            }
            Read::Whole(Greeting::Refuse(Ok(why @ (Refusal::NotYet | Refusal::UseMine)))) => {
                why.words().into()
            }
            Read::Whole(Greeting::Refuse(why)) => {
                let words = match why {
                    Ok(why) => why.words().to_string(),
                    Err(code) => format!("refusal {code}, which this release does not know"),
                };
                return Dialled::Failed(Cause::new(CauseKind::Refused, format!("{to} refused: {words}")));
            }
            Read::Whole(Greeting::Hello(..)) => "it greeted as a dialler".into(),
            Read::Whole(Greeting::Challenge(_)) => "it challenged twice".into(),
        };
        self.note_failure(to, &why);
        Dialled::Waiting
    }

    fn unreachable(&self) -> Cause {
        if let Some((_, why)) = &self.own_limit {
            return Cause::new(CauseKind::Local, format!("{why}, so that no socket could be made"));
        }
        let waited_ms = self.began.elapsed().as_millis();
        let errors = if self.errors.is_empty() { "no answer".into() } else { self.errors.join("; ") };
        Cause::new(
            CauseKind::Unreachable,
            format!(
                "not reached within {waited_ms} ms and {} attempts at {:?} ({errors})",
                self.attempts, self.candidates
            ),
        )
    }
}

/// An accepted connection that has not said who it is.
pub(super) struct Stranger {
    pub(super) socket: Socket,
    pub(super) remote: SocketAddr,
    pub(super) deadline: Instant,
    pub(super) number: u32,
    /// What it was challenged with.
    challenge: Nonce,
    reading: Reading,
}

/// What a stranger has said.
pub(super) enum Said {
    /// Not enough yet.
    Nothing,
    /// Who it is and whom it wants.
    Hello(Identity, Proof),
    /// Nothing wrong, and nothing more: it ended the connection.
    Ended(String),
    /// Something else.
    Nonsense(String),
}

impl Stranger {
    /// One that is to be challenged.
    pub(super) fn new(
        socket: Socket,
        remote: SocketAddr,
        number: u32,
        timeout_ms: u64,
    ) -> Result<Stranger, String> {
        let deadline = Instant::now() + Duration::from_millis(timeout_ms);
        let challenge = nonce().map_err(|e| format!("the kernel gives no random bytes: {e}"))?;
        Ok(Stranger { socket, remote, deadline, number, challenge, reading: Reading::new() })
    }

    pub(super) fn challenge(&self) -> Result<(), String> {
        greet(&self.socket, &Greeting::Challenge(self.challenge))
    }

    pub(super) fn listen(&mut self) -> Said {
        match self.reading.pull(&self.socket) {
            Read::Partly => Said::Nothing,
            Read::Whole(Greeting::Hello(id, proof)) => Said::Hello(id, proof),
            Read::Whole(_) => Said::Nonsense("it answered a greeting that was never sent".into()),
            Read::Ended(why) => Said::Ended(why),
            Read::Failed(why) => Said::Nonsense(why),
        }
    }

    /// Whether it has proven to be who it says.
    pub(super) fn is_proven(&self, id: &Identity, proof: &Proof, keys: &Keyring) -> bool {
        keys.key(id.from_incarnation).is_some_and(|key| id.is_dialler(&key, &self.challenge, proof))
    }

    /// What it is welcomed with, once it has proven itself with `proof`.
    pub(super) fn welcome(&self, mut me: Identity, proof: &Proof, keys: &Keyring) -> Option<Greeting> {
        me.nonce = self.challenge;
        let key = keys.key(me.to_incarnation)?;
        Some(Greeting::Welcome(me, me.prove_listener(&key, proof)))
    }
}
