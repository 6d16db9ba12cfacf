//! What comes over a connection: messages, ends of writes, and fences.
#![forbid(unsafe_code)]

use super::connection::{Connection, Verdict};
use super::device::Device;
use super::ends;
use super::incoming::Expected;
use super::request::Kind as Request;
use super::verbs::WorkCompletion;
use super::wire;
use crate::transport::matching::header::Whole;
use crate::transport::matching::{Kind, Matcher, Retired};
use crate::transport::{Event, Note, Peer};

impl Connection {
    /// Takes what came into a receive.
    pub(super) fn after_receive(
        &mut self,
        slot: u32,
        (device, wc): (usize, &WorkCompletion),
        devices: &[Device],
        (peer, retired): (Peer, &Retired),
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Verdict {
        let Some(rail) = self.rail_of(device, wc.qp_num) else { return Verdict::On };
        self.rails[rail].received();
        if !wc.is_success() {
            let cause = self.failed(Request::Receive, rail, wc, devices);
            return self.after_failure(rail, (cause, false), retired, matcher, events);
        }
        let taken = match wc.imm.map(|imm| (imm, ends::number_of(imm))) {
            Some((_, Some(number))) => self.take_fence(rail, number, retired, matcher, events),
            Some((index, None)) => {
                self.taken = self.taken.wrapping_add(1);
                matcher.landed(index, events).map(|()| Verdict::On).map_err(|v| v.to_string())
            }
            None => self.take((rail, slot), wc.byte_len as usize, (peer, retired), matcher, events),
        };
        self.rails[rail].again(slot);
        match taken {
            Ok(Verdict::On) if !self.rails[rail].is_alive() => self.settle(retired, matcher, events),
            Ok(verdict) => verdict,
            Err(what) => Verdict::Lost(self.violation(&what)),
        }
    }

    /// Takes a small message whose receive is posted, where nothing else is to be thought of: most of what comes. `false`:
    /// nothing has happened, and [`Self::after_receive`] is to take it.
    #[inline]
    pub(super) fn take_small(
        &mut self,
        slot: u32,
        (device, wc): (usize, &WorkCompletion),
        retired: &Retired,
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> bool {
        self.take_whole(slot, (device, wc), |head, payload| {
            matcher.take_whole(head, payload, retired, events)
        })
    }

    /// Takes a small message if `taken` does.
    #[inline(always)]
    fn take_whole(
        &mut self,
        slot: u32,
        (device, wc): (usize, &WorkCompletion),
        taken: impl FnOnce(&Whole<'_>, &[u8]) -> bool,
    ) -> bool {
        let Some(at) = self.rail_of(device, wc.qp_num).filter(|at| self.rails[*at].is_alive()) else {
            return false;
        };
        let rail = &mut self.rails[at];
        let Some((head, receives, payload)) = wire::decode_whole(rail.message(slot, wc.byte_len as usize))
        else {
            return false;
        };
        let budget = self.budget + u32::from(receives);
        if budget > self.their_receives || !taken(&head, payload) {
            return false;
        }
        self.copied_in_bytes += payload.len() as u64;
        self.budget = budget;
        self.taken = self.taken.wrapping_add(1);
        rail.received();
        rail.again(slot);
        true
    }

    /// Takes a small message that is looked for, whose receive is not posted, and gives its bytes to `take`. `false`: nothing
    /// has happened.
    #[inline]
    pub(super) fn take_unposted(
        &mut self,
        slot: u32,
        (device, wc): (usize, &WorkCompletion),
        expected: Expected<'_>,
        matcher: &mut Matcher,
        take: &mut dyn FnMut(&[u8]),
    ) -> bool {
        let message = |head: &Whole<'_>, payload: &[u8]| {
            let wanted = matcher.take_unposted(head, expected);
            if wanted {
                take(payload);
            }
            wanted
        };
        self.take_whole(slot, (device, wc), message)
    }

    /// Takes a message.
    fn take(
        &mut self,
        (rail, slot): (usize, u32),
        len: usize,
        (peer, retired): (Peer, &Retired),
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Result<Verdict, String> {
        let message = self.rails[rail].message(slot, len);
        let (frame, receives, payload) = wire::decode(message).map_err(|e| e.to_string())?;
        let at = message.len() - payload.len();
        if frame.kind == Kind::Rail {
            return self.take_about((rail, receives), &frame, retired, matcher, events);
        }
        self.count(receives)?;
        match frame.kind {
            Kind::Bye => {
                self.left = true;
                return self.believe(retired, matcher, events);
            }
            Kind::Landed | Kind::Withdrawn | Kind::CancelSend if self.hold_back(&frame, rail)? => {
                return self.believe(retired, matcher, events);
            }
            Kind::Note => {
                let payload = &self.rails[rail].message(slot, len)[at..];
                let note =
                    Note::new(payload).ok_or_else(|| format!("sent a note of {} bytes", payload.len()))?;
                events.push(Event::Note { from: peer, note: Box::new(note) });
            }
            _ => {
                let payload = &self.rails[rail].message(slot, len)[at..];
                self.copied_in_bytes += payload.len() as u64;
                matcher.deliver(&frame, payload, retired, events).map_err(|v| v.to_string())?;
            }
        }
        Ok(Verdict::On)
    }

    /// A message came that tells of so many receives.
    pub(super) fn count(&mut self, receives: u8) -> Result<(), String> {
        self.taken = self.taken.wrapping_add(1);
        self.budget += u32::from(receives);
        match self.budget > self.their_receives {
            true => Err(format!("told of {receives} receives, more than it has")),
            false => Ok(()),
        }
    }
}
