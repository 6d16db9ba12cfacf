//! Values of other tasks, and questions of theirs, over any transport.
//!
//! Who needs a value asks for it by key; who has it answers when it is there. A small one comes in the answer. A larger
//! one is announced by the answer and sent at the same time, out of the memory in which the sender keeps it; the receiver
//! learns the length from the announcement and posts a block of its pool for it. Announcements and payloads of one sender
//! come in the same order, so one lane carries all payloads, and a receive that is not wanted any more takes its
//! payload's place with no room for a byte, and is withdrawn.
//!
//! Where the transport lets the asker read the sender's memory, a larger payload is not sent but shown: it is read where it
//! lies, and lent until the reader says that it has let go of it.
//!
//! - `inbound`: what comes. `outbound`: what goes, and waits for room in the transport. `sight`: what is shown.
//!
//! Invariants (cited by the tests):
//! - **V1** Every receive ends once: with the value, or with an error that names the other task and what was seen.
//! - **V2** A payload is copied by nobody but the transport. The sender's memory is lent until its message has ended.
//! - **V3** What a peer can make this side keep is bounded: [`MAX_REQUESTS`] questions, one message in pieces, and no
//!   memory for a payload that was not asked for or is over the limit. One that breaks the protocol is closed, and no
//!   other is harmed.
//! - **V4** An abort reaches every task that was asked in that step or has asked, once.

mod inbound;
mod outbound;
mod sight;

use super::error::RendezvousError;
use super::key::Key;
use super::peer::{PeerInfo, PeerLoss, Traffic};
use super::table::{Rest, StepId, WaiterId, Why};
use super::value::{Meta, Value};
use super::waiter::{Ready, Stage, Waiter, Waiters};
use super::wire::{self, Assembly, Message, Reason};
use crate::memory::{AllocError, Lease, Pool, Region, SharedBytes};
use crate::transport::{
    Address, Cause, CauseKind, ConnectError, Event, Note, OpId, Peer, Stamp, Tag, Transport,
};
use sight::{Releases, Showing};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Questions that one task may have open at another.
pub(super) const MAX_REQUESTS: usize = 1 << 16;
/// Payloads that may be announced and not yet received, those that nobody wants any more included.
const MAX_ANNOUNCED: usize = 2 * MAX_REQUESTS;
/// Notes that may wait for room in the transport, per peer.
const MAX_NOTES: usize = 2 * MAX_REQUESTS;
/// Steps of which it is known whom this task has asked; the oldest is forgotten first.
const MAX_CONTACTS: usize = 4096;
/// Carries all payloads.
const LANE: Tag = Tag { group: 0x5276_0001, lane: 0 };

/// What both sides of a payload's message carry.
fn stamp(request: u64) -> Stamp {
    let mut stamp = *b"rendezvous      ........";
    stamp[16..].copy_from_slice(&request.to_le_bytes());
    Stamp(stamp)
}

/// A payload that is announced.
struct Coming {
    request: u64,
    bytes: u64,
    meta: Meta,
    /// `None`: no longer wanted.
    wanted: bool,
    /// Made once there was room to post it, or none after all.
    region: Option<Region>,
}

/// An operation of the transport.
enum Flight {
    Sending { peer: Peer, payload: SharedBytes },
    Receiving { peer: Peer, request: u64, meta: Meta, region: Region },
    Discarding,
}

/// One peer.
struct Link {
    who: PeerInfo,
    address: Address,
    lost: Option<Cause>,
    assembly: Assembly,
    /// Wait for room in the transport, in order.
    notes: VecDeque<Note>,
    sends: VecDeque<(u64, SharedBytes)>,
    coming: VecDeque<Coming>,
    showing: Showing,
    /// Its questions that wait here.
    asked: HashMap<u64, WaiterId>,
    traffic: Traffic,
}

impl Link {
    fn new(who: PeerInfo, address: Address) -> Link {
        Link {
            who,
            address,
            lost: None,
            assembly: Assembly::default(),
            notes: VecDeque::new(),
            sends: VecDeque::new(),
            coming: VecDeque::new(),
            showing: Showing::default(),
            asked: HashMap::new(),
            traffic: Traffic::default(),
        }
    }

    fn waits(&self) -> bool {
        !(self.notes.is_empty() && self.sends.is_empty() && self.coming.is_empty())
    }

    fn clear(&mut self) {
        self.notes.clear();
        self.sends.clear();
        self.coming.clear();
        self.asked.clear();
    }
}

/// The data plane's side of a rendezvous.
pub(super) struct Core {
    pub(super) transport: Box<dyn Transport>,
    pub(super) table: Arc<Mutex<Waiters>>,
    /// Receives that are over: their calls are made once the lock is let go.
    pub(super) ready: Vec<Ready>,
    /// Peers whose loss is to be told, likewise.
    pub(super) losses: Vec<PeerLoss>,
    pool: Pool,
    max_value_bytes: u64,
    links: HashMap<Peer, Link>,
    /// Peers with something that waits for room.
    stuck: Vec<Peer>,
    flights: HashMap<OpId, Flight>,
    next_op: u64,
    events: Vec<Event>,
    contacts: HashMap<StepId, Vec<Peer>>,
    contacts_order: VecDeque<StepId>,
    /// Lends no bytes at all, to receives that are withdrawn.
    nothing: Region,
    encoded: Vec<u8>,
    /// What others have shown and is read no more here.
    releases: Arc<Releases>,
}

impl Core {
    pub(super) fn new(
        transport: Box<dyn Transport>,
        table: Arc<Mutex<Waiters>>,
        pool: Pool,
        max_value_bytes: u64,
    ) -> Result<Core, AllocError> {
        let (nothing, releases) = (pool.region(0)?, Releases::new(transport.waker()));
        Ok(Core {
            transport,
            table,
            ready: Vec::new(),
            losses: Vec::new(),
            pool,
            max_value_bytes,
            links: HashMap::new(),
            stuck: Vec::new(),
            flights: HashMap::new(),
            next_op: 0,
            events: Vec::new(),
            contacts: HashMap::new(),
            contacts_order: VecDeque::new(),
            nothing,
            encoded: Vec::new(),
            releases,
        })
    }

    fn table(&self) -> MutexGuard<'_, Waiters> {
        // Nothing panics while it holds the table, short of an allocation failure, which aborts.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether operations of the transport are under way or wait for room.
    pub(super) fn is_busy(&self) -> bool {
        !self.flights.is_empty() || self.links.values().any(|l| l.lost.is_none() && l.waits())
    }

    /// Whether something waits for room in the transport, which says nothing when there is some.
    pub(super) fn is_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }

    pub(super) fn connect(&mut self, peer: Peer, who: PeerInfo, to: &Address) -> Result<(), ConnectError> {
        if let Some(link) = self.links.get_mut(&peer)
            && link.lost.is_none()
        {
            if link.address == *to {
                link.who = who;
                return Ok(());
            }
            // Another life of the same task.
            self.close(peer, Cause::new(CauseKind::Local, "it was started again under another address"));
        }
        // What has this number so far is gone once that was told.
        self.turn();
        self.transport.connect(peer, to)?;
        let traffic = self.links.get(&peer).map(|l| l.traffic).unwrap_or_default();
        self.links.insert(peer, Link { traffic, ..Link::new(who, to.clone()) });
        Ok(())
    }

    pub(super) fn close(&mut self, peer: Peer, cause: Cause) {
        self.transport.close(peer, cause.clone());
        self.lose(peer, cause);
    }

    pub(super) fn forget(&mut self, peer: Peer) {
        self.close(peer, Cause::new(CauseKind::Local, "it was forgotten here"));
        self.links.remove(&peer);
    }

    pub(super) fn why(&self, peer: Peer) -> Option<String> {
        self.transport.why(peer)
    }

    pub(super) fn traffic(&self) -> Vec<(Peer, Traffic)> {
        let mut all: Vec<_> = self.links.iter().map(|(peer, link)| (*peer, link.traffic)).collect();
        all.sort_by_key(|(peer, _)| *peer);
        all
    }

    /// All that waits for the peer fails, but for payloads that the transport still tells of.
    fn lose(&mut self, peer: Peer, cause: Cause) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        if link.lost.is_some() {
            return;
        }
        link.lost = Some(cause.clone());
        link.clear();
        link.showing.end(cause.kind);
        let loss = PeerLoss { peer, who: link.who.clone(), cause };
        self.losses.push(loss.clone());
        let gone = self.table().take_where(|waiter| match waiter {
            Waiter::Away { peer: from, stage, .. } => *from == peer && !matches!(stage, Stage::Receiving(_)),
            Waiter::Asked { peer: by, .. } => *by == peer,
            Waiter::Local(_) => false,
        });
        for (step, waiter) in gone {
            if let Waiter::Away { then, .. } = waiter {
                let loss = Box::new(loss.clone());
                self.ready.push(then.fail(|key| RendezvousError::Lost { step, key, loss }));
            }
        }
    }

    /// Asks for a value. Its receive waits in the table by this number.
    pub(super) fn ask(&mut self, peer: Peer, step: StepId, key: &Key, id: WaiterId) {
        let Some(link) = self.links.get_mut(&peer) else {
            return self.fail(id, |step, key| RendezvousError::Unknown { step, key, peer });
        };
        if let Some(cause) = &link.lost {
            let loss = Box::new(PeerLoss { peer, who: link.who.clone(), cause: cause.clone() });
            return self.fail(id, |step, key| RendezvousError::Lost { step, key, loss });
        }
        if self.table().waiter(id).is_none() {
            return;
        }
        self.remember_contact(step, peer);
        self.say(peer, &Message::Ask { request: id.0, step: step.0, key: key.text() });
    }

    fn fail(&mut self, id: WaiterId, error: impl FnOnce(StepId, String) -> RendezvousError) {
        let taken = {
            let mut table = self.table();
            let step = table.waiter(id).map(|(step, _)| step);
            step.zip(table.take(id))
        };
        if let Some((step, Waiter::Local(then) | Waiter::Away { then, .. })) = taken {
            self.ready.push(then.fail(|key| error(step, key)));
        }
    }

    fn remember_contact(&mut self, step: StepId, peer: Peer) {
        if let Some(known) = self.contacts.get_mut(&step) {
            if !known.contains(&peer) {
                known.push(peer);
            }
            return;
        }
        if self.contacts_order.len() >= MAX_CONTACTS
            && let Some(oldest) = self.contacts_order.pop_front()
        {
            self.contacts.remove(&oldest);
        }
        self.contacts_order.push_back(step);
        self.contacts.insert(step, vec![peer]);
    }

    /// A receive has left the table before its value came.
    pub(super) fn never_mind(&mut self, peer: Peer, id: WaiterId, stage: Stage) {
        match stage {
            Stage::Asked => self.say(peer, &Message::NeverMind { request: id.0 }),
            // Found to be unwanted when its turn comes.
            Stage::Announced => {}
            Stage::Receiving(op) => self.transport.cancel(op),
        }
    }

    /// Gives a peer what it asked for.
    pub(super) fn answer(&mut self, peer: Peer, request: u64, value: &Value) {
        let limit = self.transport.caps().max_message_bytes;
        let Some(link) = self.links.get_mut(&peer).filter(|l| l.lost.is_none()) else { return };
        link.asked.remove(&request);
        let (meta, bytes) = (&value.meta[..], value.payload.len());
        if wire::inline_bytes(meta.len()).is_some_and(|most| bytes <= most) {
            link.traffic.values_sent += 1;
            link.traffic.bytes_sent += bytes as u64;
            return self.say(peer, &Message::Value { request, meta, payload: &value.payload });
        }
        if bytes as u64 > limit {
            let words = format!("the value has {bytes} bytes, over the transport's limit of {limit}");
            return self.refuse(peer, request, Reason::Other, 0, &words);
        }
        if !self.show(peer, request, value) {
            self.send_payload(peer, request, value);
        }
    }

    fn send_payload(&mut self, peer: Peer, request: u64, value: &Value) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        link.sends.push_back((request, value.payload.clone()));
        let bytes = value.payload.len() as u64;
        self.say(peer, &Message::Coming { request, bytes, meta: &value.meta });
    }

    pub(super) fn refuse(&mut self, peer: Peer, request: u64, reason: Reason, code: u32, words: &str) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.asked.remove(&request);
        }
        self.say(peer, &Message::Refusal { request, reason, code, words });
    }

    /// Tells of what was left in a step that is over.
    pub(super) fn end_step(&mut self, step: StepId, rest: Vec<(WaiterId, Waiter)>) {
        for (id, waiter) in rest {
            match waiter {
                Waiter::Local(then) => self.ready.push(then.fail(|key| RendezvousError::Over { step, key })),
                Waiter::Away { peer, then, stage } => {
                    self.never_mind(peer, id, stage);
                    self.ready.push(then.fail(|key| RendezvousError::Over { step, key }));
                }
                Waiter::Asked { peer, request } => {
                    self.refuse(peer, request, Reason::Over, 0, "");
                }
            }
        }
    }

    /// Tells everybody concerned that a step was aborted (V4). `from`: who said so.
    pub(super) fn tell_abort(
        &mut self,
        step: StepId,
        why: &Why,
        rest: Vec<(WaiterId, Waiter)>,
        from: Option<Peer>,
    ) {
        let mut concerned: HashSet<Peer> = self.contacts.remove(&step).into_iter().flatten().collect();
        for (_, waiter) in rest {
            match waiter {
                Waiter::Local(then) => {
                    let why = why.clone();
                    self.ready.push(then.fail(|key| RendezvousError::Aborted { step, key, why }));
                }
                Waiter::Away { peer, then, stage } => {
                    concerned.insert(peer);
                    if let Stage::Receiving(op) = stage {
                        self.transport.cancel(op);
                    }
                    let why = why.clone();
                    self.ready.push(then.fail(|key| RendezvousError::Aborted { step, key, why }));
                }
                Waiter::Asked { peer, request } => {
                    concerned.insert(peer);
                    if let Some(link) = self.links.get_mut(&peer) {
                        link.asked.remove(&request);
                    }
                }
            }
        }
        for peer in concerned.into_iter().filter(|peer| Some(*peer) != from) {
            self.say(peer, &Message::Abort { step: step.0, code: why.code, words: &why.message });
        }
    }

    fn abort(&mut self, step: StepId, why: &Why, from: Option<Peer>) {
        let rest = self.table().abort(step, why.clone());
        if let Some(Rest { waiters, values }) = rest {
            self.tell_abort(step, why, waiters, from);
            drop(values);
        }
    }

    /// This task leaves: nobody's receive comes to anything, and what others still read is left to them.
    pub(super) fn shut_down(&mut self) {
        self.links.values_mut().for_each(|link| link.showing.end(CauseKind::Left));
        let all = self.table().take_where(|_| true);
        for (step, waiter) in all {
            if let Waiter::Local(then) | Waiter::Away { then, .. } = waiter {
                self.ready.push(then.fail(|key| RendezvousError::Closed { step, key }));
            }
        }
    }
}

fn give_back(region: &mut Region, lease: Lease) {
    if let Err(error) = region.restore(lease) {
        // The region then stays lent, and its block is not used again.
        tracing::error!("a transport returned another operation's lease: {error}");
    }
}
