//! What goes out: at a post, where it can go at once, else at the next poll.
#![forbid(unsafe_code)]

use super::links::{Channel, Stage};
use super::transport::RdmaTransport;
use crate::transport::{Cause, Op};

impl RdmaTransport {
    /// Puts a link on the list that the next poll fills.
    pub(super) fn soil(&mut self, at: u32) {
        let link = &mut self.links[at as usize];
        if !link.dirty {
            link.dirty = true;
            self.dirty.push(at);
        }
    }

    /// Posts what there is to send.
    pub(super) fn fill(&mut self) -> bool {
        let mut moved = false;
        let mut dirty = std::mem::take(&mut self.dirty);
        for at in dirty.drain(..) {
            self.links[at as usize].dirty = false;
            moved |= self.fill_link(at);
        }
        if self.dirty.is_empty() {
            self.dirty = dirty;
        }
        moved
    }

    /// Posts what there is to send to one peer.
    pub(super) fn fill_link(&mut self, at: u32) -> bool {
        let Some(channel) = &mut self.links[at as usize].channel else { return false };
        let Channel { matcher, notes, stage: Stage::Up(connection), .. } = &mut **channel else {
            return false;
        };
        match connection.fill(matcher, notes, &self.holds, &mut self.done) {
            Ok(posted) => posted,
            Err(cause) => {
                self.lose(at, cause);
                false
            }
        }
    }

    /// Sends a small message at once, where nothing is before it: it is over then, well or not. `None`: post it.
    pub(super) fn send_now(&mut self, at: u32, op: &Op) -> Option<Result<(), Cause>> {
        let Op::Send { tag, stamp, bytes, .. } = op else { return None };
        let channel = self.links[at as usize].channel.as_deref_mut()?;
        let Channel { matcher, notes, stage: Stage::Up(connection), .. } = channel else { return None };
        if !notes.is_empty() || !connection.sends_now() {
            return None;
        }
        let frame = matcher.eager_now(*tag, stamp, bytes.len() as u64)?;
        Some(connection.send_now(&frame, bytes.bytes()))
    }
}
