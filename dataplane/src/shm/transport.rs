//! The transport: peers, operations and progress.
#![forbid(unsafe_code)]

use super::connection::Verdict;
use super::device::{self, Home, Published, Shown};
use super::handshake::Stage;
use super::links::{Channel, Link, Way};
use super::queue::Sleeper;
use super::segment;
use super::strangers::{Door, PAUSE_MS};
use super::watch::{Token, Watch};
use super::{Config, MAX_DEPTH, MAX_EAGER_BYTES, MAX_MESSAGE_BYTES, MAX_NOTES, WITHDRAW_MS};
use crate::memory::shared::ALIGN;
use crate::memory::{ForeignBytes, ReadLease, Region, RegionId, place_in_arena};
use crate::transport::matching::{Matcher, Retired};
use crate::transport::{
    Address, Caps, Cause, CauseKind, Completion, ConnectError, Copies, Event, Found, Note, Op, OpId, Peer,
    PostError, RegionKey, RegisterError, Sight, Stamp, Tag, Transport, Waker,
};
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

/// Polls without anything to do between two looks at what needs a system call. A thread that waits sleeps before long
/// anyway, which looks too.
const LOOK_EVERY: u32 = 4096;
/// A poll that moves something takes as long as so many others, at least.
const BUSY_POLL: u32 = 64;
/// Largest peer number, since peers are found by index.
const MAX_PEER: u32 = 1 << 22;
const NOBODY: u32 = u32::MAX;

/// Why a transport could not be made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system does not say who this process is.
    #[error("this process cannot tell others where it runs ({0}): mount /proc, or set RINGWAY_SHM=off")]
    Home(std::io::Error),
    /// The system refused memory, a socket or a descriptor.
    #[error("the system refused what shared memory needs ({0}): raise ulimit -n, or set RINGWAY_SHM=off")]
    System(#[from] std::io::Error),
    /// A setting is out of range.
    #[error("depth is {depth}, and must be from 1 to {MAX_DEPTH}")]
    Depth {
        /// What was asked for.
        depth: u32,
    },
}

/// Makes channels alike.
pub(super) struct Maker {
    depth: u32,
    window_bytes: usize,
}

impl Maker {
    pub(super) fn make(&self, peer: Peer) -> Box<Channel> {
        let matcher =
            Matcher::new(peer, self.depth, self.window_bytes).pulling().at_once(MAX_EAGER_BYTES as u64);
        Box::new(Channel {
            matcher,
            notes: VecDeque::new(),
            way: Way::None,
            withdrawing_ms: None,
            at_once_bytes: 0,
        })
    }
}

/// Shared memory to any number of processes of this host.
pub struct ShmTransport {
    pub(super) config: Config,
    pub(super) published: Published,
    pub(super) shown: Shown,
    pub(super) listener: Option<OwnedFd>,
    pub(super) watch: Watch,
    waker: Waker,
    sleeper: Sleeper,
    pub(super) door: Door,
    pub(super) links: Vec<Link>,
    by_peer: Vec<u32>,
    /// Links that are connected.
    pub(super) live: Vec<u32>,
    pub(super) dialling: Vec<u32>,
    pub(super) spare: Maker,
    /// How the payload of channels that are over has moved.
    pub(super) past: Copies,
    retired: Retired,
    pub(super) done: Vec<Event>,
    began: Instant,
    /// As of the last look.
    pub(super) now_ms: u64,
    since_look: u32,
    pub(super) must_look: bool,
}

impl ShmTransport {
    /// Listens at a socket of a name that nobody guesses, and shows the blocks of this process's pools to those that it
    /// lets in.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn new(mut config: Config) -> Result<ShmTransport, OpenError> {
        config.eager_bytes = config.eager_bytes.min(MAX_EAGER_BYTES as u32);
        if config.depth == 0 || config.depth > MAX_DEPTH {
            return Err(OpenError::Depth { depth: config.depth });
        }
        let home = Home::here().map_err(OpenError::Home)?;
        let (watch, waker) = (Watch::new()?, Waker::new()?);
        let (listener, name) = device::listen_anywhere()?;
        let shown = Shown::new(config.map_blocks)?;
        if let Err(why) = &shown.blocks
            && config.map_blocks
        {
            tracing::debug!("blocks of memory are not shown to processes of this host: {why}");
        }
        watch.add(waker.fd(), Token::Waker)?;
        watch.add(&listener, Token::Listener)?;
        watch.add(&shown.doorbell, Token::Bell)?;
        let (number, incarnation) = (config.me, config.incarnation);
        let published = Published { number, incarnation, home, pid: std::process::id(), name };
        let spare = Maker { depth: config.depth, window_bytes: config.eager_window_bytes as usize };
        Ok(ShmTransport {
            config,
            published,
            shown,
            listener: Some(listener),
            watch,
            waker,
            sleeper: Sleeper::default(),
            door: Door::default(),
            links: Vec::new(),
            by_peer: Vec::new(),
            live: Vec::new(),
            dialling: Vec::new(),
            spare,
            past: Copies::default(),
            retired: Retired::default(),
            done: Vec::new(),
            began: Instant::now(),
            now_ms: 0,
            since_look: 0,
            must_look: true,
        })
    }

    pub(super) fn clock_ms(&mut self) -> u64 {
        self.now_ms = self.began.elapsed().as_millis() as u64;
        self.now_ms
    }

    pub(super) fn link_of(&self, peer: u32) -> Option<u32> {
        self.by_peer.get(peer as usize).copied().filter(|at| *at != NOBODY)
    }

    /// The link of a process by what it calls itself; where several lives of it are known, of this one if it is among them.
    pub(super) fn link_of_process(&self, number: u32, incarnation: u64) -> Option<u32> {
        let lives = |exact: bool| {
            let same =
                |l: &Link| l.published.number == number && (!exact || l.published.incarnation == incarnation);
            self.links.iter().position(same).map(|at| at as u32)
        };
        lives(true).or_else(|| lives(false))
    }

    /// Ends a link as lost (T6).
    pub(super) fn lose(&mut self, at: u32, cause: Cause) {
        let link = &mut self.links[at as usize];
        if link.gone.is_some() {
            return;
        }
        link.gone = Some(cause.clone());
        let peer = link.peer;
        if let Some(mut channel) = link.channel.take() {
            // S5: before lent memory is given back.
            if let Way::Up(connection) = &mut channel.way {
                connection.close();
            }
            channel.matcher.fail(&cause, &mut self.done);
            self.past += channel.copies();
        }
        self.forget(at);
        self.done.push(Event::Lost { peer, cause });
    }

    /// A goodbye came: what had arrived can still be taken (T11).
    fn part(&mut self, at: u32) {
        let link = &mut self.links[at as usize];
        let cause = Cause::new(CauseKind::Left, format!("peer {} said goodbye", link.peer.0));
        if let Some(channel) = &mut link.channel {
            channel.matcher.fail(&cause, &mut self.done);
            if let Way::Up(connection) = &channel.way {
                link.window = connection.window().cloned();
            }
            channel.way = Way::None;
            channel.notes.clear();
        }
        link.gone = Some(cause);
        self.done.push(Event::Left { peer: link.peer });
        self.forget(at);
    }

    fn forget(&mut self, at: u32) {
        self.live.retain(|l| *l != at);
        self.dialling.retain(|l| *l != at);
    }

    fn conclude(&mut self, at: u32, verdict: Verdict) -> bool {
        match verdict {
            Verdict::On(moved) => return moved,
            Verdict::Left => self.part(at),
            Verdict::Lost(cause) => self.lose(at, cause),
        }
        true
    }

    /// The channel of a link that is to be used: made and dialled if it is not there yet.
    fn open_channel(&mut self, at: u32) {
        let link = &mut self.links[at as usize];
        let channel = link.channel.get_or_insert_with(|| self.spare.make(link.peer));
        if matches!(channel.way, Way::None) {
            self.dial(at);
        }
    }

    /// Looks at everything that is watched, and at what time may have brought.
    fn look(&mut self) -> bool {
        (self.since_look, self.must_look) = (0, false);
        self.clock_ms();
        let n = self.watch.look();
        let mut moved = false;
        for i in 0..n {
            match self.watch.happened(i) {
                Some(Token::Listener) => self.accept(),
                Some(Token::Stranger(number)) => self.hear_stranger(number),
                Some(Token::Bell) => {
                    let mut counter = [0u8; 8];
                    // Nothing to read means that it was read before.
                    let _ = rustix::io::read(&self.shown.doorbell, &mut counter);
                }
                Some(Token::Link(at)) => moved |= self.hear_link(at),
                Some(Token::Waker) | None => {}
            }
            moved |= matches!(self.watch.happened(i), Some(Token::Listener | Token::Stranger(_)));
        }
        if !self.door.is_quiet() {
            self.tend_door();
        }
        if !self.dialling.is_empty() {
            self.step_dials();
        }
        self.look_at_withdrawals();
        moved
    }

    fn hear_link(&mut self, at: u32) -> bool {
        match self.links[at as usize].channel.as_mut().map(|c| &mut c.way) {
            Some(Way::Up(connection)) => {
                let verdict = connection.hear_socket();
                self.conclude(at, verdict)
            }
            // Its answer is taken with the other dials'.
            Some(Way::Dial(_)) => true,
            Some(Way::None) | None => false,
        }
    }

    /// Gives those up that do not leave withdrawn memory alone (S5).
    fn look_at_withdrawals(&mut self) {
        for i in (0..self.live.len()).rev() {
            let at = self.live[i];
            let Some(channel) = &mut self.links[at as usize].channel else { continue };
            if !channel.matcher.is_withdrawing() {
                channel.withdrawing_ms = None;
                continue;
            }
            let since_ms = *channel.withdrawing_ms.get_or_insert(self.now_ms);
            if self.now_ms >= since_ms + WITHDRAW_MS {
                let why = format!(
                    "it has not confirmed within {WITHDRAW_MS} ms that it leaves a withdrawn send alone"
                );
                self.lose(at, Cause::new(CauseKind::Unreachable, why));
            }
        }
    }

    /// One round for a connected link.
    fn pump(&mut self, at: u32) -> bool {
        let link = &mut self.links[at as usize];
        let Some(channel) = link.channel.as_deref_mut() else { return false };
        let Channel { matcher, notes, way: Way::Up(connection), .. } = channel else { return false };
        let (retired, done) = (&self.retired, &mut self.done);
        let mut verdict = connection.receive(link.peer, matcher, retired, done);
        if let Verdict::On(moved) = verdict
            && matcher.has_pulls()
        {
            verdict = connection.pull(matcher, done).after(moved);
        }
        if let Verdict::On(moved) = verdict
            && (!notes.is_empty() || matcher.has_output())
        {
            verdict = connection.fill(matcher, notes, done).after(moved);
        }
        self.conclude(at, verdict)
    }

    /// Sends what there is to send to one peer.
    fn fill(&mut self, at: u32) -> bool {
        let Some(channel) = self.links[at as usize].channel.as_deref_mut() else { return false };
        let Channel { matcher, notes, way: Way::Up(connection), .. } = channel else { return false };
        let verdict = connection.fill(matcher, notes, &mut self.done);
        self.conclude(at, verdict)
    }

    /// Sends a small message at once, where nothing is before it: it is over then. `false`: post it.
    fn send_small(&mut self, at: u32, tag: Tag, stamp: &Stamp, bytes: &[u8]) -> bool {
        let Some(channel) = self.links[at as usize].channel.as_deref_mut() else { return false };
        let Channel { matcher, notes, way: Way::Up(connection), at_once_bytes, .. } = channel else {
            return false;
        };
        if bytes.len() > MAX_EAGER_BYTES || !notes.is_empty() || !connection.sends_now(bytes.len()) {
            return false;
        }
        let Some(head) = matcher.eager_now(tag, stamp, bytes.len() as u64) else { return false };
        connection.send_now(&head, bytes);
        *at_once_bytes += bytes.len() as u64;
        true
    }

    pub(super) fn progress(&mut self) -> bool {
        if self.sleeper.is_down() {
            self.sleeper.rise(self.shown.bell.word());
            self.must_look = true;
        }
        let mut moved = false;
        if self.must_look || self.since_look >= LOOK_EVERY || !self.dialling.is_empty() {
            moved = self.look();
        }
        let mut i = 0;
        while let Some(at) = self.live.get(i).copied() {
            moved |= self.pump(at);
            i += usize::from(self.live.get(i) == Some(&at));
        }
        self.since_look += if moved { BUSY_POLL } else { 1 };
        moved
    }

    fn take_in(&mut self, peer: Peer, published: Published) {
        match self.link_of(peer.0) {
            Some(at) if self.links[at as usize].published == published => {}
            Some(at) => {
                // Another incarnation.
                self.lose(at, Cause::new(CauseKind::Local, format!("peer {} has a new address", peer.0)));
                self.links[at as usize] = Link::new(peer, published);
            }
            None => {
                let at = self.links.len() as u32;
                self.links.push(Link::new(peer, published));
                let index = peer.0 as usize;
                if self.by_peer.len() <= index {
                    self.by_peer.resize(index + 1, NOBODY);
                }
                self.by_peer[index] = at;
            }
        }
    }
}

impl Verdict {
    /// With what moved before.
    fn after(self, moved: bool) -> Verdict {
        match self {
            Verdict::On(more) => Verdict::On(more || moved),
            over => over,
        }
    }
}

impl Transport for ShmTransport {
    fn caps(&self) -> Caps {
        Caps {
            name: "shm",
            speaks: "shm",
            max_message_bytes: MAX_MESSAGE_BYTES,
            eager_bytes: self.config.eager_bytes.into(),
            depth: self.config.depth,
            registers: false,
            sleepable: true,
            withdraws_alone: false,
            in_process: false,
        }
    }

    fn address(&self) -> Address {
        self.published.encode()
    }

    fn register(&mut self, _: &Region) -> Result<RegionKey, RegisterError> {
        Err(RegisterError::Useless)
    }

    fn deregister(&mut self, _: RegionId) {}

    fn connect(&mut self, peer: Peer, to: &Address) -> Result<(), ConnectError> {
        let bad = |why: &str| ConnectError::BadAddress { peer, why: why.to_owned() };
        let published = Published::decode(to).map_err(|why| bad(&why))?;
        if peer.0 > MAX_PEER {
            return Err(bad("the peer's number is too high"));
        }
        if (published.number, published.incarnation) == (self.config.me, self.config.incarnation) {
            return Err(bad("it is this side's own"));
        }
        device::route(&self.published.home, &published.home)
            .map_err(|why| ConnectError::NoRoute { peer, why: why.to_owned() })?;
        self.take_in(peer, published);
        self.answer_waiting();
        Ok(())
    }

    fn close(&mut self, peer: Peer, why: Cause) {
        if let Some(at) = self.link_of(peer.0) {
            self.lose(at, why);
        }
    }

    fn post(&mut self, id: OpId, op: Op) -> Result<(), (PostError, Op)> {
        let peer = op.peer();
        let Some(at) = self.link_of(peer.0) else { return Err((PostError::Unknown(peer), op)) };
        if op.len() as u64 > MAX_MESSAGE_BYTES {
            let error = PostError::TooLong { bytes: op.len() as u64, limit_bytes: MAX_MESSAGE_BYTES };
            return Err((error, op));
        }
        if op.is_on_device() {
            return Err((PostError::OnDevice { peer, why: "shared memory is read by processors" }, op));
        }
        let link = &self.links[at as usize];
        if let Some(cause) = &link.gone {
            // T11: what had arrived before a goodbye is still delivered.
            let arrived = matches!(&op, Op::Recv { tag, .. } if cause.kind == CauseKind::Left
                && link.channel.as_ref().is_some_and(|c| c.matcher.has_arrived(tag.to_u64())));
            if !arrived {
                return Err((PostError::Gone { peer, cause: cause.clone() }, op));
            }
        } else {
            self.open_channel(at);
        }
        if let Op::Send { tag, stamp, bytes, .. } = &op
            && bytes.len() <= self.config.eager_bytes as usize
            && self.send_small(at, *tag, stamp, bytes.bytes())
        {
            let lease = op.into_lease();
            self.done.push(Event::Done(Completion { id, result: Ok(()), lease }));
            return Ok(());
        }
        let (posted, speaks) = match &mut self.links[at as usize].channel {
            Some(channel) => {
                let posted = channel.matcher.post(id, op, &mut self.done);
                (posted, channel.matcher.has_output())
            }
            None => (Err(op), false),
        };
        match posted {
            Ok(()) => {
                // What there is to say goes out at once: the caller may have more to do before it polls.
                if speaks {
                    self.fill(at);
                }
                Ok(())
            }
            Err(op) => Err((PostError::Full(peer), op)),
        }
    }

    fn send_now(&mut self, to: Peer, tag: Tag, stamp: &Stamp, bytes: &[u8]) -> bool {
        let at = self.link_of(to.0).filter(|at| self.links[*at as usize].gone.is_none());
        at.is_some_and(|at| self.send_small(at, tag, stamp, bytes))
    }

    fn cancel(&mut self, id: OpId) {
        for at in 0..self.links.len() as u32 {
            let Some(channel) = &mut self.links[at as usize].channel else { continue };
            if channel.matcher.cancel(id, &mut self.done) {
                self.must_look = true;
                self.fill(at);
                return;
            }
        }
    }

    fn note(&mut self, to: Peer, note: &Note) -> Result<(), PostError> {
        let at = self.link_of(to.0).ok_or(PostError::Unknown(to))?;
        if let Some(cause) = &self.links[at as usize].gone {
            return Err(PostError::Gone { peer: to, cause: cause.clone() });
        }
        self.open_channel(at);
        match &mut self.links[at as usize].channel {
            Some(channel) if channel.notes.len() < MAX_NOTES => channel.notes.push_back(*note),
            _ => return Err(PostError::Full(to)),
        }
        Ok(())
    }

    fn show(&mut self, to: Peer, bytes: &ReadLease) -> Option<Sight> {
        let link = &self.links[self.link_of(to.0)? as usize];
        let connected = matches!(link.channel.as_ref()?.way, Way::Up(_));
        if !connected || self.shown.blocks.is_err() {
            return None;
        }
        let offset = place_in_arena(bytes.as_ptr(), bytes.len())?;
        if !offset.is_multiple_of(ALIGN as u64) {
            return None;
        }
        self.past.placed_bytes += bytes.len() as u64;
        Some(Sight { offset, bytes: bytes.len() as u64 })
    }

    fn take_now(
        &mut self,
        from: Peer,
        tag: Tag,
        expected: (&Stamp, usize),
        looks: u32,
        take: &mut dyn FnMut(&[u8]),
    ) -> Found {
        if self.must_look || self.sleeper.is_down() || !self.done.is_empty() {
            return Found::Other;
        }
        let Some(at) = self.link_of(from.0) else { return Found::Other };
        let Some(Channel { matcher, way: Way::Up(connection), .. }) =
            self.links[at as usize].channel.as_deref_mut()
        else {
            return Found::Other;
        };
        let found = connection.take_now(matcher, tag, expected, looks, take);
        // The owner of memory that was read waits to hear of it.
        if found == Found::Message && matcher.has_output() {
            self.fill(at);
        }
        found
    }

    fn view(&mut self, from: Peer, sight: Sight) -> Option<ForeignBytes> {
        let link = &self.links[self.link_of(from.0)? as usize];
        let window = match link.channel.as_ref().map(|c| &c.way) {
            Some(Way::Up(connection)) => connection.window()?,
            _ => link.window.as_ref()?,
        };
        let seen = segment::view(window, sight.offset, sight.bytes)?;
        self.past.placed_bytes += sight.bytes;
        Some(seen)
    }

    fn shares_memory(&self, with: Peer) -> bool {
        self.link_of(with.0).is_some()
    }

    fn poll(&mut self, out: &mut Vec<Event>) -> bool {
        let moved = self.progress();
        let said = !self.done.is_empty();
        if out.is_empty() {
            std::mem::swap(out, &mut self.done);
        } else {
            out.append(&mut self.done);
        }
        moved || said
    }

    fn has_unsent(&self) -> bool {
        let channel = |at: &u32| self.links[*at as usize].channel.as_ref();
        self.live.iter().chain(&self.dialling).filter_map(channel).any(|c| c.has_unsent())
    }

    fn prepare_sleep(&mut self) -> bool {
        if self.waker.take() || !self.done.is_empty() || self.must_look {
            return false;
        }
        for at in &self.live {
            if let Some(Channel { way: Way::Up(connection), .. }) =
                self.links[*at as usize].channel.as_deref_mut()
            {
                connection.ask_for_room();
            }
        }
        self.sleeper.lie_down(self.shown.bell.word());
        let busy = self.live.iter().any(|at| {
            let Some(channel) = self.links[*at as usize].channel.as_deref_mut() else { return false };
            let (has_output, reads) = (channel.has_output(), channel.matcher.has_pulls());
            let Way::Up(connection) = &mut channel.way else { return false };
            reads || connection.has_work(has_output)
        });
        if busy {
            self.sleeper.rise(self.shown.bell.word());
            return false;
        }
        true
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.fd())
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn next_timer_ms(&self) -> Option<u64> {
        let dials = self.dialling.iter().filter_map(|at| {
            let Some(Way::Dial(dial)) = self.links[*at as usize].channel.as_ref().map(|c| &c.way) else {
                return None;
            };
            let limit_ms = dial.began_ms + self.config.connect_timeout_ms;
            Some(if matches!(dial.stage, Stage::Busy) { self.now_ms + PAUSE_MS } else { limit_ms })
        });
        let withdrawals = self.live.iter().filter_map(|at| {
            let channel = self.links[*at as usize].channel.as_ref()?;
            let since_ms = channel.withdrawing_ms.unwrap_or(self.now_ms);
            channel.matcher.is_withdrawing().then_some(since_ms + WITHDRAW_MS)
        });
        let due_ms = dials.chain(withdrawals).chain(self.door.due_ms(self.now_ms)).min()?;
        // One more, so that it is due when the sleep ends.
        Some(due_ms.saturating_sub(self.began.elapsed().as_millis() as u64) + 1)
    }

    fn retire(&mut self, group: u32) {
        self.retired.add(group);
        for channel in self.links.iter_mut().filter_map(|l| l.channel.as_mut()) {
            channel.matcher.retire(group);
        }
    }

    fn leave(&mut self, linger_ms: u64) {
        self.say_goodbye(linger_ms);
    }

    fn why(&self, peer: Peer) -> Option<String> {
        self.links[self.link_of(peer.0)? as usize].why.clone()
    }

    fn copies(&self) -> Copies {
        let mut all = self.past;
        self.links.iter().filter_map(|l| l.channel.as_ref()).for_each(|c| all += c.copies());
        all
    }

    fn pending(&self, peer: Peer) -> (usize, usize) {
        self.link_of(peer.0)
            .and_then(|at| self.links[at as usize].channel.as_ref())
            .map_or((0, 0), |c| c.matcher.unmatched())
    }
}
