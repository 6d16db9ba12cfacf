//! How a communicator dies, and how everybody learns of it.
//!
//! - **F1** The first cause wins: once dead, a communicator keeps its one error, and answers every pending and later
//!   call with it.
//! - **F2** Who finds a communicator dead tells every member it can reach, once; who is told tells on, once. So ranks
//!   without a connection to the culprit hear of it from those that had one.
//! - **F3** A dead communicator's operations are cancelled, and its calls end when the last lease is home, which waits
//!   for no peer (T7).
//! - **F4** Another communicator lives on unless the lost peer is a member of it.

#![forbid(unsafe_code)]

use super::core::Core;
use super::error::{CollectiveError, During};
use super::fingerprint::Call;
use super::group::{Group, Heard, Numbers, Remembered};
use super::recorder::Befell;
use super::run::{Fault, Phase};
use super::word::{Death, Word};
use ringway_dataplane::transport::{Cause, CauseKind, Note, OpId, Peer, Stamp};
use std::time::Instant;

/// In groups of up to this many members the bearer of bad news makes connections to tell all; in larger ones it tells
/// those that it is connected to, and they tell on.
const TELL_ALL_MEMBERS: usize = 64;

/// What the loss of a rank is to those who needed it. Where this side is the reason, it is this rank that ends the
/// communicator, and the other is not blamed.
fn lost(group: &Group, rank: u32, during: During, cause: &Cause) -> CollectiveError {
    let who = group.who(rank);
    if cause.kind == CauseKind::Local {
        let message = format!("no way to {who}: {}", cause.evidence);
        return CollectiveError::Aborted { who: group.who(group.info.my_rank), during, message };
    }
    CollectiveError::Lost { who, during, kind: cause.kind, evidence: cause.evidence.clone() }
}

/// A communicator that was closed here, as far as others may still ask about it.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) id: u32,
    rank: u32,
    peers: Vec<Peer>,
    numbers: Numbers,
    /// What it had died of.
    dead: Option<Death>,
}

impl Closed {
    pub(super) fn new(group: Group) -> Closed {
        let (id, rank) = (group.info.id, group.info.my_rank);
        let dead = group.dead.as_ref().and_then(|error| Death::of(error, rank));
        Closed { id, rank, peers: group.peers, numbers: group.numbers, dead }
    }

    /// What to tell a rank that waits for this one in the call with this stamp. `None`: nothing, since the call was made here,
    /// and that rank has all from this one that it needs, or will have. What was sent before is there before the answer.
    fn answer(&self, from: Peer, stamp: &Stamp, check: bool) -> Option<Word> {
        let dead = |death| Some(Word::Dead { group: self.id, death });
        if let Some(death) = &self.dead {
            return dead(death.clone());
        }
        let theirs = Call::from_stamp(stamp)?;
        if theirs.collective.is_none() || self.numbers.is_ahead(theirs.seq) {
            return dead(Death::Lost {
                rank: self.rank,
                seen_by: self.rank,
                during: *stamp,
                kind: CauseKind::Left,
                evidence: "it has closed this communicator".into(),
            });
        }
        match self.numbers.call(theirs.seq)? {
            Remembered::Made(ours) if !check || *ours == theirs => None,
            Remembered::Made(ours) => {
                let other = self.peers.iter().position(|peer| *peer == from)? as u32;
                dead(Death::Mismatch { a: self.rank, a_call: ours.stamp(), b: other, b_call: *stamp })
            }
            Remembered::Refused(ours, why) => {
                Some(Word::Refused { group: self.id, stamp: ours.stamp(), why: why.clone() })
            }
        }
    }
}

impl Core {
    /// A run found that it cannot go on: its communicator is dead.
    pub(super) fn fault(&mut self, slot: u16, fault: Fault) {
        let run = &self.runs[usize::from(slot)];
        let (index, call) = (run.group, run.call);
        let Some(group) = self.groups[index].as_ref() else { return };
        let during = During::Call(call);
        let error = match fault {
            Fault::Gone { rank, cause } => lost(group, rank, during, &cause),
            Fault::Mismatch { rank, theirs, count } => match Call::from_stamp(&theirs) {
                Some(theirs) if theirs == call => CollectiveError::Transport {
                    who: group.who(rank),
                    during,
                    evidence:
                        "it sends the same call otherwise: every rank needs the same check and slice_bytes"
                            .to_owned(),
                },
                Some(theirs) => {
                    let ours = Call { count: count.unwrap_or(call.count), ..call };
                    return self.mismatched(index, ours, rank, theirs);
                }
                None => CollectiveError::Transport {
                    who: group.who(rank),
                    during,
                    evidence: format!("its message is of another length, or not ours: {theirs:?}"),
                },
            },
            Fault::Function { message } => {
                CollectiveError::Aborted { who: group.who(group.info.my_rank), during, message }
            }
            Fault::Broken { rank, evidence } => {
                CollectiveError::Transport { who: group.who(rank), during, evidence }
            }
        };
        self.fail(index, error, None);
    }

    /// F1: a communicator dies of `error`. `told_by` is the note and rank that the news came by, if it came.
    pub(super) fn fail(&mut self, index: usize, error: CollectiveError, told_by: Option<(Note, u32)>) {
        let Some(group) = self.groups[index].as_mut().filter(|g| g.dead.is_none()) else { return };
        let (id, my_rank) = (group.info.id, group.info.my_rank);
        // Whoever calls on it is told, and need not read it twice.
        tracing::info!(group = id, rank = my_rank, "{error}");
        group.dead = Some(error.clone());
        self.fallen = true;
        self.recorder.happens(Befell::Died, Some(id), None, &error.to_string());
        if let Some(death) = Death::of(&error, my_rank) {
            let spared = death.gone();
            let (note, teller) = match told_by {
                // Told on as it came, so that the one who saw it stays named.
                Some((note, from)) => (note, Some(from)),
                None => (Word::Dead { group: id, death }.note(), None),
            };
            self.tell(index, &note, |rank| Some(rank) == spared || Some(rank) == teller);
        }
        if let Some(on_failure) = self.options.on_failure.clone() {
            (on_failure.0)(id, &error);
        }
        let slots = 0..self.runs.len() as u16;
        for slot in slots.filter(|s| self.runs[usize::from(*s)].group == index).collect::<Vec<_>>() {
            self.end_failed(slot, &error);
        }
    }

    /// F3: cancels a run of a dead communicator.
    fn end_failed(&mut self, slot: u16, error: &CollectiveError) {
        let run = &mut self.runs[usize::from(slot)];
        match run.phase {
            Phase::Idle | Phase::Done | Phase::Failing => {}
            Phase::Queued => self.finish(slot, Some(Box::new(error.clone()))),
            Phase::Active if run.posted == 0 => self.finish(slot, Some(Box::new(error.clone()))),
            Phase::Active => {
                run.phase = Phase::Failing;
                run.error = Some(Box::new(error.clone()));
                let ids: Vec<OpId> = run.in_flight().map(|(id, _)| id).collect();
                for id in ids {
                    self.transport.cancel(id);
                }
            }
        }
    }

    /// Sends a note to every reachable member but this rank and those that `but` names.
    fn tell(&mut self, index: usize, note: &Note, but: impl Fn(u32) -> bool) {
        let Some(group) = self.groups[index].as_ref() else { return };
        let everybody = group.peers.len() <= TELL_ALL_MEMBERS;
        for (rank, peer) in group.peers.iter().enumerate() {
            let rank = rank as u32;
            let reachable = everybody || self.transport.why(*peer).is_some();
            if rank != group.info.my_rank && !but(rank) && reachable {
                // Who cannot be told has left or is lost, and whoever waits for it learns that.
                let _ = self.transport.note(*peer, note);
            }
        }
    }

    /// Tells the others that this rank refused a call for its arguments. It goes on; if they made the call, they
    /// cannot.
    pub(super) fn tell_refusal(&mut self, index: usize, call: &Call, why: String) {
        let Some(group) = self.groups[index].as_ref() else { return };
        let note = Word::Refused { group: group.info.id, stamp: call.stamp(), why }.note();
        self.tell(index, &note, |_| false);
    }

    /// A peer is lost: so is every communicator that it is a member of (F4).
    pub(super) fn on_lost(&mut self, peer: Peer, cause: &Cause) {
        self.recorder.happens(Befell::Lost, None, Some(peer), &cause.evidence);
        for index in 0..self.groups.len() {
            let Some(group) = self.groups[index].as_ref() else { continue };
            let Some(rank) = group.rank_of(peer) else { continue };
            let error = lost(group, rank, self.doing(index), cause);
            self.fail(index, error, None);
        }
    }

    /// The oldest call under way on a communicator.
    pub(super) fn doing(&self, index: usize) -> During {
        let on = |slot: &&u16| self.runs[usize::from(**slot)].group == index;
        let oldest = self.active.iter().find(on);
        oldest.map_or(During::Idle, |slot| During::Call(self.runs[usize::from(*slot)].call))
    }

    /// This rank's user ends a communicator.
    pub(super) fn abort(&mut self, index: usize, message: String) {
        let Some(group) = self.groups[index].as_ref() else { return };
        let who = group.who(group.info.my_rank);
        let error = CollectiveError::Aborted { who, during: self.doing(index), message };
        self.fail(index, error, None);
    }

    /// A peer cancelled its half of a message of this run: its communicator is dead there, and its note says why.
    pub(super) fn on_withdrawn(&mut self, slot: u16, rank: u32) {
        let run = &mut self.runs[usize::from(slot)];
        if run.withdrawn.replace(rank).is_none() {
            self.ask(slot, rank);
        }
    }

    /// Asks a rank whether it makes the same call.
    pub(super) fn ask(&mut self, slot: u16, rank: u32) {
        let run = &self.runs[usize::from(slot)];
        let Some(group) = self.groups[run.group].as_ref() else { return };
        let note = Word::Asks { group: group.info.id, stamp: run.call.stamp() }.note();
        let _ = self.transport.note(group.peers[rank as usize], &note);
    }

    pub(super) fn on_note(&mut self, from: Peer, note: &Note) {
        let Some(word) = Word::read(note) else {
            tracing::debug!("a note from peer {} is none of ours", from.0);
            return;
        };
        let id = word.group();
        let here = |g: &Option<Group>| g.as_ref().is_some_and(|g| g.info.id == id);
        let Some(index) = self.groups.iter().position(here) else {
            return self.answer_for_retired(from, &word);
        };
        let Some(rank) = self.groups[index].as_ref().and_then(|g| g.rank_of(from)) else { return };
        match word {
            Word::Asks { stamp, .. } => self.on_asked(index, rank, stamp),
            Word::Refused { stamp, why, .. } => self.on_refused(index, rank, stamp, why),
            Word::Histories { seq, histories, .. } => self.on_histories(index, rank, seq, &histories),
            Word::Dead { death, .. } => {
                let error = self.groups[index].as_ref().and_then(|g| death.error(g));
                if let Some(error) = error {
                    self.fail(index, error, Some((*note, rank)));
                }
            }
        }
    }

    /// Somebody waits for this rank on a communicator that was closed here.
    fn answer_for_retired(&mut self, from: Peer, word: &Word) {
        let (id, Word::Asks { stamp, .. }) = (word.group(), word) else { return };
        let closed = self.retired.iter().find(|closed| closed.id == id);
        if let Some(answer) = closed.and_then(|closed| closed.answer(from, stamp, self.options.check)) {
            let _ = self.transport.note(from, &answer.note());
        }
    }

    /// Another rank waits for this one in a call.
    fn on_asked(&mut self, index: usize, rank: u32, stamp: Stamp) {
        let (Some(theirs), Some(group)) = (Call::from_stamp(&stamp), self.groups[index].as_mut()) else {
            return;
        };
        let peer = group.peers[rank as usize];
        if let Some(error) = &group.dead {
            if let Some(death) = Death::of(error, group.info.my_rank) {
                let _ = self.transport.note(peer, &Word::Dead { group: group.info.id, death }.note());
            }
            return;
        }
        // Nothing is known of a message that is not there: its other half may still be called for.
        if theirs.collective.is_none() {
            return;
        }
        match group.numbers.call(theirs.seq) {
            Some(Remembered::Made(ours)) => {
                let ours = *ours;
                self.compare(index, ours, rank, theirs);
            }
            Some(Remembered::Refused(ours, why)) => {
                let (stamp, why) = (ours.stamp(), why.clone());
                let _ = self.transport.note(peer, &Word::Refused { group: group.info.id, stamp, why }.note());
            }
            None if group.numbers.is_ahead(theirs.seq) => group.hear(rank, theirs.seq, Heard::Asks(stamp)),
            None => {}
        }
    }

    fn compare(&mut self, index: usize, ours: Call, rank: u32, theirs: Call) {
        if ours != theirs && self.options.check {
            self.mismatched(index, ours, rank, theirs);
        }
    }

    /// Another rank refused a call for its arguments: this one's call cannot go on, if it is or will be made.
    fn on_refused(&mut self, index: usize, rank: u32, stamp: Stamp, why: String) {
        let (Some(theirs), Some(group)) = (Call::from_stamp(&stamp), self.groups[index].as_mut()) else {
            return;
        };
        match group.numbers.call(theirs.seq) {
            Some(Remembered::Made(_)) => {
                let who = group.who(rank);
                let error = CollectiveError::Aborted { who, during: During::Call(theirs), message: why };
                self.fail(index, error, None);
            }
            Some(Remembered::Refused(..)) => {}
            None if group.numbers.is_ahead(theirs.seq) => {
                group.hear(rank, theirs.seq, Heard::Refused(stamp, why));
            }
            None => {}
        }
    }

    /// This rank has reached a call that others have spoken of.
    pub(super) fn hear_out(&mut self, index: usize, ours: &Call) {
        while let Some((rank, heard)) = self.groups[index].as_mut().and_then(|g| g.recall(ours.seq)) {
            match heard {
                Heard::Asks(stamp) => {
                    if let Some(theirs) = Call::from_stamp(&stamp) {
                        self.compare(index, *ours, rank, theirs);
                    }
                }
                Heard::Refused(stamp, why) => self.on_refused(index, rank, stamp, why),
            }
        }
    }

    /// A run has heard nothing for long from a rank that withdrew.
    pub(super) fn give_up_on(&mut self, slot: u16, rank: u32, since: Instant, now: Instant) {
        let run = &self.runs[usize::from(slot)];
        let (index, during) = (run.group, During::Call(run.call));
        let Some(group) = self.groups[index].as_ref() else { return };
        let waited_ms = now.duration_since(since).as_millis();
        let message = format!("it withdrew from a message, and gave no reason within {waited_ms} ms");
        self.fail(index, CollectiveError::Aborted { who: group.who(rank), during, message }, None);
    }
}
