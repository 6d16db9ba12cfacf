//! Rails that fail while others live: what was under way goes on over those.
//!
//! A rail that fails is stopped on both sides, and what had come in over it is taken, before anything that it carried is
//! told to have ended: a late packet must not write into memory that has been given back.
//! - When a rail of writes fails, the side that sees it stops its own end, says so over the control rail, and does its
//!   writes again over others. The peer stops its end when it hears, before it hears of any end.
//! - When the control rail fails, both sides stop it, take what had come in, and tell each other over all rails that are
//!   left how many messages they took, and which rails these are. The first that both name is the next control rail,
//!   and what was not taken is posted again there, in its order. If that one has failed meanwhile, they begin again.
//!
//! Invariants (cited by the tests):
//! - **F1** A message is taken once, and in order, whichever rails fail and when, as long as one is left.
//! - **F2** A place is given back only when no rail that may have been written to it is left that could still write.
//! - **F3** A rail that is stopped is down within [`DRAIN_MS`], and a change of the control rail is over within
//!   [`FAILOVER_MS`], or the peer is lost.
#![forbid(unsafe_code)]

use super::connection::{Connection, Posted, Verdict};
use super::device::Device;
use super::rail::{SENDS, Write};
use super::request::{Kind as Request, distance};
use super::verbs::WorkCompletion;
use super::wire::AboutRail;
use crate::transport::matching::{Matcher, Retired};
use crate::transport::{Cause, CauseKind, Event};

/// How long a stopped rail may take to end its requests; then what had come in over it counts as unknown.
pub(super) const DRAIN_MS: u64 = 2_000;
/// How long the peer may take to say how many messages it took before the control rail failed.
pub(super) const FAILOVER_MS: u64 = 20_000;

/// A change of the control rail.
#[derive(Debug)]
pub(super) struct Failover {
    /// Why the rail failed.
    cause: Cause,
    /// The rails that were left when this side said what it took.
    said: Option<u32>,
    since_ms: Option<u64>,
}

/// What a peer said when its control rail failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resumed {
    /// How many messages it took.
    taken: u32,
    /// The rails that are left to it, a bit each.
    alive: u32,
}

impl Connection {
    /// What a failed request tells of its rail.
    pub(super) fn failed(
        &self,
        kind: Request,
        rail: usize,
        wc: &WorkCompletion,
        devices: &[Device],
    ) -> Cause {
        let what = match kind {
            Request::Receive => "a receive",
            Request::Send => "a message",
            Request::Write => "a write",
            Request::Pulse => "a sign of life that was asked for",
            Request::About => "a message about rails",
            Request::Fence => "a fence",
            Request::HelloHeard | Request::HelloLeft => "a hello",
        };
        let device = &devices[self.rails[rail].device].rail.device;
        let evidence = format!(
            "{what} on queue pair {} of {device} ended with: {} (vendor {:#x}), after {} messages from the peer",
            wc.qp_num, wc.status, wc.vendor_error, self.taken
        );
        Cause::new(CauseKind::Reset, evidence)
    }

    /// A request of a rail failed, or its port did, or its device `broke`: then what had come in cannot be told.
    pub(super) fn rail_failed(&mut self, rail: usize, cause: Cause, broke: bool) -> Verdict {
        let Some(of) = self.rails.get_mut(rail) else { return Verdict::On };
        if !of.fail() {
            // Its requests end one by one.
            return Verdict::On;
        }
        let was_down = of.is_down();
        let stops = !broke && of.stop();
        self.ends.stopping(rail);
        if !stops {
            self.take_down(rail, !was_down);
        }
        if self.alive() == 0 {
            return Verdict::Lost(cause);
        }
        tracing::warn!("a rail failed, and {} are left: {cause}", self.alive());
        if rail == self.control {
            self.failover = Some(Failover { cause, said: None, since_ms: None });
        } else {
            self.about_rails.push_back(AboutRail::Down { rail }.frame());
        }
        Verdict::On
    }

    /// The peer's end of a rail is down.
    pub(super) fn rail_is_down(&mut self, rail: usize) -> Verdict {
        let why = format!("the peer says that rail {rail} failed");
        match rail == self.control {
            true => Verdict::Lost(Cause::new(CauseKind::Protocol, format!("{why}, which said so itself"))),
            false => self.rail_failed(rail, Cause::new(CauseKind::Reset, why), false),
        }
    }

    /// Takes a rail down; its writes are to be done again.
    fn take_down(&mut self, rail: usize, broke: bool) {
        let writes = self.rails[rail].kill();
        // Telling writes are in the log as well.
        self.redo.extend(writes.into_iter().filter(|w| w.told.is_none()));
        match broke {
            true => self.ends.broken(rail),
            false => self.ends.down(rail),
        }
    }

    /// Moves on after a rail has failed: when a stopped one has ended all its requests, and when both sides have said
    /// what they took.
    pub(super) fn settle(
        &mut self,
        retired: &Retired,
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Verdict {
        for rail in 0..self.rails.len() {
            if self.rails[rail].is_drained() {
                self.take_down(rail, false);
            }
        }
        match self.believe(retired, matcher, events) {
            Ok(Verdict::On) => {}
            Ok(over) => return over,
            Err(what) => return Verdict::Lost(self.violation(&what)),
        }
        self.resume(matcher, events).map_or_else(Verdict::Lost, |()| Verdict::On)
    }

    /// The peer says how many messages it took, and what is left to it.
    pub(super) fn resumed(&mut self, old: usize, taken: u32, alive: u32) -> Result<Verdict, String> {
        let heard = self.heard.get_mut(old).filter(|_| old < self.rails.len());
        let heard = heard.ok_or_else(|| format!("resumed after rail {old}, which there is not"))?;
        // It says so over all rails.
        heard.get_or_insert(Resumed { taken, alive });
        match old == self.control {
            true => {
                let why = "the peer has lost the rail of small messages";
                Ok(self.rail_failed(old, Cause::new(CauseKind::Reset, why), false))
            }
            false => Ok(Verdict::On),
        }
    }

    fn alive_mask(&self) -> u32 {
        let alive = self.rails.iter().enumerate().filter(|(_, r)| r.is_alive());
        alive.fold(0, |mask, (r, _)| mask | 1 << r)
    }

    /// Says over all rails that are left how many messages this side took.
    fn say_resume(&mut self, old: usize) -> u32 {
        let alive = self.alive_mask();
        let frame = AboutRail::Resumed { rail: old, taken: self.taken, alive }.frame();
        for rail in (0..self.rails.len()).filter(|r| alive & 1 << r != 0) {
            if let Err(cause) = self.send_about(&frame, old, rail) {
                // Its completions, or its port, say that it has failed.
                tracing::debug!("rail {rail} did not take what is said of others: {cause}");
            }
        }
        alive
    }

    /// Posts again what the peer has not taken, once both have said what they took.
    fn resume(&mut self, matcher: &mut Matcher, events: &mut Vec<Event>) -> Result<(), Cause> {
        while let Some(failover) = &self.failover {
            let old = self.control;
            if !self.rails[old].is_down() {
                return Ok(());
            }
            let (cause, said) = (failover.cause.clone(), failover.said);
            let said = said.unwrap_or_else(|| self.say_resume(old));
            if let Some(failover) = &mut self.failover {
                failover.said = Some(said);
            }
            let Some(Resumed { taken, alive }) = self.heard[old] else { return Ok(()) };
            let common = said & alive;
            if common == 0 {
                let why = format!("no rail is left that both sides have up: {}", cause.evidence);
                return Err(Cause::new(cause.kind, why));
            }
            self.count_taken(taken, matcher, events)?;
            self.control = common.trailing_zeros() as usize;
            self.failover = None;
            if !self.rails[self.control].is_alive() || self.heard[self.control].is_some() {
                // It has failed meanwhile.
                let _ = self.rails[self.control].fail() && self.rails[self.control].stop();
                self.failover = Some(Failover { cause, said: None, since_ms: None });
                continue;
            }
            self.post_untaken()?;
        }
        Ok(())
    }

    fn count_taken(
        &mut self,
        taken: u32,
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Result<(), Cause> {
        let (new, all) = (distance(self.done, taken), distance(self.done, self.next));
        if new > all {
            let lost = distance(taken, self.done);
            let why = format!(
                "{lost} messages that the peer's device had acknowledged did not reach its process before the rail \
                 failed"
            );
            return Err(Cause::new(CauseKind::Reset, why));
        }
        if new > 0 {
            self.done_up_to(taken.wrapping_sub(1), matcher, events);
        }
        Ok(())
    }

    fn post_untaken(&mut self) -> Result<(), Cause> {
        self.budget = self.their_receives;
        self.owed = 0;
        let mut number = self.done;
        while number != self.next {
            match self.log[(number % SENDS) as usize] {
                Posted::Message(len) => {
                    self.forget_receives(number);
                    self.post_message(number, len, true)?;
                }
                Posted::Write(write) => self.redo_telling(number, write)?,
            }
            number = number.wrapping_add(1);
        }
        Ok(())
    }

    fn redo_telling(&mut self, number: u32, write: Write) -> Result<(), Cause> {
        let id = self.id(super::request::Kind::Write, 0);
        self.budget -= 1;
        debug_assert_eq!(write.told, Some(number));
        self.rails[self.control].write(id, self.control, write)
    }

    /// Ends waits that have lasted too long (F3), and says what is to be done about it.
    pub(super) fn look_at_deadlines(&mut self, now_ms: u64) -> Verdict {
        for rail in 0..self.rails.len() {
            if self.rails[rail].is_stuck(now_ms) {
                self.take_down(rail, true);
            }
        }
        let Some(Failover { cause, since_ms, .. }) = &mut self.failover else { return Verdict::On };
        if now_ms < *since_ms.get_or_insert(now_ms) + FAILOVER_MS {
            return Verdict::On;
        }
        let why = format!(
            "it has not said within {FAILOVER_MS} ms how many messages it took over the rail that failed: {}",
            cause.evidence
        );
        Verdict::Lost(Cause::new(CauseKind::Unreachable, why))
    }

    /// When [`Self::look_at_deadlines`] must come next, if a rail is failing.
    pub(super) fn deadline_ms(&self, now_ms: u64) -> Option<u64> {
        let failover = self.failover.as_ref().map(|f| f.since_ms.map_or(now_ms, |since| since + FAILOVER_MS));
        let drains = self.rails.iter().filter_map(|r| r.drain_due_ms(now_ms));
        drains.chain(failover).min()
    }
}
