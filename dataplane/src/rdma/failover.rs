//! Rails that fail while others live: what was under way goes on over those.
//!
//! A rail that fails is taken down on both sides before anything that was written over it is told to have ended: a late
//! packet must not write into memory that has been given back.
//! - When a rail of writes fails, the side that sees it takes its own end down, says so over the control rail, and does
//!   its writes again over others. The peer takes its end down when it hears, before it hears of any end.
//! - When the control rail fails, both sides stop it, take what had come in, and tell each other over another rail how
//!   many messages they took ([`Kind::Rail`] with the rail in `slot`, the count in `length`, and `offset` 1). What
//!   was not taken is posted again, in its order.
//!
//! Invariants (cited by the tests):
//! - **F1** A message is taken once, and in order, whichever rail fails, if no other fails before that is over: then
//!   the connection is lost.
//! - **F2** A place is given back only when no rail that may have been written to it is left that could still write.
#![forbid(unsafe_code)]

use super::connection::{Connection, Posted, Verdict};
use super::rail::{SENDS, Write};
use super::request::distance;
use crate::transport::matching::{Frame, Kind, Matcher};
use crate::transport::{Cause, CauseKind, Event};

/// A change of the control rail.
#[derive(Debug)]
pub(super) struct Failover {
    /// Why the rail failed.
    cause: Cause,
    /// Its end here is down, and all that had come in is taken.
    stopped: bool,
    /// The rail that this side resumes on, once it has said so.
    said_on: Option<usize>,
    /// What the peer said: the rail, and how many messages it took.
    heard: Option<(usize, u32)>,
}

impl Failover {
    /// The rail that this side resumes on, once it has said so.
    pub(super) fn said_on(&self) -> Option<usize> {
        self.said_on
    }
}

impl Connection {
    /// A request of a rail failed, or its port did.
    pub(super) fn rail_failed(&mut self, rail: usize, cause: Cause) -> Verdict {
        if self.failover.is_some() && rail == self.control {
            // Its requests end one by one.
            return self.step_failover();
        }
        if self.alive() < 2 {
            return Verdict::Lost(cause);
        }
        tracing::warn!("a rail failed, and {} are left: {cause}", self.alive() - 1);
        if rail != self.control {
            if self.failover.is_some() || self.about_on == Some(rail) {
                return Verdict::Lost(cause);
            }
            self.take_down(rail);
            let frame = Frame { slot: rail as u64, ..Frame::bare(Kind::Rail) };
            self.about_rails.push_back(frame);
            return Verdict::On;
        }
        match self.begin_failover(cause.clone(), None) {
            true => self.step_failover(),
            false => Verdict::Lost(cause),
        }
    }

    /// The port of a rail failed, or its device `broke`; nothing to do where the rail is down already.
    pub(super) fn port_failed(&mut self, rail: usize, cause: Cause, broke: bool) -> Verdict {
        match self.rails.get(rail) {
            // It cannot say any more what had come in.
            Some(of) if of.is_alive() && broke && rail == self.control => Verdict::Lost(cause),
            Some(of) if of.is_alive() => self.rail_failed(rail, cause),
            _ => Verdict::On,
        }
    }

    /// The peer's end of a rail is down.
    pub(super) fn rail_is_down(&mut self, rail: u64) {
        let rail = usize::try_from(rail).unwrap_or(usize::MAX);
        if rail != self.control && self.rails.get(rail).is_some_and(|r| r.is_alive()) {
            self.take_down(rail);
        }
    }

    /// Takes a rail down that is not the control rail; its writes are to be done again.
    fn take_down(&mut self, rail: usize) {
        let writes = self.rails[rail].kill();
        self.redo.extend(writes);
    }

    /// `false`: the device cannot say any more what had come in.
    fn begin_failover(&mut self, cause: Cause, heard: Option<(usize, u32)>) -> bool {
        self.failover = Some(Failover { cause, stopped: false, said_on: None, heard });
        self.rails[self.control].stop()
    }

    /// Moves on when the old rail has ended all its requests, and when both sides have said what they took.
    pub(super) fn step_failover(&mut self) -> Verdict {
        let Some(failover) = &mut self.failover else { return Verdict::On };
        let old = self.control;
        if !failover.stopped {
            if self.rails[old].posted > 0 {
                return Verdict::On;
            }
            failover.stopped = true;
            let writes = self.rails[old].kill();
            // Telling writes are in the log as well.
            self.redo.extend(writes.into_iter().filter(|w| w.told.is_none()));
        }
        if failover.said_on.is_none() {
            let heard_on = failover.heard.map(|(rail, _)| rail);
            let first = self.rails.iter().position(|r| r.is_alive());
            let Some(on) = heard_on.filter(|r| self.rails[*r].is_alive()).or(first) else {
                return Verdict::Lost(failover.cause.clone());
            };
            failover.said_on = Some(on);
            if let Err(cause) = self.say_resume(old, on) {
                return Verdict::Lost(cause);
            }
        }
        Verdict::On
    }

    fn say_resume(&mut self, old: usize, on: usize) -> Result<(), Cause> {
        let frame =
            Frame { slot: old as u64, length: self.taken.into(), offset: 1, ..Frame::bare(Kind::Rail) };
        self.send_about(&frame, on)
    }

    /// The peer says that it resumes on `rail`, and how many messages it took.
    pub(super) fn resumed(
        &mut self,
        rail: usize,
        frame: &Frame,
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Result<Verdict, String> {
        let taken = frame.length as u32;
        self.rails[rail].uncounted += 1;
        if frame.slot != self.control as u64 || rail == self.control {
            return Err(format!("resumed after rail {}, which is not the control rail", frame.slot));
        }
        if distance(self.done, taken) > distance(self.done, self.next) {
            return Err(format!("took {taken} messages, more than there were"));
        }
        match &mut self.failover {
            Some(failover) => failover.heard = Some((rail, taken)),
            None => {
                let why = "the peer has lost the rail of small messages";
                if !self.begin_failover(Cause::new(CauseKind::Reset, why), Some((rail, taken))) {
                    return Err(why.to_owned());
                }
            }
        }
        let verdict = self.step_failover();
        self.resume(matcher, events).map_err(|cause| cause.to_string())?;
        Ok(verdict)
    }

    /// Posts again what the peer has not taken, once both have said what they took.
    pub(super) fn resume(&mut self, matcher: &mut Matcher, events: &mut Vec<Event>) -> Result<(), Cause> {
        let Some(Failover { said_on: Some(said), heard: Some((heard, taken)), .. }) = self.failover else {
            return Ok(());
        };
        self.failover = None;
        // Both may have spoken first, on different rails.
        self.control = said.max(heard);
        if !self.rails[self.control].is_alive() {
            let why = "two rails failed at once, and the two sides went on over different ones";
            return Err(Cause::new(CauseKind::Reset, why));
        }
        self.budget = self.their_receives;
        self.owed = 0;
        if distance(self.done, taken) > 0 {
            self.done_up_to(taken.wrapping_sub(1), matcher, events);
        }
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
}
