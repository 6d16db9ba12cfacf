//! What goes out: at a post, where it can go at once, else at the next poll.
#![forbid(unsafe_code)]

use super::links::{Channel, Link, Stage};
use super::transport::RdmaTransport;
use crate::transport::matching::Matcher;
use crate::transport::{Cause, Stamp, Tag};

/// How long the announcement of a large message is kept back. The receiver of one that is on time asks for it by itself, and a
/// late one does not come sooner for having heard of it, but has a message more to take in; it tells of mismatches alone.
pub(super) const ANNOUNCE_MS: u64 = 10;

/// How much goes out. A device may take as long to accept a large write as to carry it out (soft-RoCE sends all of its
/// packets meanwhile), and the receive that the caller posts next would be announced after it: so a post says the small
/// things alone, and a poll writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Much {
    /// Messages.
    Small,
    /// Messages and writes.
    All,
}

impl RdmaTransport {
    /// Puts a link on the list that the next poll fills.
    pub(super) fn soil(&mut self, at: u32) {
        let link = &mut self.links[at as usize];
        if !link.dirty {
            link.dirty = true;
            self.dirty.push(at);
        }
    }

    /// Has what is kept back of large messages said (see [`crate::transport::matching`]), where nobody has asked for it for
    /// [`ANNOUNCE_MS`].
    pub(super) fn announce(&mut self) {
        let now_ms = self.now_ms;
        for at in 0..self.links.len() as u32 {
            let Some(channel) = self.links[at as usize].channel.as_deref_mut() else { continue };
            if !channel.matcher.has_unsaid() {
                channel.unsaid_ms = None;
            } else if now_ms >= *channel.unsaid_ms.get_or_insert(now_ms) + ANNOUNCE_MS {
                channel.unsaid_ms = None;
                channel.matcher.announce();
                self.soil(at);
            }
        }
    }

    /// Posts what there is to send.
    #[inline]
    pub(super) fn fill(&mut self) -> bool {
        if self.dirty.is_empty() {
            return false;
        }
        let mut moved = false;
        let mut dirty = std::mem::take(&mut self.dirty);
        for at in dirty.drain(..) {
            self.links[at as usize].dirty = false;
            moved |= self.fill_link(at, Much::All);
        }
        if self.dirty.is_empty() {
            self.dirty = dirty;
        }
        moved
    }

    /// After a post: what there is to say goes out at once, since the caller may have more to do before it polls; what there
    /// is to write waits for the poll.
    pub(super) fn speak(&mut self, at: u32) {
        let has = |link: &Link, output: fn(&Matcher) -> bool| {
            link.channel.as_ref().is_some_and(|channel| output(&channel.matcher))
        };
        if !has(&self.links[at as usize], Matcher::has_output) {
            return;
        }
        if has(&self.links[at as usize], Matcher::has_small_output) {
            self.fill_link(at, Much::Small);
        }
        self.soil(at);
    }

    /// Posts what there is to send to one peer, or the small of it.
    pub(super) fn fill_link(&mut self, at: u32, much: Much) -> bool {
        let Some(channel) = &mut self.links[at as usize].channel else { return false };
        let Channel { matcher, notes, stage: Stage::Up(connection), .. } = &mut **channel else {
            return false;
        };
        match connection.fill(much, matcher, notes, &self.holds, &mut self.done) {
            Ok(posted) => posted,
            Err(cause) => {
                self.lose(at, cause);
                false
            }
        }
    }

    /// Sends a small message at once, where nothing is before it: it is over then, well or not. `None`: post it.
    #[inline]
    pub(super) fn send_small(
        &mut self,
        at: u32,
        tag: Tag,
        stamp: &Stamp,
        bytes: &[u8],
    ) -> Option<Result<(), Cause>> {
        let channel = self.links[at as usize].channel.as_deref_mut()?;
        let Channel { matcher, notes, stage: Stage::Up(connection), .. } = channel else { return None };
        if !notes.is_empty() || !connection.sends_now() {
            return None;
        }
        let head = matcher.eager_now(tag, stamp, bytes.len() as u64)?;
        Some(connection.send_whole(&head, bytes))
    }
}
