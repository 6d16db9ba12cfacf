//! What a connection says and hears of the ends of striped messages: [`super::ends`], on queue pairs.
#![forbid(unsafe_code)]

use super::connection::{Connection, Verdict};
use super::ends::{self, FENCES};
use super::request::Kind as Request;
use super::wire::AboutRail;
use crate::transport::matching::{Frame, Kind, Matcher, Retired};
use crate::transport::{Cause, Event};

/// Whether a frame ends a message that rails may have carried bytes of.
fn is_end(kind: Kind) -> bool {
    matches!(kind, Kind::Landed | Kind::Withdrawn | Kind::CancelSend)
}

impl Connection {
    /// A frame is about to be sent: the rails that it names owe a fence (E1).
    pub(super) fn name_rails(&mut self, frame: &Frame) {
        if !is_end(frame.kind) || frame.offset == 0 {
            return;
        }
        let control = self.control;
        for (r, rail) in self.rails.iter_mut().enumerate() {
            if r != control && frame.offset & 1 << r != 0 {
                rail.fences.name();
            }
        }
    }

    /// Posts the fences that are due, and gives back those that came.
    pub(super) fn post_fences(&mut self) -> Result<(), Cause> {
        let id = self.id(Request::Fence, 0);
        for (r, rail) in self.rails.iter_mut().enumerate().filter(|(_, rail)| rail.is_alive()) {
            while let Some(number) = rail.fences.say() {
                rail.fence(id, ends::immediate(number))?;
            }
            if rail.fences_owed >= FENCES / 2 {
                let count = std::mem::take(&mut rail.fences_owed);
                self.about_rails.push_back(AboutRail::FencesBack { rail: r, count }.frame());
            }
        }
        Ok(())
    }

    /// Whether all fences are with the peer.
    pub(super) fn are_fences_quiet(&self) -> bool {
        self.rails.iter().all(|r| !r.is_alive() || r.fences.is_quiet())
    }

    /// Takes a frame that came over the rail `by`, unless it is an end that is held back.
    pub(super) fn hold_back(&mut self, frame: &Frame, by: usize) -> Result<bool, String> {
        let by_itself = frame.offset & !(1 << by) == 0 && self.ends.is_empty();
        if !is_end(frame.kind) || by_itself {
            return Ok(false);
        }
        self.ends.hold(*frame, frame.offset, by).map_err(|e| e.to_string())?;
        Ok(true)
    }

    /// Gives the matcher the ends that may be believed; a goodbye counts after all of them.
    pub(super) fn believe(
        &mut self,
        retired: &Retired,
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Result<Verdict, String> {
        while let Some(frame) = self.ends.next().map_err(|e| e.to_string())? {
            matcher.accept(&frame, retired, events).map_err(|v| v.to_string())?;
        }
        Ok(if self.left && self.ends.is_empty() { Verdict::Left } else { Verdict::On })
    }

    /// A fence came over a rail.
    pub(super) fn take_fence(
        &mut self,
        rail: usize,
        number: u32,
        retired: &Retired,
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Result<Verdict, String> {
        self.rails[rail].uncounted += 1;
        self.rails[rail].fences_owed += 1;
        self.ends.fence(rail, number).map_err(|e| e.to_string())?;
        self.believe(retired, matcher, events)
    }

    /// A frame about rails came over one of them.
    pub(super) fn take_about(
        &mut self,
        (rail, receives): (usize, u8),
        frame: &Frame,
        retired: &Retired,
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Result<Verdict, String> {
        let about =
            AboutRail::of(frame).ok_or_else(|| format!("said of rail {} what is unknown", frame.slot))?;
        let verdict = match about {
            AboutRail::Resumed { rail: old, taken, alive } => {
                self.rails[rail].uncounted += 1;
                self.resumed(old, taken, alive)?
            }
            AboutRail::Down { rail: down } => {
                self.count(receives)?;
                self.rail_is_down(down)
            }
            AboutRail::FencesBack { rail: of, count } => {
                self.count(receives)?;
                if !self.rails.get_mut(of).is_some_and(|r| r.fences.given_back(count)) {
                    return Err(format!("gave back {count} fences of rail {of}, more than there were"));
                }
                return Ok(Verdict::On);
            }
        };
        Ok(match verdict {
            Verdict::On => self.settle(retired, matcher, events),
            over => over,
        })
    }
}
