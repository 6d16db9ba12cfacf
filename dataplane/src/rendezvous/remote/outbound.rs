//! What goes to other tasks, in order, as the transport has room.

use super::{Coming, Core, Flight, LANE, MAX_NOTES, give_back, stamp};
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::table::WaiterId;
use crate::rendezvous::waiter::{Stage, Waiter};
use crate::rendezvous::wire::{self, Message};
use crate::transport::{Cause, CauseKind, Op, OpId, Peer, PostError};

impl Core {
    pub(super) fn say(&mut self, peer: Peer, message: &Message<'_>) {
        let Some(link) = self.links.get_mut(&peer).filter(|l| l.lost.is_none()) else { return };
        if link.notes.len() >= MAX_NOTES {
            let why = format!("{MAX_NOTES} messages to it wait to be taken, the limit");
            return self.close(peer, Cause::new(CauseKind::Protocol, why));
        }
        self.encoded.clear();
        message.encode(&mut self.encoded);
        link.notes.extend(wire::notes(&self.encoded));
        self.pump(peer);
    }

    pub(super) fn op(&mut self) -> OpId {
        self.next_op += 1;
        OpId(self.next_op)
    }

    /// Hands the transport what it has room for.
    pub(super) fn pump(&mut self, peer: Peer) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        if link.lost.is_some() || !link.waits() {
            return;
        }
        while let Some(note) = link.notes.front() {
            match self.transport.note(peer, note) {
                Ok(()) => drop(link.notes.pop_front()),
                Err(PostError::Full(_)) => break,
                Err(error) => return self.unusable(peer, &error),
            }
        }
        self.pump_sends(peer);
        self.pump_receives(peer);
        let waits = self.links.get(&peer).is_some_and(|l| l.lost.is_none() && l.waits());
        if waits && !self.stuck.contains(&peer) {
            self.stuck.push(peer);
        }
    }

    /// The transport takes nothing more for a peer; it has told why, or does so now.
    pub(super) fn unusable(&mut self, peer: Peer, error: &PostError) {
        let cause = match error {
            PostError::Gone { cause, .. } => cause.clone(),
            other => Cause::new(CauseKind::Local, other.to_string()),
        };
        self.lose(peer, cause);
    }

    pub(super) fn pump_sends(&mut self, peer: Peer) {
        loop {
            let id = self.op();
            let Some(link) = self.links.get_mut(&peer) else { return };
            let Some((request, payload)) = link.sends.pop_front() else { return };
            let op = Op::Send { to: peer, tag: LANE, stamp: stamp(request), bytes: payload.lend() };
            match self.transport.post(id, op) {
                Ok(()) => drop(self.flights.insert(id, Flight::Sending { peer, payload })),
                Err((PostError::Full(_), _)) => return link.sends.push_front((request, payload)),
                Err((error, _)) => return self.unusable(peer, &error),
            }
        }
    }

    pub(super) fn pump_receives(&mut self, peer: Peer) {
        loop {
            let Some(link) = self.links.get_mut(&peer) else { return };
            let Some(mut coming) = link.coming.pop_front() else { return };
            if coming.wanted && coming.region.is_none() {
                self.make_room(&mut coming);
            }
            let id = self.op();
            let region = coming.region.as_mut().unwrap_or(&mut self.nothing);
            let lease = region.lend_write(0..region.len());
            let Ok(into) = lease else {
                // The region without bytes is lent as often as it can be.
                self.put_back(peer, coming);
                return;
            };
            let op = Op::Recv { from: peer, tag: LANE, stamp: stamp(coming.request), into };
            if let Err((error, op)) = self.transport.post(id, op) {
                give_back(coming.region.as_mut().unwrap_or(&mut self.nothing), op.into_lease());
                match error {
                    PostError::Full(_) => self.put_back(peer, coming),
                    error => {
                        self.put_back(peer, coming);
                        self.unusable(peer, &error);
                    }
                }
                return;
            }
            match coming.region {
                Some(region) => {
                    let (request, meta) = (coming.request, coming.meta);
                    if let Some((_, Waiter::Away { stage, .. })) = self.table().waiter_mut(WaiterId(request))
                    {
                        *stage = Stage::Receiving(id);
                    }
                    self.flights.insert(id, Flight::Receiving { peer, request, meta, region });
                }
                None => {
                    self.flights.insert(id, Flight::Discarding);
                    self.transport.cancel(id);
                }
            }
        }
    }

    pub(super) fn put_back(&mut self, peer: Peer, coming: Coming) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.coming.push_front(coming);
        }
    }

    /// Memory for a payload, if it is still wanted.
    pub(super) fn make_room(&mut self, coming: &mut Coming) {
        let id = WaiterId(coming.request);
        if self.table().waiter(id).is_none() {
            return;
        }
        let bytes = usize::try_from(coming.bytes).unwrap_or(usize::MAX);
        match self.pool.region(bytes) {
            Ok(region) => coming.region = Some(region),
            Err(source) => self.fail(id, |step, key| RendezvousError::Memory { step, key, source }),
        }
    }
}
