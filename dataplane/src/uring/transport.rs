//! The transport: peers, operations and progress.
#![forbid(unsafe_code)]

use super::connection::Verdict;
use super::device::{self, Published};
use super::driver::{BATCH, Batch, Driver, Outcome};
use super::links::{Channel, Link, Way};
use super::strangers::Door;
use super::watch::{EVENTS, Token, Watch};
use super::{Config, MAX_DEPTH, MAX_MESSAGE_BYTES, MAX_NOTES};
use crate::memory::{Region, RegionId};
use crate::transport::limits::in_words;
use crate::transport::matching::{Matcher, Retired};
use crate::transport::{
    Address, Caps, Cause, CauseKind, ConnectError, Copies, Event, Found, Note, Op, OpId, Peer, PostError,
    RegionKey, RegisterError, Stamp, Tag, Transport, Waker,
};
use rustix::io::Errno;
use socket2::Socket;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// With up to this many busy connections each is tried in each poll; with more, epoll says which have something.
const HOT_LINKS: usize = 8;
/// Polls of busy connections between two looks at everything else.
const WATCH_EVERY: u32 = 64;
/// Largest peer number, since peers are found by index.
const MAX_PEER: u32 = 1 << 22;
const NOBODY: u32 = u32::MAX;

/// Why a transport could not be made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No address to listen on.
    #[error("no address to listen on: choose an interface that is up and has an address")]
    NoAddress,
    /// An address could not be listened on.
    #[error("cannot listen on {ip} ({interface}): {}", in_words(source))]
    Listen {
        /// The address.
        ip: std::net::IpAddr,
        /// Its interface.
        interface: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// io_uring was required and is not to be had.
    #[error(
        "io_uring was asked for and refused ({0}): allow it (kernel.io_uring_disabled, seccomp), or let epoll be used \
         (RINGWAY_IO_DRIVER=auto, or epoll in RINGWAY_NET)"
    )]
    Driver(std::io::Error),
    /// Out of descriptors or memory.
    #[error("the system refused a descriptor: {}", in_words(.0))]
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
        let matcher = Matcher::new(peer, self.depth, self.window_bytes);
        Box::new(Channel { matcher, notes: VecDeque::new(), way: Way::None, at_once_bytes: 0 })
    }
}

/// TCP to any number of peers.
pub struct TcpTransport {
    pub(super) config: Config,
    address: Address,
    pub(super) driver: Driver,
    pub(super) driver_why: String,
    pub(super) watch: Watch,
    waker: Waker,
    pub(super) listeners: Vec<Socket>,
    pub(super) door: Door,
    pub(super) links: Vec<Link>,
    by_peer: Vec<u32>,
    pub(super) active: Vec<u32>,
    readable: Vec<u32>,
    pub(super) dialling: Vec<u32>,
    pub(super) spare: Maker,
    /// How the payload of channels that are over has moved.
    pub(super) past: Copies,
    taken: Vec<(u32, Box<Channel>)>,
    /// Links whose end was seen; it is told after all that came before it.
    pub(super) ended: Vec<(u32, Verdict)>,
    pub(super) retired: Retired,
    pub(super) done: Vec<Event>,
    pub(super) polls: u32,
    /// When the health of busy connections was looked at last.
    pub(super) felt_at: Instant,
    pub(super) must_watch: bool,
}

impl TcpTransport {
    /// Listens on the configured addresses, each on a free port.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn new(config: Config) -> Result<TcpTransport, OpenError> {
        if config.depth == 0 || config.depth > MAX_DEPTH {
            return Err(OpenError::Depth { depth: config.depth });
        }
        let (driver, driver_why) = Driver::new(config.driver).map_err(OpenError::Driver)?;
        let (watch, waker) = (Watch::new()?, Waker::new()?);
        watch.add(waker.fd(), Token::Waker, false)?;
        let (mut listeners, mut at) = (Vec::new(), Vec::new());
        for bind in config.bind.iter().take(device::MAX_ADDRESSES) {
            let (socket, local) = device::listen(bind, config.socket_buffer_bytes).map_err(|source| {
                OpenError::Listen { ip: bind.ip, interface: bind.interface.clone(), source }
            })?;
            watch.add(&socket, Token::Listener, false)?;
            listeners.push(socket);
            at.push(local);
        }
        if listeners.is_empty() {
            return Err(OpenError::NoAddress);
        }
        let (number, incarnation) = (config.me, config.incarnation);
        let address = Published { number, incarnation, host: config.host, at }.encode();
        let spare = Maker { depth: config.depth, window_bytes: config.eager_window_bytes as usize };
        Ok(TcpTransport {
            config,
            address,
            driver,
            driver_why,
            watch,
            waker,
            listeners,
            door: Door::default(),
            links: Vec::new(),
            by_peer: Vec::new(),
            active: Vec::with_capacity(HOT_LINKS),
            readable: Vec::with_capacity(EVENTS),
            dialling: Vec::new(),
            spare,
            past: Copies::default(),
            taken: Vec::with_capacity(BATCH),
            ended: Vec::with_capacity(BATCH),
            retired: Retired::default(),
            done: Vec::new(),
            polls: 0,
            felt_at: Instant::now(),
            must_watch: true,
        })
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

    pub(super) fn activate(&mut self, at: u32) {
        let link = &mut self.links[at as usize];
        if !link.active {
            link.active = true;
            self.active.push(at);
        }
    }

    /// Ends a link as lost (T6).
    pub(super) fn lose(&mut self, at: u32, cause: Cause) {
        // It ends once.
        self.ended.retain(|(ended, _)| *ended != at);
        let link = &mut self.links[at as usize];
        if link.gone.is_some() {
            return;
        }
        link.gone = Some(cause.clone());
        let peer = link.peer;
        if let Some(mut channel) = link.channel.take() {
            channel.matcher.fail(&cause, &mut self.done);
            self.past += channel.copies();
        }
        self.stop_dialling(at);
        self.done.push(Event::Lost { peer, cause });
    }

    /// A goodbye came: what had arrived can still be taken (T11).
    fn part(&mut self, at: u32) {
        let link = &mut self.links[at as usize];
        if link.gone.is_some() {
            return;
        }
        let cause = Cause::new(CauseKind::Left, format!("peer {} said goodbye", link.peer.0));
        if let Some(channel) = &mut link.channel {
            channel.matcher.fail(&cause, &mut self.done);
            channel.way = Way::None;
            channel.notes.clear();
        }
        link.gone = Some(cause);
        self.done.push(Event::Left { peer: link.peer });
    }

    /// The channel of a link that is to be used: made and dialled if it is not there yet.
    fn open_channel(&mut self, at: u32) {
        let link = &mut self.links[at as usize];
        let channel = link.channel.get_or_insert_with(|| self.spare.make(link.peer));
        if matches!(channel.way, Way::None) {
            self.dial(at);
        }
    }

    /// Looks at everything that is watched.
    fn look(&mut self) -> bool {
        self.polls = 0;
        self.must_watch = false;
        let n = self.watch.wait(0);
        let mut moved = false;
        for i in 0..n {
            match self.watch.happened(i) {
                Some(Token::Listener) => {
                    self.accept();
                    moved = true;
                }
                Some(Token::Stranger(number)) => {
                    self.hear(number);
                    moved = true;
                }
                Some(Token::Link(at)) => self.readable.push(at),
                Some(Token::Waker) | None => {}
            }
        }
        moved
    }

    /// One attempt on each of the links, in batches. Returns whether any byte moved.
    pub(super) fn pump(&mut self, links: &[u32], receive: bool) -> bool {
        links.chunks(BATCH / 2).fold(false, |moved, some| self.pump_some(some, receive) | moved)
    }

    fn pump_some(&mut self, links: &[u32], receive: bool) -> bool {
        let mut taken = std::mem::take(&mut self.taken);
        for at in links {
            let Some(mut channel) = self.links[*at as usize].channel.take() else { continue };
            if let Channel { matcher, notes, way: Way::Up(connection), .. } = &mut *channel {
                connection.fill(matcher, notes, &mut self.done);
                if receive || connection.has_output() {
                    taken.push((*at, channel));
                    continue;
                }
            }
            self.links[*at as usize].channel = Some(channel);
        }
        let mut outcomes: [Outcome; BATCH] = [Err(Errno::AGAIN); BATCH];
        let sends = self.attempt(&mut taken, receive, &mut outcomes);
        let mut moved = false;
        let mut next = outcomes.into_iter();
        for (i, (at, mut channel)) in taken.drain(..).enumerate() {
            let sent = if sends >> i & 1 == 1 { next.next() } else { None };
            let received = if receive { next.next() } else { None };
            let verdict = self.settle(at, &mut channel, sent, received);
            self.links[at as usize].channel = Some(channel);
            match verdict {
                Verdict::On(m) => moved |= m,
                over => self.ended.push((at, over)),
            }
        }
        self.taken = taken;
        moved
    }

    /// Ends the links that have come to their end. Returns whether there were any.
    fn conclude(&mut self) -> bool {
        let any = !self.ended.is_empty();
        while let Some((at, verdict)) = self.ended.pop() {
            match verdict {
                Verdict::Left => self.part(at),
                Verdict::Lost(cause) => self.lose(at, cause),
                Verdict::On(_) => {}
            }
        }
        any
    }

    /// Tries what the channels have to send and, if `receive`, to receive. Returns who had something to send, a bit
    /// each.
    fn attempt(
        &mut self,
        channels: &mut [(u32, Box<Channel>)],
        receive: bool,
        outcomes: &mut [Outcome; BATCH],
    ) -> u32 {
        let mut sends = 0u32;
        let mut batch = Batch::new();
        for (i, (_, channel)) in channels.iter_mut().enumerate() {
            if let Channel { matcher, way: Way::Up(connection), .. } = &mut **channel {
                sends |= u32::from(connection.has_output()) << i;
                connection.prepare(matcher, receive, &mut batch);
            }
        }
        if batch.len > 0 {
            self.driver.run(&mut batch, outcomes);
        }
        sends
    }

    fn settle(
        &mut self,
        at: u32,
        channel: &mut Channel,
        sent: Option<Outcome>,
        received: Option<Outcome>,
    ) -> Verdict {
        let link = &mut self.links[at as usize];
        let Channel { matcher, way: Way::Up(connection), .. } = channel else { return Verdict::On(false) };
        // What went out is done before what came in is heard: a peer that had the last of it may say goodbye at once (T11).
        let (went, sent) = match sent {
            Some(Ok(bytes)) => (connection.after_send(Ok(bytes), matcher, &mut self.done), None),
            other => (Verdict::On(false), other),
        };
        let Verdict::On(went) = went else { return went };
        // But an error is looked at last: a peer that says goodbye and closes also breaks what we send. What it had sent is
        // there all the same, and is read until its end, now or when epoll says that the connection is broken.
        let unread = received.is_none();
        let heard = received.map_or(Verdict::On(false), |outcome| {
            connection.after_recv(outcome, link.peer, matcher, &self.retired, &mut self.done)
        });
        let Verdict::On(heard) = heard else { return heard };
        let told = match sent {
            Some(Err(Errno::PIPE | Errno::CONNRESET)) if heard || unread => Verdict::On(heard),
            Some(outcome) => connection.after_send(outcome, matcher, &mut self.done),
            None => Verdict::On(false),
        };
        if link.watched_for_room && !connection.is_blocked() {
            link.watched_for_room = false;
            self.watch.change(connection.fd(), Token::Link(at), false);
        }
        match told {
            Verdict::On(told) => Verdict::On(went || heard || told),
            over => over,
        }
    }

    /// Drops links with nothing to do from the active list.
    fn weed(&mut self) {
        let links = &mut self.links;
        self.active.retain(|at| {
            let link = &mut links[*at as usize];
            link.active = link.channel.as_ref().is_some_and(|c| c.is_busy());
            link.active
        });
    }

    pub(super) fn progress(&mut self) -> bool {
        let mut moved = self.conclude();
        if !self.dialling.is_empty() {
            moved |= self.step_dials();
        }
        if !self.door.is_quiet() {
            self.tend_door();
        }
        let crowded = self.active.len() > HOT_LINKS;
        self.polls += 1;
        let strangers = !self.dialling.is_empty() || !self.door.is_quiet();
        if self.must_watch || crowded || strangers || self.active.is_empty() || self.polls >= WATCH_EVERY {
            moved |= self.look();
            self.feel_pulse();
        }
        let active = std::mem::take(&mut self.active);
        moved |= self.pump(&active, !crowded) | self.conclude();
        self.reactivate(active);
        if !self.readable.is_empty() {
            let mut readable = std::mem::take(&mut self.readable);
            if !crowded {
                readable.retain(|at| !self.links[*at as usize].active);
            }
            moved |= self.pump(&readable, true) | self.conclude();
            for at in readable.drain(..) {
                if self.links[at as usize].channel.as_ref().is_some_and(|c| c.is_busy()) {
                    self.activate(at);
                }
            }
            self.readable = readable;
        }
        self.weed();
        moved
    }

    /// Puts the list back that was taken for a round, with what was added meanwhile.
    fn reactivate(&mut self, mut active: Vec<u32>) {
        active.append(&mut self.active);
        self.active = active;
    }
}

impl Transport for TcpTransport {
    fn caps(&self) -> Caps {
        Caps {
            name: self.driver.name(),
            speaks: "tcp",
            max_message_bytes: MAX_MESSAGE_BYTES,
            eager_bytes: self.config.eager_bytes.into(),
            depth: self.config.depth,
            registers: self.driver.registers(),
            sleepable: true,
            withdraws_alone: true,
            in_process: false,
        }
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn register(&mut self, region: &Region) -> Result<RegionKey, RegisterError> {
        match region.is_on_device() {
            true => Err(RegisterError::Useless),
            false => self.driver.register(region),
        }
    }

    fn deregister(&mut self, region: RegionId) {
        self.driver.deregister(region);
    }

    fn connect(&mut self, peer: Peer, to: &Address) -> Result<(), ConnectError> {
        let bad = |why: String| ConnectError::BadAddress { peer, why };
        let published = Published::decode(to).map_err(bad)?;
        if peer.0 > MAX_PEER {
            return Err(bad(format!("peers are numbered up to {MAX_PEER}")));
        }
        if (published.number, published.incarnation) == (self.config.me, self.config.incarnation) {
            return Err(bad("it is this side's own".to_owned()));
        }
        let candidates = device::candidates(&self.config.bind, self.config.host, &published)
            .map_err(|why| ConnectError::NoRoute { peer, why })?;
        match self.link_of(peer.0) {
            Some(at) if self.links[at as usize].published == published => {}
            Some(at) => {
                // Another incarnation, or the same one after a move.
                self.lose(at, Cause::new(CauseKind::Local, format!("peer {} has a new address", peer.0)));
                let link = &mut self.links[at as usize];
                let active = link.active;
                *link = Link { active, ..Link::new(peer, published, candidates) };
            }
            None => {
                let at = self.links.len() as u32;
                self.links.push(Link::new(peer, published, candidates));
                let index = peer.0 as usize;
                if self.by_peer.len() <= index {
                    self.by_peer.resize(index + 1, NOBODY);
                }
                self.by_peer[index] = at;
            }
        }
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
            return Err((PostError::OnDevice { peer, why: "TCP is written by processors" }, op));
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
        let posted = match &mut self.links[at as usize].channel {
            Some(channel) => channel.matcher.post(id, op, &mut self.done),
            None => Err(op),
        };
        match posted {
            Ok(()) => {
                self.activate(at);
                Ok(())
            }
            Err(op) => Err((PostError::Full(peer), op)),
        }
    }

    fn send_now(&mut self, to: Peer, tag: Tag, stamp: &Stamp, bytes: &[u8]) -> bool {
        self.link_of(to.0).is_some_and(|at| self.send_small(at, tag, stamp, bytes))
    }

    fn take_now(
        &mut self,
        from: Peer,
        tag: Tag,
        (stamp, length): (&Stamp, usize),
        looks: u32,
        take: &mut dyn FnMut(&[u8]),
    ) -> Found {
        let Some(at) = self.link_of(from.0) else { return Found::Other };
        self.take_small(at, (tag.to_u64(), stamp, length), looks, take)
    }

    fn cancel(&mut self, id: OpId) {
        for at in 0..self.links.len() as u32 {
            let Some(channel) = &mut self.links[at as usize].channel else { continue };
            if let Some(slot) = channel.matcher.committed(id)
                && let Way::Up(connection) = &mut channel.way
            {
                connection.keep(slot, &channel.matcher);
            }
            if channel.matcher.cancel(id, &mut self.done) {
                self.activate(at);
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
        self.activate(at);
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Event>) -> bool {
        let moved = self.progress();
        let said = !self.done.is_empty();
        out.append(&mut self.done);
        moved || said
    }

    fn has_unsent(&self) -> bool {
        let channel = |at: &u32| self.links[*at as usize].channel.as_ref();
        // Notes are over before there is a connection, sends are not.
        self.active.iter().filter_map(channel).any(|c| c.has_output())
            || self.dialling.iter().filter_map(channel).any(|c| !c.notes.is_empty())
    }

    fn prepare_sleep(&mut self) -> bool {
        if self.waker.take() || !self.done.is_empty() || !self.readable.is_empty() || !self.ended.is_empty() {
            return false;
        }
        for at in &self.active {
            let link = &mut self.links[*at as usize];
            let Some(channel) = &link.channel else { continue };
            if !channel.has_output() {
                continue;
            }
            match &channel.way {
                Way::Up(connection) if connection.is_blocked() => {
                    if !link.watched_for_room {
                        link.watched_for_room = true;
                        self.watch.change(connection.fd(), Token::Link(*at), true);
                    }
                }
                _ => return false,
            }
        }
        self.must_watch = true;
        self.driver.forget_unmapped();
        true
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.fd())
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn next_timer_ms(&self) -> Option<u64> {
        let dials =
            self.dialling.iter().filter_map(|at| match &self.links[*at as usize].channel.as_ref()?.way {
                Way::Dial(dial) => Some(dial.due()),
                Way::None | Way::Up(_) => None,
            });
        let due = dials.chain(self.door.due()).chain(self.pulse_due()).min()?;
        let left = due.saturating_duration_since(Instant::now());
        // Rounded up, so that it is due when the sleep ends.
        Some(left.as_micros().div_ceil(1000) as u64)
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
