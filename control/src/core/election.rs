//! Who leads: one candidate's part in an election by a store that has leases and transactions.
//!
//! Whoever puts its name under the key of leadership, bound to a lease of its own, leads for as long as the key is
//! there. The number of that write, the term, is what every later write of this leader is conditioned on.
//!
//! - E1. A candidate leads only while its lease is known to stand: from the moment a renewal was *sent*, for the time that
//!   the store granted, less a margin for clocks that run at different speeds. The store lets nobody else in before the
//!   lease is over, so two never act as leaders at once.
//! - E2. A leader that is told that its term is over, or cannot renew its lease, says so once
//!   ([`Effect::StepDown`]) before it does anything else.
//! - E3. At most one request of a kind is under way; a late answer to one of an earlier lease changes nothing.
//! - E4. A candidate that is not leading asks again after a pause for as long as it stands; nothing waits for ever.

use std::time::Duration;

use super::machine::Machine;
use super::time::Time;

/// Of the time of a lease, this part is not used, since the store's clock may run faster.
const MARGIN_PART: u32 = 8;
/// A lease is renewed so many times in its span.
const RENEWALS: u32 = 4;

/// Names a lease of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(pub i64);

/// The time in which one candidate leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term {
    /// The revision of the store at which the leadership was taken: later terms have higher ones.
    pub revision: i64,
    /// What the leadership is bound to.
    pub lease: Lease,
}

/// How a claim to lead ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The candidate leads.
    Won {
        /// Since this revision.
        revision: i64,
    },
    /// Another leads.
    Held {
        /// The name that it goes by.
        leader: String,
        /// The revision of the store at which that was read.
        revision: i64,
    },
}

/// How patient a candidate is.
#[derive(Clone, Copy, Debug)]
pub struct ElectionTimes {
    /// Between two tries after one failed.
    pub retry: Duration,
    /// While another leads, and nothing is heard of a change: a watch may be cut off without a word.
    pub recheck: Duration,
}

/// What happens to a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It stands.
    Start,
    /// The answer to [`Effect::Grant`]: the lease and its span.
    Granted(Result<(Lease, Duration), String>),
    /// The answer to [`Effect::Claim`].
    Claimed(Lease, Result<Claim, String>),
    /// The answer to [`Effect::Renew`]: the span from when it was sent, or `None` when the lease is over.
    Renewed(Lease, Result<Option<Duration>, String>),
    /// The leadership changed after this revision, or the watch for it ended.
    Changed(i64),
    /// The leader of this term cannot go on: in words.
    Lost(Term, String),
    /// It stands no more.
    Retire,
}

/// What a candidate wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask for a lease.
    Grant,
    /// Put the candidate's name under the key of leadership, bound to this lease, if nobody's is there.
    Claim(Lease),
    /// Renew this lease.
    Renew(Lease),
    /// End this lease, and with it what is bound to it. Not waited for.
    Revoke(Lease),
    /// Say when the leadership has changed after this revision.
    Watch(i64),
    /// The candidate leads, until [`Effect::StepDown`], and not past this time unless [`Effect::Until`] says so.
    Lead(Term, Time),
    /// The leader's lease stands until then.
    Until(Time),
    /// Another leads: by its name, if it is known.
    Follow(Option<String>),
    /// The candidate leads no more: in words.
    StepDown(String),
    /// It stands no more; this is the last effect.
    Retired,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Tries again then.
    Resting(Time),
    /// Asked for a lease then.
    Granting(Time),
    /// Asked to lead; the lease is good until then.
    Claiming(Lease, Time),
    /// Another leads; that was read at the revision, and is looked at again then.
    Following(i64, Time),
    Leading(Leading),
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leading {
    term: Term,
    span: Duration,
    /// The lease is good until then (E1).
    until: Time,
    /// When the renewal that is under way was sent.
    sent: Option<Time>,
    /// When to renew next.
    next: Time,
}

/// One candidate.
#[derive(Debug)]
pub struct Election {
    times: ElectionTimes,
    phase: Phase,
}

/// Until when a lease is good that was asked for at `sent` (E1).
fn good_until(sent: Time, span: Duration) -> Time {
    sent + (span - span / MARGIN_PART)
}

impl Election {
    /// A candidate that does not stand yet.
    #[must_use]
    pub fn new(times: ElectionTimes) -> Self {
        Election { times, phase: Phase::Idle }
    }

    /// The term in which this candidate leads, if it does at `now`.
    #[must_use]
    pub fn leads(&self, now: Time) -> Option<Term> {
        match &self.phase {
            Phase::Leading(leading) if now < leading.until => Some(leading.term),
            _ => None,
        }
    }

    fn try_again(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.phase = Phase::Granting(now);
        out.push(Effect::Grant);
    }

    fn rest(&mut self, now: Time) {
        self.phase = Phase::Resting(now + self.times.retry);
    }

    fn claimed(
        &mut self,
        now: Time,
        (lease, until): (Lease, Time),
        claim: Result<Claim, String>,
        out: &mut Vec<Effect>,
    ) {
        match claim {
            Ok(Claim::Won { revision }) if now < until => {
                let span = until.since(now);
                let term = Term { revision, lease };
                let next = now + span / RENEWALS;
                self.phase = Phase::Leading(Leading { term, span, until, sent: None, next });
                out.push(Effect::Lead(term, until));
            }
            Ok(Claim::Held { leader, revision }) => {
                out.push(Effect::Revoke(lease));
                out.push(Effect::Follow(Some(leader)));
                out.push(Effect::Watch(revision));
                self.phase = Phase::Following(revision, now + self.times.recheck);
            }
            // It may have been won all the same: with the lease that ends.
            Ok(Claim::Won { .. }) | Err(_) => {
                out.push(Effect::Revoke(lease));
                self.rest(now);
            }
        }
    }

    fn step_down(&mut self, now: Time, lease: Lease, why: String, out: &mut Vec<Effect>) {
        out.push(Effect::StepDown(why));
        out.push(Effect::Revoke(lease));
        self.rest(now);
    }

    fn renewed(&mut self, now: Time, result: Result<Option<Duration>, String>, out: &mut Vec<Effect>) {
        let Phase::Leading(leading) = &mut self.phase else { return };
        let lease = leading.term.lease;
        let Some(sent) = leading.sent.take() else { return };
        match result {
            Ok(Some(span)) => {
                leading.span = span;
                leading.until = leading.until.max(good_until(sent, span));
                leading.next = sent + span / RENEWALS;
                out.push(Effect::Until(leading.until));
            }
            Ok(None) => self.step_down(now, lease, "the store has ended its lease".to_owned(), out),
            Err(_) => leading.next = now + self.times.retry.min(leading.span / (RENEWALS * 4)),
        }
    }

    fn retire(&mut self, out: &mut Vec<Effect>) {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Leading(leading) => {
                out.push(Effect::StepDown("the service ends".to_owned()));
                out.push(Effect::Revoke(leading.term.lease));
            }
            Phase::Claiming(lease, _) => out.push(Effect::Revoke(lease)),
            Phase::Over => return,
            Phase::Idle | Phase::Resting(_) | Phase::Granting(_) | Phase::Following(..) => {}
        }
        out.push(Effect::Retired);
    }
}

impl Machine for Election {
    type Event = Event;
    type Effect = Effect;

    fn on_event(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        match (event, self.phase) {
            (Event::Retire, _) => self.retire(out),
            (Event::Start, Phase::Idle) => {
                out.push(Effect::Follow(None));
                self.try_again(now, out);
            }
            (Event::Granted(Ok((lease, span))), Phase::Granting(sent)) => {
                self.phase = Phase::Claiming(lease, good_until(sent, span));
                out.push(Effect::Claim(lease));
            }
            (Event::Granted(Err(_)), Phase::Granting(_)) => self.rest(now),
            // Nobody waits for it any more.
            (Event::Granted(Ok((lease, _))), _) => out.push(Effect::Revoke(lease)),
            (Event::Claimed(lease, claim), Phase::Claiming(ours, until)) if lease == ours => {
                self.claimed(now, (lease, until), claim, out);
            }
            (Event::Renewed(lease, result), Phase::Leading(leading)) if leading.term.lease == lease => {
                self.renewed(now, result, out);
            }
            (Event::Changed(revision), Phase::Following(known, _)) if revision == known => {
                self.try_again(now, out);
            }
            (Event::Lost(term, why), Phase::Leading(leading)) if leading.term == term => {
                self.step_down(now, term.lease, why, out);
            }
            // Late, or of an earlier lease (E3).
            _ => {}
        }
        self.on_time(now, out);
    }

    fn on_time(&mut self, now: Time, out: &mut Vec<Effect>) {
        match &mut self.phase {
            Phase::Leading(leading) if leading.until <= now => {
                let (lease, span) = (leading.term.lease, leading.span);
                let why = format!("its lease of {span:.1?} could not be renewed in time");
                self.step_down(now, lease, why, out);
            }
            Phase::Leading(leading) if leading.sent.is_none() && leading.next <= now => {
                leading.sent = Some(now);
                out.push(Effect::Renew(leading.term.lease));
            }
            Phase::Resting(until) if *until <= now => self.try_again(now, out),
            Phase::Following(_, until) if *until <= now => self.try_again(now, out),
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Idle | Phase::Granting(_) | Phase::Claiming(..) | Phase::Over => None,
            Phase::Resting(until) | Phase::Following(_, until) => Some(*until),
            Phase::Leading(leading) => {
                Some(if leading.sent.is_some() { leading.until } else { leading.until.min(leading.next) })
            }
        }
    }
}
