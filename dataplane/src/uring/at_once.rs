//! Small messages that go or are taken at once: a system call each, and no lease, slot or completion.
//!
//! Whoever waits for one message asks the one connection that it comes by, so everything else waits meanwhile: for
//! [`LOOKS_IN_ONE`] times fewer looks than into memory, and the next poll looks at all of it sooner.
//!
//! Only a poll ends a link: an end that is seen here waits in `ended`, behind what the peer said before it.
#![forbid(unsafe_code)]

use super::connection::Verdict;
use super::links::{Channel, Way};
use super::transport::TcpTransport;
use super::watch::Token;
use crate::transport::matching::Parked;
use crate::transport::{Found, Stamp, Tag};

/// Looks of whoever wants one message that make one here: asking the kernel costs many times what a look into memory does.
const LOOKS_IN_ONE: u32 = 40;

impl TcpTransport {
    /// Sends a small message at once, where nothing is before it: it is over then. `false`: post it.
    pub(super) fn send_small(&mut self, at: u32, tag: Tag, stamp: &Stamp, bytes: &[u8]) -> bool {
        let link = &mut self.links[at as usize];
        let Some(channel) = link.channel.as_deref_mut() else { return false };
        let Channel { matcher, notes, way: Way::Up(connection), at_once_bytes } = channel else {
            return false;
        };
        if !notes.is_empty() || !self.ended.is_empty() || !connection.sends_now(bytes.len()) {
            return false;
        }
        let Some(head) = matcher.eager_now(tag, stamp, bytes.len() as u64) else { return false };
        connection.send_now(&head, bytes);
        *at_once_bytes += bytes.len() as u64;
        if connection.has_output() {
            // Whoever sleeps meanwhile is woken by room.
            if self.must_watch && !link.watched_for_room {
                link.watched_for_room = true;
                self.watch.change(connection.fd(), Token::Link(at), true);
            }
            self.activate(at);
        }
        true
    }

    /// Takes the next message on a tag, where it has come or comes within `looks` looks into memory.
    pub(super) fn take_small(
        &mut self,
        at: u32,
        expected: (u64, &Stamp, usize),
        looks: u32,
        take: &mut dyn FnMut(&[u8]),
    ) -> Found {
        // Who has slept looks at everything first.
        if self.must_watch || !self.done.is_empty() || !self.ended.is_empty() {
            return Found::Other;
        }
        self.polls += 1;
        let link = &mut self.links[at as usize];
        let Some(Channel { matcher, way: Way::Up(connection), .. }) = link.channel.as_deref_mut() else {
            return Found::Other;
        };
        let (mut found, mut verdict) = (Found::Nothing, Verdict::On(false));
        match matcher.take_parked(expected, take) {
            Parked::Taken => found = Found::Message,
            Parked::Nothing if connection.takes_now(expected.2) => {}
            Parked::Nothing | Parked::Other | Parked::Shown { .. } => return Found::Other,
        }
        for _ in 0..looks.div_ceil(LOOKS_IN_ONE) {
            if found != Found::Nothing {
                break;
            }
            (found, verdict) =
                connection.take_now(link.peer, (matcher, &self.retired), expected, take, &mut self.done);
        }
        let goes_on = matcher.has_output() || connection.in_frame();
        match verdict {
            Verdict::On(_) if goes_on => {
                self.activate(at);
                self.pump(&[at], false);
            }
            Verdict::On(_) => {}
            // Refused posts would tell of it before a poll has told what the peer said last, such as why it ends.
            over => self.ended.push((at, over)),
        }
        found
    }
}
