//! What comes in: completions, and whose they are.
//!
//! - **K1** Every completion is taken once, in the order in which its device tells of it, whoever looked for it: a
//!   look for one message ([`RdmaTransport::take_next`]) takes all else as a poll does, and what that came to is told by
//!   the next poll.
//! - **K2** Such a look ends where a poll has more to do than to take completions, or something to tell.
//! - **K3** What is due to a peer after a message was taken so waits until a look has found nothing, or until a poll: the
//!   caller's answer is not held up by it. Where half of its receives are not posted, it does not wait.
#![forbid(unsafe_code)]

use super::connection::Verdict;
use super::handshake::Hello;
use super::links::{Channel, Stage};
use super::outgoing::Much;
use super::request::{BATCH, Kind, WrId};
use super::transport::RdmaTransport;
use super::verbs::WorkCompletion;
use crate::transport::matching::Parked;
use crate::transport::{Found, Stamp};

/// Batches of completions taken from a device before others get their turn.
const ROUNDS: usize = 4;
/// Looks at the devices in one poll while nothing comes: what lies around a look costs more than the look.
pub(super) const LOOKS: u32 = 8;
/// Looks of whoever wants one message that make one here: asking a device costs some times what a look into memory does.
const LOOKS_IN_ONE: u32 = 4;

/// A message that is looked for: its tag, stamp and length.
pub(super) type Expected<'a> = (u64, &'a Stamp, usize);

impl RdmaTransport {
    /// Takes completions; looks for them so many times at most. Returns whether there were any.
    pub(super) fn take_completions(&mut self, looks: u32) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        let moved = (0..looks).any(|_| self.look(&mut batch));
        self.batch = batch;
        moved
    }

    fn look(&mut self, batch: &mut [WorkCompletion]) -> bool {
        let mut moved = false;
        for d in 0..self.devices.len() {
            for _ in 0..ROUNDS {
                let n = self.poll_device(d, batch);
                for wc in &batch[..n] {
                    if !self.take_small(d, wc) {
                        self.take_completion(d, wc);
                    }
                }
                moved |= n > 0;
                if n < BATCH {
                    break;
                }
            }
        }
        moved
    }

    /// Asks a device for completions, and how many it has told of. One that cannot be asked is broken: none of its
    /// completions come any more, and what rests on it ends at the next look.
    #[inline]
    fn poll_device(&mut self, d: usize, batch: &mut [WorkCompletion]) -> usize {
        let device = &mut self.devices[d];
        if device.broken.is_some() {
            return 0;
        }
        device.completions.poll(batch).unwrap_or_else(|why| {
            device.broken = Some(why.to_string());
            self.must_look = true;
            0
        })
    }

    fn take_completion(&mut self, device: usize, wc: &WorkCompletion) {
        let Some(id) = WrId::unpack(wc.wr_id) else { return };
        match id.kind {
            Kind::HelloLeft => {
                self.must_look |= !wc.is_success();
                self.devices[device].left(id.aux, wc);
            }
            Kind::HelloHeard => {
                self.clock_ms();
                self.must_look |= !wc.is_success();
                let datagram = self.devices[device].heard(id.aux, wc);
                if let Some((hello, proof)) = datagram.and_then(|bytes| Hello::decode(&bytes)) {
                    self.hear(hello, &proof);
                }
            }
            Kind::Receive | Kind::Send | Kind::Write | Kind::Pulse | Kind::About | Kind::Fence => {
                self.take_of_link(id, device, wc)
            }
        }
    }

    fn take_of_link(&mut self, id: WrId, device: usize, wc: &WorkCompletion) {
        let Some(link) = self.links.get_mut(id.link as usize) else { return };
        let (peer, now_ms) = (link.peer, self.now_ms);
        let Some(channel) = &mut link.channel else { return };
        let Channel { matcher, notes, stage, sign_ms, .. } = &mut **channel;
        let (connection, meeting) = match stage {
            Stage::None => return,
            Stage::Meeting(connection, meeting) => (connection, Some(meeting)),
            Stage::Up(connection) => (connection, None),
        };
        if !connection.is_generation(id.generation) {
            return;
        }
        *sign_ms = now_ms;
        self.must_look |= !wc.is_success();
        let heard = meeting.is_some();
        if let Some(meeting) = meeting
            && id.kind == Kind::Receive
            && wc.is_success()
        {
            meeting.data_came();
        }
        let (devices, done) = (&self.devices, &mut self.done);
        let verdict = match id.kind {
            Kind::Receive => {
                connection.after_receive(id.aux, (device, wc), devices, (peer, &self.retired), matcher, done)
            }
            _ => connection.after_request(id, (device, wc), devices, &self.retired, matcher, done),
        };
        match verdict {
            Verdict::On if heard => self.finish_meeting(id.link),
            Verdict::On if !matcher.has_output() && notes.is_empty() && !connection.has_output() => {}
            verdict => self.conclude(id.link, verdict),
        }
    }

    /// Looks for the next message of a link on a tag, small and whole, whose receive is not posted, and gives its bytes to
    /// `take`. Without looks, among those that have been taken from the devices already.
    pub(super) fn take_next(
        &mut self,
        at: u32,
        expected: Expected<'_>,
        looks: u32,
        take: &mut dyn FnMut(&[u8]),
    ) -> Found {
        // K2
        if self.must_look || !self.done.is_empty() || expected.2 as u64 > self.config.eager_bytes.into() {
            return Found::Other;
        }
        let Some(channel) = self.links[at as usize].channel.as_deref_mut() else { return Found::Other };
        let Channel { matcher, stage: Stage::Up(_), .. } = channel else { return Found::Other };
        match matcher.take_parked(expected, take) {
            Parked::Nothing => {}
            Parked::Taken => {
                self.answer(at);
                return Found::Message;
            }
            Parked::Other | Parked::Shown { .. } => return Found::Other,
        }
        let mut batch = std::mem::take(&mut self.batch);
        let mut found = Found::Nothing;
        for _ in 0..looks.div_ceil(LOOKS_IN_ONE) {
            found = self.look_for(&mut batch, at, expected, take);
            if found != Found::Nothing {
                break;
            }
            // K3: nothing is late while nothing comes.
            if let Some(at) = self.unanswered.take() {
                self.fill_link(at, Much::Small);
            }
        }
        self.batch = batch;
        found
    }

    /// Takes one batch of completions of each device (K1).
    fn look_for(
        &mut self,
        batch: &mut [WorkCompletion],
        at: u32,
        expected: Expected<'_>,
        take: &mut dyn FnMut(&[u8]),
    ) -> Found {
        let mut found = false;
        for d in 0..self.devices.len() {
            let n = self.poll_device(d, batch);
            for wc in &batch[..n] {
                if !found && self.take_expected(d, wc, at, expected, take) {
                    found = true;
                } else if !self.take_small(d, wc) {
                    self.take_completion(d, wc);
                }
            }
        }
        if found {
            self.answer(at);
            return Found::Message;
        }
        if self.must_look || !self.done.is_empty() { Found::Other } else { Found::Nothing }
    }

    /// Takes the message that is looked for, if that is what has come.
    fn take_expected(
        &mut self,
        device: usize,
        wc: &WorkCompletion,
        at: u32,
        expected: Expected<'_>,
        take: &mut dyn FnMut(&[u8]),
    ) -> bool {
        let ours = |id: &WrId| id.kind == Kind::Receive && id.link == at;
        let Some(id) = WrId::unpack(wc.wr_id).filter(ours) else { return false };
        if !wc.is_success() || wc.imm.is_some() {
            return false;
        }
        let channel = self.links[at as usize].channel.as_deref_mut();
        let Some(Channel { matcher, stage: Stage::Up(connection), sign_ms, .. }) = channel else {
            return false;
        };
        if !connection.is_generation(id.generation)
            || !connection.take_unposted(id.aux, (device, wc), expected, matcher, take)
        {
            return false;
        }
        *sign_ms = self.now_ms;
        true
    }

    /// K3: after a message was taken, receives are posted again, and credit is returned, without a poll.
    #[inline]
    fn answer(&mut self, at: u32) {
        let Some(Channel { matcher, stage: Stage::Up(connection), .. }) =
            self.links[at as usize].channel.as_deref()
        else {
            return;
        };
        if !connection.has_output() && !matcher.has_small_output() {
            return;
        }
        let is_urgent = connection.is_short() || matcher.has_small_output();
        self.soil(at);
        let later = if is_urgent { None } else { Some(at) };
        match std::mem::replace(&mut self.unanswered, later) {
            Some(before) if before != at => _ = self.fill_link(before, Much::Small),
            _ => {}
        }
        if is_urgent {
            self.fill_link(at, Much::Small);
        }
    }

    /// Takes a small message whose receive is posted, if that is what has come, by the straight way.
    fn take_small(&mut self, device: usize, wc: &WorkCompletion) -> bool {
        let Some(id) = WrId::unpack(wc.wr_id).filter(|id| id.kind == Kind::Receive) else { return false };
        if !wc.is_success() || wc.imm.is_some() {
            return false;
        }
        let channel = self.links.get_mut(id.link as usize).and_then(|link| link.channel.as_deref_mut());
        let Some(Channel { matcher, notes, stage: Stage::Up(connection), sign_ms, .. }) = channel else {
            return false;
        };
        let (retired, done) = (&self.retired, &mut self.done);
        if !connection.is_generation(id.generation)
            || !connection.take_small(id.aux, (device, wc), retired, matcher, done)
        {
            return false;
        }
        *sign_ms = self.now_ms;
        if matcher.has_output() || !notes.is_empty() || connection.has_output() {
            self.soil(id.link);
        }
        true
    }
}
