//! What a transport knows of each peer, and how connections come about.
#![forbid(unsafe_code)]

use super::choice::{RailPair, RdmaOffer};
use super::connection::Connection;
use super::device::Way;
use super::handshake::{Answer, Hello, Meeting};
use super::rail::ENTRIES;
use super::transport::RdmaTransport;
use super::verbs::{AddressHandle, VerbsError};
use crate::transport::matching::{Agreed, Matcher, UNIT_BYTES};
use crate::transport::{Cause, CauseKind, Note, Peer};
use std::collections::VecDeque;
use std::sync::Arc;

/// How far the way to a peer is.
pub(super) enum Stage {
    /// Nothing was said yet.
    None,
    /// Hellos are being exchanged.
    Meeting(Box<Connection>, Meeting),
    /// Connected.
    Up(Box<Connection>),
}

/// What is made at the first message with a peer.
pub(super) struct Channel {
    pub(super) matcher: Matcher,
    pub(super) notes: VecDeque<Note>,
    pub(super) stage: Stage,
    /// When something was heard last, or asked for.
    pub(super) sign_ms: u64,
    /// Since when operations that were taken back wait for the peer.
    pub(super) withdrawing_ms: Option<u64>,
}

/// One introduced peer.
pub(super) struct Link {
    pub(super) peer: Peer,
    pub(super) offer: RdmaOffer,
    /// What it calls itself.
    pub(super) number: u32,
    pub(super) incarnation: u64,
    pub(super) pairs: Vec<RailPair>,
    /// Made at the first post or note, or when the peer says hello.
    pub(super) channel: Option<Box<Channel>>,
    /// Which connection comes next.
    pub(super) generation: u16,
    pub(super) handle: Option<Arc<AddressHandle>>,
    /// Lost or left.
    pub(super) gone: Option<Cause>,
    /// In the list of links that the next poll fills.
    pub(super) dirty: bool,
    pub(super) why: Option<String>,
}

impl Channel {
    /// Whether the queue pairs are ready both ways.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up(_))
    }
}

impl RdmaTransport {
    /// The channel of a link that is to be used: made, and the peer greeted, if it is not there yet.
    pub(super) fn open_channel(&mut self, at: u32) {
        let link = &mut self.links[at as usize];
        let (peer, depth) = (link.peer, self.config.depth);
        let window_bytes = self.config.eager_window_bytes as usize;
        let now_ms = self.now_ms;
        let channel = link.channel.get_or_insert_with(|| {
            Box::new(Channel {
                matcher: Matcher::new(peer, depth, window_bytes).one_sided(),
                notes: VecDeque::new(),
                stage: Stage::None,
                sign_ms: now_ms,
                withdrawing_ms: None,
            })
        });
        if matches!(channel.stage, Stage::None) {
            self.meet(at);
        }
    }

    fn meet(&mut self, at: u32) {
        if let Err(why) = self.begin_meeting(at) {
            self.lose(at, Cause::new(CauseKind::Local, format!("no connection could be made: {why}")));
            return;
        }
        self.meetings.push(at);
        self.must_look = true;
    }

    fn begin_meeting(&mut self, at: u32) -> Result<(), VerbsError> {
        let (now_ms, timeout_ms) = (self.clock_ms(), self.config.connect_timeout_ms);
        self.psns = self.psns.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let psn = (self.psns >> 40) as u32;
        let link = &mut self.links[at as usize];
        link.generation = link.generation.wrapping_add(1) & 0xfff;
        let generation = link.generation;
        if link.handle.is_none() {
            let pair = &link.pairs[0];
            let device = &self.devices[pair.mine];
            let route = device.route(&self.config.rdma, &Way::of(pair));
            link.handle = Some(Arc::new(AddressHandle::create(&device.domain, &route)?));
        }
        let bytes = (self.config.payload_bytes(), self.config.stripe_bytes);
        let connection = Connection::new((at, generation), &link.pairs, &mut self.devices, bytes, psn)?;
        if let Some(channel) = &mut link.channel {
            channel.stage = Stage::Meeting(Box::new(connection), Meeting::new(now_ms, timeout_ms));
        }
        Ok(())
    }

    /// What this side's hellos to a peer say.
    fn hello(&self, at: u32, answer: Answer) -> Hello {
        let link = &self.links[at as usize];
        let mut hello = Hello {
            answer,
            token: self.config.token,
            from: self.config.me,
            to: link.number,
            from_incarnation: self.config.incarnation,
            to_incarnation: link.incarnation,
            eager_bytes: self.config.eager_bytes,
            window_units: (u64::from(self.config.eager_window_bytes) / UNIT_BYTES) as u32,
            ..Hello::default()
        };
        if let Some(Stage::Meeting(connection, _) | Stage::Up(connection)) =
            link.channel.as_ref().map(|c| &c.stage)
        {
            connection.introduce(&mut hello);
        }
        hello
    }

    fn say(&mut self, at: u32, answer: Answer) {
        let hello = self.hello(at, answer).encode();
        let link = &self.links[at as usize];
        let (Some(handle), pair) = (&link.handle, &link.pairs[0]) else { return };
        let theirs = &link.offer.rails[pair.theirs];
        let to = (theirs.bootstrap_queue_pair, theirs.bootstrap_queue_key);
        self.devices[pair.mine].say(&hello, handle, to);
    }

    /// Takes a hello. What is none of this job's is ignored, and so is one from a peer that is not introduced yet, but
    /// for the last of each, within a limit.
    pub(super) fn hear(&mut self, hello: Hello) {
        let is_mine = (hello.from, hello.from_incarnation) == (self.config.me, self.config.incarnation);
        if hello.token != self.config.token || hello.to != self.config.me || is_mine {
            tracing::debug!("a hello of another job or for peer {} was ignored", hello.to);
            return;
        }
        let Some(at) = self.link_of_process(hello.from, hello.from_incarnation) else {
            if self.strangers.len() < super::MAX_STRANGERS || self.strangers.contains_key(&hello.from) {
                self.strangers.insert(hello.from, hello);
            }
            return;
        };
        let link = &self.links[at as usize];
        let lives = (hello.from_incarnation, hello.to_incarnation);
        if lives != (link.incarnation, self.config.incarnation) {
            tracing::debug!("a hello of another life of peer {} was ignored", hello.from);
            return;
        }
        if let Some(refusal) = hello.answer.refusal() {
            if link.channel.as_ref().is_some_and(|c| !c.is_up()) {
                let peer = hello.from;
                let evidence = format!("peer {peer} turned us away: {refusal}");
                self.lose(at, Cause::new(CauseKind::Refused, evidence));
            }
            return;
        }
        if link.gone.is_some() {
            self.say(at, Answer::Over);
            return;
        }
        self.open_channel(at);
        self.hear_peer(at, &hello);
    }

    fn hear_peer(&mut self, at: u32, hello: &Hello) {
        let link = &mut self.links[at as usize];
        let Some(channel) = &mut link.channel else { return };
        channel.sign_ms = self.now_ms;
        let (heard, answer) = match &mut channel.stage {
            Stage::None => return,
            // Its answer was lost.
            Stage::Up(_) if hello.answer != Answer::Both => return self.say(at, Answer::Both),
            Stage::Up(_) => return,
            Stage::Meeting(connection, meeting) => {
                if let Err(why) = connection.accepts(hello) {
                    let evidence = format!("peer {} said a hello with {why}", link.peer.0);
                    return self.lose(at, Cause::new(CauseKind::Protocol, evidence));
                }
                let heard = meeting.hear(hello);
                if heard.connect {
                    let up = connection.bring_up(hello, &link.pairs, &self.devices, &self.config.rdma);
                    if let Err(why) = up {
                        let evidence = format!("peer {} could not be connected to: {why}", link.peer.0);
                        return self.lose(at, Cause::new(CauseKind::Unreachable, evidence));
                    }
                    let agreed = Agreed {
                        eager_bytes: self.config.eager_bytes.min(hello.eager_bytes).into(),
                        their_window: hello.window_units,
                        our_window: (u64::from(self.config.eager_window_bytes) / UNIT_BYTES) as u32,
                    };
                    channel.matcher.open(agreed, &mut self.done);
                }
                (heard, meeting.answer())
            }
        };
        if heard.answer || heard.connect {
            self.say(at, answer);
        }
        self.finish_meeting(at);
    }

    /// Moves on when both sides have heard each other.
    pub(super) fn finish_meeting(&mut self, at: u32) {
        let link = &mut self.links[at as usize];
        let Some(channel) = &mut link.channel else { return };
        channel.stage = match std::mem::replace(&mut channel.stage, Stage::None) {
            Stage::Meeting(connection, meeting) if meeting.is_up() => {
                link.why = Some(describe(&link.pairs, &self.offer, &link.offer));
                self.meetings.retain(|m| *m != at);
                Stage::Up(connection)
            }
            other => other,
        };
        self.soil(at);
    }

    /// Repeats hellos that are due, and gives up those that nobody answers.
    pub(super) fn step_meetings(&mut self) -> bool {
        let now_ms = self.now_ms;
        let mut moved = false;
        for i in (0..self.meetings.len()).rev() {
            let at = self.meetings[i];
            let link = &mut self.links[at as usize];
            let Some(Stage::Meeting(_, meeting)) = link.channel.as_mut().map(|c| &mut c.stage) else {
                self.meetings.swap_remove(i);
                continue;
            };
            if let Some(tried) = meeting.is_late(now_ms) {
                let way = describe(&link.pairs, &self.offer, &link.offer);
                let timeout_ms = self.config.connect_timeout_ms;
                let evidence =
                    format!("peer {} was not reached within {timeout_ms} ms: {tried} ({way})", link.peer.0);
                self.lose(at, Cause::new(CauseKind::Unreachable, evidence));
                moved = true;
            } else if meeting.speaks(now_ms) {
                let answer = meeting.answer();
                self.say(at, answer);
                moved = true;
            }
        }
        moved
    }

    /// Takes a link's connection down: what its devices still do with lent memory ends here.
    pub(super) fn disconnect(&mut self, at: u32) {
        let Some(channel) = &mut self.links[at as usize].channel else { return };
        if matches!(std::mem::replace(&mut channel.stage, Stage::None), Stage::None) {
            return;
        }
        for pair in &self.links[at as usize].pairs {
            self.devices[pair.mine].unreserve(ENTRIES);
        }
    }
}

/// How a peer is reached, in one line.
fn describe(pairs: &[RailPair], mine: &RdmaOffer, theirs: &RdmaOffer) -> String {
    let rail = |pair: &RailPair| match pair.remark(mine, theirs) {
        Some(remark) => format!("{} ({remark})", pair.shown(mine, theirs)),
        None => pair.shown(mine, theirs),
    };
    pairs.iter().map(rail).collect::<Vec<_>>().join("; ")
}
