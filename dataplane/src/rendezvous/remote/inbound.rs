//! What comes from other tasks: questions, answers, payloads, losses.

use super::{Coming, Core, Flight, MAX_ANNOUNCED, MAX_REQUESTS, give_back};
use crate::memory::shared::POOL_BYTES;
use crate::memory::{AllocError, Lease, Region, SharedBytes};
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::key::Key;
use crate::rendezvous::peer::PeerLoss;
use crate::rendezvous::table::{Ended, MAX_WAITERS, Received, Refusal, StepId, WaiterId, Why};
use crate::rendezvous::value::{Meta, Value};
use crate::rendezvous::waiter::{Stage, Then, Waiter};
use crate::rendezvous::wire::{Garbled, Message, Reason};
use crate::transport::{Cause, CauseKind, Completion, Event, Note, OpError, Peer, Sight};
use std::sync::PoisonError;

impl Core {
    /// Polls once, and acts on what came. Returns whether anything moved.
    pub(in crate::rendezvous) fn turn(&mut self) -> bool {
        let mut events = std::mem::take(&mut self.events);
        self.tell_releases();
        let moved = self.transport.poll(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Done(completion) => self.done(completion),
                Event::Note { from, note } => self.hear(from, &note),
                Event::Lost { peer, cause } => self.lose(peer, cause),
                Event::Left { peer } => {
                    self.lose(peer, Cause::new(CauseKind::Left, "it has left in good order"));
                }
            }
        }
        self.events = events;
        for peer in std::mem::take(&mut self.stuck) {
            self.pump(peer);
        }
        moved
    }

    pub(super) fn hear(&mut self, from: Peer, note: &Note) {
        let Some(link) = self.links.get_mut(&from).filter(|l| l.lost.is_none()) else { return };
        let mut assembly = std::mem::take(&mut link.assembly);
        let heard = match assembly.take(note.bytes()) {
            Ok(None) => Ok(()),
            Ok(Some(message)) => Message::decode(message).and_then(|message| self.act(from, message)),
            Err(garbled) => Err(garbled),
        };
        if let Some(link) = self.links.get_mut(&from) {
            link.assembly = assembly;
        }
        if let Err(garbled) = heard {
            self.close(from, Cause::new(CauseKind::Protocol, garbled.to_string()));
        }
    }

    pub(super) fn act(&mut self, from: Peer, message: Message<'_>) -> Result<(), Garbled> {
        match message {
            Message::Ask { request, step, key } => {
                let key = Key::new(key).map_err(|_| Garbled("a key that is none"))?;
                self.asked(from, request, StepId(step), &key);
            }
            Message::Value { request, meta, payload } => {
                let Some((step, then)) = self.leaves(from, request) else { return Ok(()) };
                let meta = Meta::new(meta).ok_or(Garbled("a longer description than there can be"))?;
                let value = SharedBytes::copy_of(payload, &self.pool).map(|payload| Value { meta, payload });
                self.deliver(from, step, then, value);
            }
            Message::Coming { request, bytes, meta } => {
                let meta = Meta::new(meta).ok_or(Garbled("a longer description than there can be"))?;
                self.announced(from, request, bytes, meta)?;
            }
            Message::Shown { request, offset, bytes, meta } => {
                self.shown(from, request, Sight { offset, bytes }, meta)?;
            }
            Message::Seen { request, read } => self.seen(from, request, read),
            Message::Refusal { request, reason, code, words } => {
                let Some((step, then)) = self.leaves(from, request) else { return Ok(()) };
                let who = Box::new(self.links.get(&from).map(|l| l.who.clone()).unwrap_or_default());
                self.ready.push(then.fail(|key| match reason {
                    Reason::Aborted => RendezvousError::Aborted { step, key, why: Why::new(code, words) },
                    Reason::Over => RendezvousError::Refused {
                        step,
                        key,
                        who,
                        message: "the step is over there".to_owned(),
                    },
                    Reason::Twice => RendezvousError::Twice { step, key },
                    Reason::Other => RendezvousError::Refused { step, key, who, message: words.to_owned() },
                }));
            }
            Message::NeverMind { request } => {
                let waiting = self.links.get_mut(&from).and_then(|l| l.asked.remove(&request));
                if let Some(id) = waiting {
                    self.table().take(id);
                }
            }
            Message::Abort { step, code, words } => {
                self.abort(StepId(step), &Why::new(code, words), Some(from));
            }
        }
        Ok(())
    }

    /// A peer asks.
    pub(super) fn asked(&mut self, peer: Peer, request: u64, step: StepId, key: &Key) {
        let Some(link) = self.links.get(&peer) else { return };
        if link.asked.len() >= MAX_REQUESTS || link.asked.contains_key(&request) {
            let words = format!("{} questions of one task wait already, the limit", link.asked.len());
            return self.refuse_new(peer, request, Reason::Other, 0, &words);
        }
        let received = self.table().recv(step, key, Waiter::Asked { peer, request });
        match received {
            Ok(Received::Met(value, _)) => self.answer(peer, request, &value),
            Ok(Received::Waits(id)) => {
                if let Some(link) = self.links.get_mut(&peer) {
                    link.asked.insert(request, id);
                }
            }
            Err((Refusal::Ended(Ended::Aborted(why)), _)) => {
                self.refuse_new(peer, request, Reason::Aborted, why.code, &why.message);
            }
            Err((Refusal::Ended(Ended::Over), _)) => self.refuse_new(peer, request, Reason::Over, 0, ""),
            Err((Refusal::Twice, _)) => self.refuse_new(peer, request, Reason::Twice, 0, ""),
            Err((Refusal::Full, _)) => {
                let words = format!("{MAX_WAITERS} receives wait there already, the limit");
                self.refuse_new(peer, request, Reason::Other, 0, &words);
            }
        }
    }

    /// Refuses a question that was not taken in, whatever else has its number.
    pub(super) fn refuse_new(&mut self, peer: Peer, request: u64, reason: Reason, code: u32, words: &str) {
        self.say(peer, &Message::Refusal { request, reason, code, words });
    }

    /// Takes the receive that a peer answers out of the table: `None` when it is not waited for, or not by that peer.
    pub(super) fn leaves(&mut self, from: Peer, request: u64) -> Option<(StepId, Then)> {
        let id = WaiterId(request);
        let mut table = self.table();
        let asked = |w: &Waiter| matches!(w, Waiter::Away { peer, stage: Stage::Asked, .. } if *peer == from);
        let step = table.waiter(id).filter(|(_, w)| asked(w))?.0;
        let Some(Waiter::Away { then, .. }) = table.take(id) else { return None };
        Some((step, then))
    }

    pub(super) fn deliver(&mut self, from: Peer, step: StepId, then: Then, value: Result<Value, AllocError>) {
        let Then { key, call } = then;
        let value = value.map_err(|source| {
            let key = key.text().to_owned();
            RendezvousError::Memory { step, key, source }
        });
        if let (Ok(value), Some(link)) = (&value, self.links.get_mut(&from)) {
            link.traffic.values_received += 1;
            link.traffic.bytes_received += value.payload.len() as u64;
        }
        self.ready.push((call, value));
    }

    /// A payload is coming: it is received in its turn, or taken off the lane if nobody wants it (V3).
    pub(super) fn announced(
        &mut self,
        from: Peer,
        request: u64,
        bytes: u64,
        meta: Meta,
    ) -> Result<(), Garbled> {
        let Some(link) = self.links.get_mut(&from) else { return Ok(()) };
        if link.coming.len() >= MAX_ANNOUNCED {
            return Err(Garbled("more payloads than can have been asked for"));
        }
        let id = WaiterId(request);
        let mut wanted = false;
        if let Some((_, Waiter::Away { peer, stage, .. })) =
            self.table.lock().unwrap_or_else(PoisonError::into_inner).waiter_mut(id)
            && *peer == from
            && *stage == Stage::Asked
        {
            *stage = Stage::Announced;
            wanted = true;
        }
        link.coming.push_back(Coming { request, bytes, meta, wanted, region: None });
        if wanted && bytes > self.max_value_bytes {
            let limit = self.max_value_bytes;
            let who = Box::new(link.who.clone());
            let message = format!("a value of {bytes} bytes, over this task's limit of {limit}");
            self.fail(id, |step, key| RendezvousError::Refused { step, key, who, message });
        }
        self.pump(from);
        Ok(())
    }

    pub(super) fn done(&mut self, completion: Completion) {
        let Completion { id, result, lease } = completion;
        let peer = match self.flights.remove(&id) {
            None => return,
            Some(Flight::Sending { peer, payload }) => {
                drop(lease);
                if let (Ok(()), Some(link)) = (&result, self.links.get_mut(&peer)) {
                    link.traffic.values_sent += 1;
                    link.traffic.bytes_sent += payload.len() as u64;
                }
                peer
            }
            Some(Flight::Receiving { peer, request, meta, region }) => {
                self.received(peer, request, meta, region, lease, result);
                peer
            }
            Some(Flight::Discarding) => {
                give_back(&mut self.nothing, lease);
                return;
            }
        };
        self.pump(peer);
    }

    pub(super) fn received(
        &mut self,
        peer: Peer,
        request: u64,
        meta: Meta,
        mut region: Region,
        lease: Lease,
        result: Result<(), OpError>,
    ) {
        give_back(&mut region, lease);
        let id = WaiterId(request);
        if let Err(error) = result {
            self.pool.recycle(region);
            let who = Box::new(self.links.get(&peer).map(|l| l.who.clone()).unwrap_or_default());
            return self.fail(id, |step, key| match error {
                OpError::PeerLost { cause, .. } => {
                    RendezvousError::Lost { step, key, loss: Box::new(PeerLoss { peer, who: *who, cause }) }
                }
                error => RendezvousError::Refused { step, key, who, message: error.to_string() },
            });
        }
        let taken = {
            let mut table = self.table();
            let step = table.waiter(id).map(|(step, _)| step);
            step.zip(table.take(id))
        };
        let Some((step, Waiter::Away { then, .. })) = taken else { return self.pool.recycle(region) };
        let payload = if region.len() < POOL_BYTES {
            // A page is much for so little.
            let copy = region.bytes(0..region.len()).map(|bytes| SharedBytes::copy_of(bytes, &self.pool));
            self.pool.recycle(region);
            copy.unwrap_or_else(|_| unreachable!("its one lease was given back"))
        } else {
            let shared = SharedBytes::from_region(region, &self.pool);
            Ok(shared.unwrap_or_else(|_| unreachable!("its one lease was given back")))
        };
        self.deliver(peer, step, then, payload.map(|payload| Value { meta, payload }));
    }
}
