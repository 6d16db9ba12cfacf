//! The transport: peers, operations and progress.
#![forbid(unsafe_code)]

use super::choice::{Choice, RdmaOffer, agree, model::Mtu, offer::Opened};
use super::connection::{Holds, Verdict};
use super::device::Device;
use super::handshake::Hello;
use super::incoming::LOOKS;
use super::links::{Link, Stage};
use super::registration::Registry;
use super::request::BATCH;
use super::resolver::{Resolved, Resolver};
use super::verbs::{Library, LoadError, VerbsError, WorkCompletion};
use super::watch::Watch;
use super::{Config, MAX_DEPTH, MAX_EAGER_BYTES, MAX_MESSAGE_BYTES, MAX_NOTES};
use crate::memory::{Region, RegionId};
use crate::transport::authentication::Proof;
use crate::transport::matching::Retired;
use crate::transport::{
    Address, Caps, Cause, CauseKind, Complaints, Completion, ConnectError, Copies, Event, Found, Note, Op,
    OpId, Peer, PostError, RegionKey, RegisterError, Stamp, Tag, Transport, Waker,
};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Polls between two looks at what needs a system call.
const LOOK_EVERY: u32 = 256;
/// Largest peer number, since peers are found by index.
const MAX_PEER: u32 = 1 << 22;
const NOBODY: u32 = u32::MAX;

/// Why a transport could not be made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The library is not there.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// A device refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Out of descriptors.
    #[error("the system refused a descriptor: {0}")]
    System(#[from] std::io::Error),
    /// A setting is out of range.
    #[error("depth is {depth}, and must be from 1 to {MAX_DEPTH}")]
    Depth {
        /// What was asked for.
        depth: u32,
    },
}

/// How payload has travelled to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that the devices wrote straight from the memory that was lent into the memory of the receive, by rail.
    pub written_bytes: Vec<u64>,
    /// Bytes that were copied into messages: of small messages, and of memory that could not be registered.
    pub copied_bytes: u64,
}

/// RDMA to any number of peers.
pub struct RdmaTransport {
    pub(super) config: Config,
    pub(super) offer: RdmaOffer,
    // Before the devices: connections stand on them.
    pub(super) links: Vec<Link>,
    pub(super) holds: Holds,
    pub(super) registry: Registry,
    pub(super) resolver: Resolver,
    watch: Watch,
    pub(super) devices: Vec<Device>,
    by_peer: Vec<u32>,
    /// Links with something to send, or to look after.
    pub(super) dirty: Vec<u32>,
    /// A link that is to be answered when there is time (K3 of [`super::incoming`]).
    pub(super) unanswered: Option<u32>,
    pub(super) meetings: Vec<u32>,
    /// Devices whose port went down, and when.
    pub(super) down: Vec<(usize, u64)>,
    /// The last hellos of peers that are not introduced yet.
    pub(super) strangers: HashMap<u32, (Hello, Proof)>,
    pub(super) complaints: Complaints,
    pub(super) retired: Retired,
    pub(super) done: Vec<Event>,
    /// Events before this one have had their holds given back.
    let_go: usize,
    pub(super) psns: u64,
    /// How the payload of channels that are over has moved.
    pub(super) past: Copies,
    began: Instant,
    pub(super) now_ms: u64,
    /// Room for completions, used again.
    pub(super) batch: Vec<WorkCompletion>,
    polls: u32,
    pub(super) must_look: bool,
}

impl RdmaTransport {
    /// Opens the devices of these rails.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(mut config: Config, choice: &Choice) -> Result<RdmaTransport, OpenError> {
        config.eager_bytes = config.eager_bytes.min(MAX_EAGER_BYTES);
        if config.depth == 0 || config.depth > MAX_DEPTH {
            return Err(OpenError::Depth { depth: config.depth });
        }
        let library = Library::load()?;
        // Privileged keys have the top bit; ours must not.
        let queue_key = (config.incarnation ^ u64::from(config.me) << 7) as u32 & 0x7fff_ffff;
        let mut devices = Vec::with_capacity(choice.rails.len());
        for rail in &choice.rails {
            devices.push(Device::open(&library, rail.clone(), queue_key)?);
        }
        let mut identity = config.incarnation.to_le_bytes().to_vec();
        identity.extend(config.me.to_le_bytes());
        let mut at = 0..;
        let offer = RdmaOffer::new(identity, choice, |_| {
            let device: &Device = &devices[at.next().unwrap_or(0)];
            let (bootstrap_queue_pair, bootstrap_queue_key) = device.hears_at();
            let mtu = Mtu::from_bytes(device.port.active_mtu_bytes);
            Opened { mtu: mtu.unwrap_or(Mtu::B256), bootstrap_queue_pair, bootstrap_queue_key }
        });
        let resolver = Resolver::new()?;
        let domains = devices.iter().map(|d| d.domain.clone()).collect();
        Ok(RdmaTransport {
            psns: config.incarnation.rotate_left(32) ^ u64::from(config.me),
            registry: Registry::new(domains, config.rdma.pinned_limit_bytes),
            config,
            offer,
            links: Vec::new(),
            holds: Holds::new(),
            watch: Watch::new(&devices, &resolver.waker)?,
            resolver,
            devices,
            by_peer: Vec::new(),
            dirty: Vec::new(),
            unanswered: None,
            meetings: Vec::new(),
            down: Vec::new(),
            strangers: HashMap::new(),
            complaints: Complaints::default(),
            retired: Retired::default(),
            done: Vec::new(),
            let_go: 0,
            past: Copies::default(),
            began: Instant::now(),
            now_ms: 0,
            batch: vec![WorkCompletion::default(); BATCH],
            polls: 0,
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
            let same = |l: &Link| l.number == number && (!exact || l.incarnation == incarnation);
            self.links.iter().position(same).map(|at| at as u32)
        };
        lives(true).or_else(|| lives(false))
    }

    /// Ends a link as lost (T6).
    pub(super) fn lose(&mut self, at: u32, cause: Cause) {
        if self.links[at as usize].gone.is_some() {
            return;
        }
        // The devices let go of lent memory before it is given back.
        self.disconnect(at);
        let link = &mut self.links[at as usize];
        link.gone = Some(cause.clone());
        let peer = link.peer;
        if let Some(mut channel) = link.channel.take() {
            channel.matcher.fail(&cause, &mut self.done);
            self.past += channel.copies();
        }
        self.meetings.retain(|m| *m != at);
        self.done.push(Event::Lost { peer, cause });
    }

    /// A goodbye came: what had arrived can still be taken (T11).
    fn part(&mut self, at: u32) {
        self.disconnect(at);
        let link = &mut self.links[at as usize];
        let cause = Cause::new(CauseKind::Left, format!("peer {} said goodbye", link.peer.0));
        if let Some(channel) = &mut link.channel {
            channel.matcher.fail(&cause, &mut self.done);
            channel.notes.clear();
        }
        link.gone = Some(cause);
        self.meetings.retain(|m| *m != at);
        self.done.push(Event::Left { peer: link.peer });
    }

    /// Does what a connection has come to.
    pub(super) fn conclude(&mut self, at: u32, verdict: Verdict) {
        match verdict {
            Verdict::On => self.soil(at),
            Verdict::Left => self.part(at),
            Verdict::Lost(cause) => self.lose(at, cause),
        }
    }

    /// Gives back what the operations that have ended held.
    pub(super) fn let_go(&mut self) {
        if self.holds.is_empty() {
            self.let_go = self.done.len();
            return;
        }
        for event in &self.done[self.let_go.min(self.done.len())..] {
            if let Event::Done(c) = event
                && let Some(held) = self.holds.remove(&c.id)
            {
                self.registry.release(held);
            }
        }
        self.let_go = self.done.len();
    }

    pub(super) fn progress(&mut self) -> bool {
        let mut moved = self.watch.rise(&self.devices);
        self.polls += 1;
        if moved {
            self.resolver.waker.take();
        }
        let meets = !self.meetings.is_empty() || self.resolver.is_open();
        if moved || self.must_look || self.polls >= LOOK_EVERY || meets {
            self.polls = 0;
            self.must_look = false;
            self.clock_ms();
            self.hear_devices();
            self.announce();
            self.feel_pulse();
            moved = self.step_meetings();
        } else {
            moved = false;
        }
        // All that is dirty is filled below.
        self.unanswered = None;
        let looks = if self.dirty.is_empty() && !moved { LOOKS } else { 1 };
        moved |= self.take_completions(looks);
        moved |= self.fill();
        self.let_go();
        moved
    }

    /// Breaks a rail as a failing device would.
    #[cfg(test)]
    pub(super) fn break_rail(&mut self, peer: Peer, rail: usize) {
        let at = self.link_of(peer.0).unwrap();
        let Some(Stage::Up(connection)) = self.links[at as usize].channel.as_mut().map(|c| &mut c.stage)
        else {
            panic!("peer {} is not connected", peer.0);
        };
        connection.rails[rail].break_down();
    }

    /// How the payload of what was sent to a peer has travelled so far, while it is connected.
    pub fn traffic(&self, peer: Peer) -> Option<Traffic> {
        let link = &self.links[self.link_of(peer.0)? as usize];
        match link.channel.as_ref().map(|c| &c.stage) {
            Some(Stage::Up(connection)) => Some(Traffic {
                written_bytes: connection.rails.iter().map(|r| r.written_bytes).collect(),
                copied_bytes: connection.copied_bytes,
            }),
            _ => None,
        }
    }

    /// Has an operation hold its memory's registration. `false`: it must not go without one (G4), and has none.
    fn hold(&mut self, id: OpId, op: &Op) -> bool {
        let must = op.is_on_device();
        if op.len() as u64 <= self.config.eager_bytes.into() && !must {
            return true;
        }
        let held = match op {
            Op::Send { bytes, .. } => self.registry.hold(&bytes.block(), false),
            Op::Recv { into, .. } => self.registry.hold(&into.block(), true),
        };
        let is_held = held.is_some();
        self.holds.extend(held.map(|held| (id, held)));
        is_held || !must
    }
}

impl Transport for RdmaTransport {
    fn caps(&self) -> Caps {
        Caps {
            name: "rdma",
            speaks: "rdma",
            max_message_bytes: MAX_MESSAGE_BYTES,
            eager_bytes: self.config.eager_bytes.into(),
            depth: self.config.depth,
            registers: true,
            sleepable: true,
            withdraws_alone: false,
            in_process: false,
        }
    }

    fn address(&self) -> Address {
        Address(self.offer.to_bytes())
    }

    fn register(&mut self, region: &Region) -> Result<RegionKey, RegisterError> {
        if !region.is_owned() || region.is_empty() {
            return Err(RegisterError::Useless);
        }
        let refused = |why: String| RegisterError::Refused { bytes: region.len(), why };
        match self.registry.register_once(&region.block()) {
            Ok(true) => Ok(RegionKey(region.id().0)),
            Ok(false) => Err(refused("over the limit of pinned memory".to_owned())),
            Err(why) => Err(refused(why.to_string())),
        }
    }

    fn deregister(&mut self, region: RegionId) {
        self.registry.forget_region(region);
    }

    fn reaches_devices(&self, with: Peer) -> Result<Vec<String>, String> {
        let at = self.link_of(with.0).ok_or_else(|| "it was never introduced".to_owned())?;
        let devices = || self.links[at as usize].pairs.iter().map(|pair| &self.devices[pair.mine]);
        match devices().find_map(|device| device.domain.context().lacks_dmabuf()) {
            Some(why) => Err(why.to_string()),
            None => Ok(devices().map(|device| device.rail.device.clone()).collect()),
        }
    }

    fn keep_registered(&mut self, region: &Region) -> Result<(), RegisterError> {
        if !region.is_on_device() {
            return Err(RegisterError::Useless);
        }
        let refused = |why: String| RegisterError::Refused { bytes: region.len(), why };
        match self.registry.keep(&region.block()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(refused("over the limit of pinned memory, RINGWAY_IB_PINNED_BYTES".to_owned())),
            Err(why) => Err(refused(why.to_string())),
        }
    }

    fn release_registered(&mut self, region: RegionId) {
        self.registry.release_kept(region);
    }

    fn connect(&mut self, peer: Peer, to: &Address) -> Result<(), ConnectError> {
        let bad = |why: &str| ConnectError::BadAddress { peer, why: why.to_owned() };
        let offer = RdmaOffer::from_bytes(&to.0).map_err(bad)?;
        let incarnation = offer.identity.first_chunk().copied().map(u64::from_le_bytes);
        let number = offer.identity.get(8..12).and_then(|n| n.first_chunk().copied().map(u32::from_le_bytes));
        let Some((number, incarnation)) = number.zip(incarnation) else {
            return Err(bad("it does not say whose it is"));
        };
        if peer.0 > MAX_PEER {
            return Err(bad("the peer's number is too high"));
        }
        if (number, incarnation) == (self.config.me, self.config.incarnation) {
            return Err(bad("it is this side's own"));
        }
        let pairs = agree(&self.offer, &offer).map_err(|d| ConnectError::NoRoute { peer, why: d.why })?;
        let link = |generation, dirty| Link {
            peer,
            offer: offer.clone(),
            number,
            incarnation,
            ways: pairs.iter().map(|_| Resolved::Unasked).collect(),
            said: 0,
            early: None,
            nonces: Default::default(),
            pairs: pairs.clone(),
            channel: None,
            generation,
            gone: None,
            dirty,
            why: None,
        };
        match self.link_of(peer.0) {
            Some(at) if self.links[at as usize].offer == offer => return Ok(()),
            Some(at) => {
                // Another incarnation.
                self.lose(at, Cause::new(CauseKind::Local, format!("peer {} has a new address", peer.0)));
                let old = &self.links[at as usize];
                self.links[at as usize] = link(old.generation, old.dirty);
            }
            None => {
                let at = self.links.len() as u32;
                self.links.push(link(0, false));
                let index = peer.0 as usize;
                if self.by_peer.len() <= index {
                    self.by_peer.resize(index + 1, NOBODY);
                }
                self.by_peer[index] = at;
            }
        }
        if let Some((hello, proof)) = self.strangers.remove(&number) {
            self.clock_ms();
            self.hear(hello, &proof);
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
        if self.links[at as usize].gone.is_none() {
            self.open_channel(at);
        }
        let link = &self.links[at as usize];
        if let Some(cause) = &link.gone {
            // T11: what had arrived before a goodbye is still delivered.
            let arrived = matches!(&op, Op::Recv { tag, .. } if cause.kind == CauseKind::Left
                && link.channel.as_ref().is_some_and(|c| c.matcher.has_arrived(tag.to_u64())));
            if !arrived {
                return Err((PostError::Gone { peer, cause: cause.clone() }, op));
            }
        }
        if let Op::Send { tag, stamp, bytes, .. } = &op
            && !bytes.is_on_device()
            && let Some(sent) = self.send_small(at, *tag, stamp, bytes.bytes())
        {
            let lease = op.into_lease();
            self.done.push(Event::Done(Completion { id, result: Ok(()), lease }));
            if let Err(cause) = sent {
                self.lose(at, cause);
            }
            return Ok(());
        }
        if !self.hold(id, &op) {
            return Err((PostError::OnDevice { peer, why: "it is not registered" }, op));
        }
        let posted = match &mut self.links[at as usize].channel {
            Some(channel) => channel.matcher.post(id, op, &mut self.done),
            None => Err(op),
        };
        match posted {
            Ok(()) => {
                self.speak(at);
                Ok(())
            }
            Err(op) => {
                if let Some(held) = self.holds.remove(&id) {
                    self.registry.release(held);
                }
                Err((PostError::Full(peer), op))
            }
        }
    }

    fn send_now(&mut self, to: Peer, tag: Tag, stamp: &Stamp, bytes: &[u8]) -> bool {
        let Some(at) = self.link_of(to.0) else { return false };
        match self.send_small(at, tag, stamp, bytes) {
            None => false,
            Some(Ok(())) => true,
            Some(Err(cause)) => {
                self.lose(at, cause);
                true
            }
        }
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
        self.take_next(at, (tag.to_u64(), stamp, length), looks, take)
    }

    fn cancel(&mut self, id: OpId) {
        for at in 0..self.links.len() as u32 {
            let Some(channel) = &mut self.links[at as usize].channel else { continue };
            if channel.matcher.cancel(id, &mut self.done) {
                self.soil(at);
                self.must_look = true;
                return;
            }
        }
    }

    fn note(&mut self, to: Peer, note: &Note) -> Result<(), PostError> {
        let at = self.link_of(to.0).ok_or(PostError::Unknown(to))?;
        if self.links[at as usize].gone.is_none() {
            self.open_channel(at);
        }
        let link = &mut self.links[at as usize];
        if let Some(cause) = &link.gone {
            return Err(PostError::Gone { peer: to, cause: cause.clone() });
        }
        match &mut link.channel {
            Some(channel) if channel.notes.len() < MAX_NOTES => channel.notes.push_back(*note),
            _ => return Err(PostError::Full(to)),
        }
        self.soil(at);
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Event>) -> bool {
        let moved = self.progress();
        let said = !self.done.is_empty();
        if out.is_empty() {
            std::mem::swap(out, &mut self.done);
        } else {
            out.append(&mut self.done);
        }
        self.let_go = 0;
        moved || said
    }

    fn has_unsent(&self) -> bool {
        let channel = |at: &u32| self.links[*at as usize].channel.as_ref();
        self.meetings.iter().filter_map(channel).any(|c| !c.notes.is_empty())
    }

    fn prepare_sleep(&mut self) -> bool {
        if self.watch.waker.take() || !self.done.is_empty() {
            return false;
        }
        self.clock_ms();
        self.announce();
        if let Err(why) = self.watch.arm(&self.devices) {
            tracing::debug!("{why}");
            return false;
        }
        // What completed before the notice was asked for gives none.
        let moved = self.take_completions(1) | self.fill();
        self.let_go();
        !moved && self.done.is_empty()
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.fd())
    }

    fn waker(&self) -> Waker {
        self.watch.waker.clone()
    }

    fn next_timer_ms(&self) -> Option<u64> {
        let meetings = self.meetings.iter().map(|at| &self.links[*at as usize]);
        // What is found rouses the sleeper.
        let meetings = meetings.filter(|link| !link.is_looking());
        let meetings = meetings.filter_map(|link| match &link.channel.as_ref()?.stage {
            Stage::Meeting(_, meeting) => Some(meeting.due_ms()),
            Stage::None | Stage::Up(_) => None,
        });
        let due_ms = meetings.chain(self.pulse_due_ms()).min()?;
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
