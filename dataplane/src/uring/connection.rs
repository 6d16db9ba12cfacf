//! The bytes of one connection that stands: staging of small frames, payloads straight from and into place.
#![forbid(unsafe_code)]

use super::driver::{self, Batch, Io, Outcome};
use super::wire::{self, HEADER_BYTES};
use crate::transport::matching::header::{self, Whole};
use crate::transport::matching::{Body, FRAME_BYTES, Frame, Incoming, Kind, Matcher, Retired, SlotId};
use crate::transport::{Cause, CauseKind, Event, Found, Note, Peer, Stamp};
use socket2::Socket;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// Size of each staging buffer.
const STAGE_BYTES: usize = 64 << 10;
/// Payloads up to this many bytes are copied beside their header, so that one call sends many of them.
const COPY_BYTES: usize = 8 << 10;
/// Payloads with at least this much outstanding are received straight into place.
const DIRECT_BYTES: usize = 8 << 10;
/// How much is read into the staging buffer while a large message is arriving: little, since what follows its
/// header belongs elsewhere.
const STREAM_STAGE_BYTES: usize = 4 << 10;
/// What stands in for the payload of a frame whose send was withdrawn; the peer throws it away.
static FILLER: [u8; 16 << 10] = [0; 16 << 10];

enum Source {
    Send { slot: SlotId, offset: usize },
    Kept { bytes: Vec<u8>, at: usize },
}

/// The payload of the frame whose header was staged last.
struct Tail {
    source: Source,
    left: usize,
}

/// Bytes going out.
struct Outgoing {
    stage: Box<[u8]>,
    start: usize,
    end: usize,
    tail: Option<Tail>,
    blocked: bool,
}

/// Bytes coming in.
struct Arriving {
    stage: Box<[u8]>,
    start: usize,
    end: usize,
    body: Option<Body>,
    streaming: bool,
    messages: u64,
}

/// What a connection has come to.
pub(super) enum Verdict {
    /// It goes on; whether any byte moved.
    On(bool),
    /// The peer has said goodbye.
    Left,
    /// It is over.
    Lost(Cause),
}

/// A connection after its greeting.
pub(super) struct Connection {
    socket: Socket,
    pub(super) remote: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) since: Instant,
    out: Outgoing,
    arriving: Arriving,
    /// What a send at once met. A socket tells its error once, and is at its end from then on.
    met: Option<rustix::io::Errno>,
}

fn stage() -> Box<[u8]> {
    vec![0; STAGE_BYTES].into_boxed_slice()
}

impl Connection {
    pub(super) fn new(socket: Socket, local: SocketAddr, remote: SocketAddr) -> Connection {
        Connection {
            socket,
            remote,
            local,
            since: Instant::now(),
            out: Outgoing { stage: stage(), start: 0, end: 0, tail: None, blocked: false },
            arriving: Arriving {
                stage: stage(),
                start: 0,
                end: 0,
                body: None,
                streaming: false,
                messages: 0,
            },
            met: None,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether bytes wait to go out.
    pub(super) fn has_output(&self) -> bool {
        self.out.start < self.out.end || self.out.tail.is_some()
    }

    /// Whether the last attempt to send found the socket full.
    pub(super) fn is_blocked(&self) -> bool {
        self.out.blocked && self.has_output()
    }

    /// Whether a frame is arriving.
    pub(super) fn in_frame(&self) -> bool {
        self.arriving.body.is_some() || self.arriving.start < self.arriving.end
    }

    /// Stages a frame without payload. `false`: no room now.
    pub(super) fn stage_frame(&mut self, frame: &Frame) -> bool {
        self.out.tail.is_none() && self.out.append(frame, &[])
    }

    /// Stages what there is to send. Completions of small sends come from here.
    pub(super) fn fill(
        &mut self,
        matcher: &mut Matcher,
        notes: &mut VecDeque<Note>,
        events: &mut Vec<Event>,
    ) {
        let out = &mut self.out;
        while out.tail.is_none() && out.make_room() {
            if let Some(note) = notes.pop_front() {
                let frame = Frame { length: note.bytes().len() as u64, ..Frame::bare(Kind::Note) };
                out.append(&frame, note.bytes());
                continue;
            }
            let Some((frame, payload)) = matcher.next_frame(|_, _| FRAME_BYTES) else { return };
            let Some(payload) = payload else {
                out.append(&frame, &[]);
                continue;
            };
            if payload.len <= COPY_BYTES {
                let bytes = matcher.outgoing(payload.slot).map_or(&[][..], |lease| lease.bytes());
                out.append(&frame, bytes.get(payload.offset..payload.offset + payload.len).unwrap_or(&[]));
                matcher.sent(payload.slot, payload.len, events);
            } else {
                out.append(&frame, &[]);
                let source = Source::Send { slot: payload.slot, offset: payload.offset };
                out.tail = Some(Tail { source, left: payload.len });
            }
        }
    }

    /// Before a send whose every frame is handed out is withdrawn: keeps the bytes that are still to go.
    pub(super) fn keep(&mut self, slot: SlotId, matcher: &Matcher) {
        if let Some(Tail { source, left }) = &mut self.out.tail
            && let Source::Send { slot: of, offset } = source
            && *of == slot
            && let Some(bytes) = matcher.outgoing(slot).and_then(|l| l.bytes().get(*offset..*offset + *left))
        {
            *source = Source::Kept { bytes: bytes.to_vec(), at: 0 };
        }
    }

    /// Puts this round's attempts into the batch: at most one send and, if `receive`, one receive.
    pub(super) fn prepare<'a>(&'a mut self, matcher: &'a mut Matcher, receive: bool, batch: &mut Batch<'a>) {
        let fd = self.socket.as_fd();
        let slot = match &self.out.tail {
            Some(Tail { source: Source::Send { slot, .. }, .. }) => Some(*slot),
            _ => None,
        };
        let direct = self.arriving.direct();
        let (lease, incoming) = matcher.spans(slot, if direct { self.arriving.body.as_ref() } else { None });
        let out = &self.out;
        let head = &out.stage[out.start..out.end];
        let (body, region) = match &out.tail {
            None => (&[][..], None),
            Some(Tail { source: Source::Kept { bytes, at }, left }) => {
                (bytes.get(*at..*at + *left).unwrap_or(&[]), None)
            }
            Some(Tail { source: Source::Send { offset, .. }, left }) => match lease {
                Some(lease) => {
                    (lease.bytes().get(*offset..*offset + *left).unwrap_or(&[]), Some(lease.region()))
                }
                None => (&FILLER[..(*left).min(FILLER.len())], None),
            },
        };
        if !head.is_empty() || !body.is_empty() {
            batch.push(Io::Send { fd, head, body, region });
        }
        if !receive {
            return;
        }
        match incoming {
            Some(Incoming { bytes, region }) => batch.push(Io::Recv { fd, into: bytes, region }),
            None => {
                let arriving = &mut self.arriving;
                let end = if arriving.streaming && arriving.body.is_none() {
                    (arriving.end + STREAM_STAGE_BYTES).min(STAGE_BYTES)
                } else {
                    STAGE_BYTES
                };
                batch.push(Io::Recv { fd, into: &mut arriving.stage[arriving.end..end], region: None });
            }
        }
    }

    /// Whether a message of this length can go at once: it is small, and nothing is before it.
    pub(super) fn sends_now(&self, len: usize) -> bool {
        len <= COPY_BYTES && !self.has_output()
    }

    /// Whether the next message, of this length, can be taken at once: it is small, and none is half here.
    pub(super) fn takes_now(&self, len: usize) -> bool {
        len <= COPY_BYTES && !self.in_frame()
    }

    /// Sends a message which [`Self::sends_now`]. What does not leave stays staged; so does all of it upon an error, which a
    /// poll finds when it tries again.
    pub(super) fn send_now(&mut self, head: &Whole<'_>, bytes: &[u8]) {
        let out = &mut self.out;
        let Some((header, rest)) = out.stage.split_first_chunk_mut::<HEADER_BYTES>() else { return };
        header::write_eager(head, 0, header);
        rest[..bytes.len()].copy_from_slice(bytes);
        (out.start, out.end) = (0, HEADER_BYTES + bytes.len());
        let (fd, staged) = (self.socket.as_fd(), &out.stage[..out.end]);
        let sent = driver::attempt(&mut Io::Send { fd, head: staged, body: &[], region: None });
        out.blocked = sent == Err(rustix::io::Errno::AGAIN);
        if let Err(e) = sent {
            let passes = [rustix::io::Errno::AGAIN, rustix::io::Errno::INTR].contains(&e);
            self.met = (!passes).then_some(e);
        }
        out.left(sent.unwrap_or(0));
    }

    /// Looks once for a message which [`Self::takes_now`], and hands its bytes over. Whatever else has come is taken in as
    /// by a poll: nothing stays staged that only another look would find.
    pub(super) fn take_now(
        &mut self,
        peer: Peer,
        (matcher, retired): (&mut Matcher, &Retired),
        expected: (u64, &Stamp, usize),
        take: &mut dyn FnMut(&[u8]),
        events: &mut Vec<Event>,
    ) -> (Found, Verdict) {
        let into = &mut self.arriving.stage[self.arriving.end..];
        match driver::attempt(&mut Io::Recv { fd: self.socket.as_fd(), into, region: None }) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                return (Found::Nothing, Verdict::On(false));
            }
            Ok(n) if n > 0 => self.arriving.end += n,
            over => return (Found::Other, self.after_recv(over, peer, matcher, retired, events)),
        }
        let found = if self.arriving.take(matcher, expected, take) { Found::Message } else { Found::Other };
        (found, self.read(peer, matcher, retired, events))
    }

    /// Takes the outcome of the send.
    pub(super) fn after_send(
        &mut self,
        outcome: Outcome,
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Verdict {
        let n = match outcome {
            Ok(n) => n,
            Err(rustix::io::Errno::AGAIN) => {
                self.out.blocked = true;
                return Verdict::On(false);
            }
            Err(rustix::io::Errno::INTR) => return Verdict::On(false),
            Err(e) => return Verdict::Lost(self.broken(e)),
        };
        let out = &mut self.out;
        out.blocked = false;
        let body = out.left(n);
        if body > 0
            && let Some(tail) = &mut out.tail
        {
            tail.left -= body.min(tail.left);
            match &mut tail.source {
                Source::Send { slot, offset } => {
                    *offset += body;
                    matcher.sent(*slot, body, events);
                }
                Source::Kept { at, .. } => *at += body,
            }
            if tail.left == 0 {
                out.tail = None;
            }
        }
        Verdict::On(true)
    }

    /// Takes the outcome of the receive, and what frames it brought.
    pub(super) fn after_recv(
        &mut self,
        outcome: Outcome,
        peer: Peer,
        matcher: &mut Matcher,
        retired: &Retired,
        events: &mut Vec<Event>,
    ) -> Verdict {
        let n = match outcome {
            Ok(0) => return Verdict::Lost(self.ended()),
            Ok(n) => n,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Verdict::On(false),
            Err(e) => return Verdict::Lost(self.broken(e)),
        };
        let arriving = &mut self.arriving;
        if arriving.direct()
            && let Some(body) = &mut arriving.body
            && matcher.buffer(body).is_some()
        {
            matcher.advance(body, n, events);
            if body.left() == 0 {
                arriving.body = None;
            }
            return Verdict::On(true);
        }
        arriving.end += n;
        self.read(peer, matcher, retired, events)
    }

    /// Takes in what is staged.
    fn read(
        &mut self,
        peer: Peer,
        matcher: &mut Matcher,
        retired: &Retired,
        events: &mut Vec<Event>,
    ) -> Verdict {
        match self.parse(peer, matcher, retired, events) {
            Ok(false) => Verdict::On(true),
            Ok(true) => Verdict::Left,
            Err(what) => Verdict::Lost(self.protocol(&what)),
        }
    }

    /// Consumes the staged bytes. `true`: a goodbye was among them.
    fn parse(
        &mut self,
        peer: Peer,
        matcher: &mut Matcher,
        retired: &Retired,
        events: &mut Vec<Event>,
    ) -> Result<bool, String> {
        let a = &mut self.arriving;
        loop {
            let staged = a.end - a.start;
            if let Some(body) = &mut a.body {
                let n = staged.min(body.left());
                if let Some(into) = matcher.buffer(body) {
                    into[..n].copy_from_slice(&a.stage[a.start..a.start + n]);
                }
                matcher.advance(body, n, events);
                a.start += n;
                if body.left() > 0 {
                    break;
                }
                a.body = None;
                continue;
            }
            let Some(header) = a.stage[a.start..a.end].first_chunk::<HEADER_BYTES>() else { break };
            let frame = wire::decode(header).map_err(|e| e.to_string())?;
            match frame.kind {
                Kind::Bye => return Ok(true),
                Kind::Note => {
                    let len = usize::try_from(frame.length).unwrap_or(usize::MAX);
                    if len > Note::MAX_BYTES {
                        return Err(format!("it sent a note of {len} bytes"));
                    }
                    let from = a.start + HEADER_BYTES;
                    let Some(content) = a.stage[..a.end].get(from..from + len) else { break };
                    if let Some(note) = Note::new(content) {
                        events.push(Event::Note { from: peer, note: Box::new(note) });
                    }
                    a.start = from + len;
                }
                _ => {
                    a.body = matcher.accept(&frame, retired, events).map_err(|v| format!("it {v}"))?;
                    a.streaming = frame.kind == Kind::Data;
                    a.start += HEADER_BYTES;
                }
            }
            a.messages += 1;
        }
        a.compact();
        Ok(false)
    }

    fn broken(&self, e: rustix::io::Errno) -> Cause {
        let e = self.met.unwrap_or(e);
        let kind = CauseKind::Reset;
        Cause::new(kind, format!("{e} on the connection {} -> {}", self.local, self.remote))
    }

    fn ended(&self) -> Cause {
        // A pipe that is broken is one whose peer ended the stream first.
        if let Some(e) = self.met.filter(|e| *e != rustix::io::Errno::PIPE) {
            return self.broken(e);
        }
        let a = &self.arriving;
        let within = match &a.body {
            Some(body) => format!(", with {} bytes of a message still to come", body.left()),
            None => String::new(),
        };
        Cause::new(
            CauseKind::Closed,
            format!("FIN from {} without a goodbye, after {} frames{within}", self.remote, a.messages),
        )
    }

    fn protocol(&self, what: &str) -> Cause {
        let after = self.arriving.messages;
        Cause::new(CauseKind::Protocol, format!("{what} (from {}, after {after} frames)", self.remote))
    }
}

impl Outgoing {
    /// Room for a header and a payload that is copied.
    fn make_room(&mut self) -> bool {
        let need = HEADER_BYTES + COPY_BYTES;
        if STAGE_BYTES - self.end < need && self.start > 0 {
            self.stage.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        STAGE_BYTES - self.end >= need
    }

    /// `n` bytes have left. Returns how many of them were of the tail.
    fn left(&mut self, n: usize) -> usize {
        let staged = n.min(self.end - self.start);
        self.start += staged;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        n - staged
    }

    fn append(&mut self, frame: &Frame, payload: &[u8]) -> bool {
        let body = self.end + HEADER_BYTES;
        let end = body + payload.len();
        if end > STAGE_BYTES {
            return false;
        }
        self.stage[self.end..body].copy_from_slice(&wire::encode(frame));
        self.stage[body..end].copy_from_slice(payload);
        self.end = end;
        true
    }
}

impl Arriving {
    /// Hands over the first message that is staged, if it is whole and the expected one.
    fn take(
        &mut self,
        matcher: &mut Matcher,
        expected: (u64, &Stamp, usize),
        take: &mut dyn FnMut(&[u8]),
    ) -> bool {
        let staged = &self.stage[self.start..self.end];
        let Some((header, rest)) = staged.split_first_chunk::<HEADER_BYTES>() else { return false };
        let head = header::read_eager(header).filter(|_| header[1] == 0);
        let (Some(head), Some(payload)) = (head, rest.get(..expected.2)) else { return false };
        if !matcher.take_unposted(&head, expected) {
            return false;
        }
        take(payload);
        self.start += HEADER_BYTES + expected.2;
        self.streaming = false;
        self.messages += 1;
        true
    }

    /// Whether the next bytes go straight into place.
    fn direct(&self) -> bool {
        self.start == self.end && self.body.as_ref().is_some_and(|b| b.left() >= DIRECT_BYTES)
    }

    fn compact(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            // What is left is less than a header, or a header and a note.
            self.stage.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}
