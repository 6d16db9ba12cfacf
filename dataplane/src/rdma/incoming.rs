//! What comes in: completions, and whose they are.
#![forbid(unsafe_code)]

use super::connection::Verdict;
use super::handshake::Hello;
use super::links::{Channel, Stage};
use super::request::{BATCH, Kind, WrId};
use super::transport::RdmaTransport;
use super::verbs::WorkCompletion;

/// Batches of completions taken from a device before others get their turn.
const ROUNDS: usize = 4;
/// Looks at the devices in one poll while nothing comes: what lies around a look costs more than the look.
pub(super) const LOOKS: u32 = 8;

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
                if self.devices[d].broken.is_some() {
                    break;
                }
                let n = match self.devices[d].completions.poll(batch) {
                    Ok(n) => n,
                    Err(why) => {
                        self.devices[d].broken.get_or_insert(why.to_string());
                        self.must_look = true;
                        0
                    }
                };
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
