//! What a transport knows of each peer, and how connections come about.
#![forbid(unsafe_code)]

use super::choice::{RailPair, RdmaOffer};
use super::connection::{Connection, Verdict};
use super::device::Way;
use super::handshake::{Answer, Hello, Meeting};
use super::resolver::{Answer as Found, Ask, Resolved};
use super::transport::RdmaTransport;
use crate::transport::authentication::{Nonce, Proof, nonce};
use crate::transport::matching::{Agreed, Matcher, UNIT_BYTES};
use crate::transport::{Cause, CauseKind, Copies, Note, Peer};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

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
    /// Since when announcements are kept back, as far as a look has found.
    pub(super) unsaid_ms: Option<u64>,
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
    /// The ways to its ends of the rails, for hellos, and how many hellos were said.
    pub(super) ways: Vec<Resolved>,
    pub(super) said: usize,
    /// A hello that came before the ways were known.
    pub(super) early: Option<(Hello, Proof)>,
    /// This side's nonce and the peer's, of the meeting that made the connection, or is about to.
    pub(super) nonces: (Nonce, Nonce),
    /// Lost or left.
    pub(super) gone: Option<Cause>,
    /// In the list of links that the next poll fills.
    pub(super) dirty: bool,
    pub(super) why: Option<String>,
}

impl Link {
    /// Whether a way to the peer is being looked for.
    pub(super) fn is_looking(&self) -> bool {
        self.ways.iter().any(|w| matches!(w, Resolved::Asked))
    }

    /// Whether all ways have been looked for, and one was found.
    fn knows_ways(&self) -> bool {
        !self.is_looking() && self.ways.iter().any(|w| matches!(w, Resolved::Ready(_)))
    }

    /// Rails without a way, and why. Allocates nothing while there are none.
    fn dead_ways(&self) -> Vec<(usize, String)> {
        let dead = self.ways.iter().enumerate().filter_map(|(rail, way)| match way {
            Resolved::Failed(why) => Some((rail, why.clone())),
            _ => None,
        });
        dead.collect()
    }
}

impl Channel {
    /// How its payload has moved; of a connection that is over, what [`RdmaTransport::disconnect`] has kept.
    pub(super) fn copies(&self) -> Copies {
        let placed_bytes = self.matcher.moved().landed;
        let mut all = Copies { copied_bytes: 0, placed_bytes };
        if let Stage::Meeting(connection, _) | Stage::Up(connection) = &self.stage {
            all += connection.copies();
        }
        all
    }

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
                unsaid_ms: None,
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

    fn begin_meeting(&mut self, at: u32) -> Result<(), String> {
        let (now_ms, timeout_ms) = (self.clock_ms(), self.config.connect_timeout_ms);
        let drawn = nonce().map_err(|e| format!("the kernel gives no random bytes: {e}"))?;
        self.psns = self.psns.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let psn = (self.psns >> 40) as u32;
        let link = &mut self.links[at as usize];
        link.generation = link.generation.wrapping_add(1) & 0xfff;
        let generation = link.generation;
        let bytes = (self.config.payload_bytes(), self.config.stripe_bytes);
        let connection = Connection::new((at, generation), &link.pairs, &mut self.devices, bytes, psn)
            .map_err(|why| why.to_string())?;
        if let Some(channel) = &mut link.channel {
            let meeting = Meeting::new(drawn, now_ms, timeout_ms);
            link.nonces = meeting.nonces();
            channel.stage = Stage::Meeting(Box::new(connection), meeting);
        }
        self.look_for_ways(at)
    }

    /// Looks for the ways to the peer that are not known.
    fn look_for_ways(&mut self, at: u32) -> Result<(), String> {
        let link = &mut self.links[at as usize];
        let Some(Stage::Meeting(connection, _)) = link.channel.as_ref().map(|c| &c.stage) else {
            return Ok(());
        };
        for (rail, (way, pair)) in link.ways.iter_mut().zip(&link.pairs).enumerate() {
            if matches!(way, Resolved::Asked | Resolved::Ready(_)) || !connection.rails[rail].is_alive() {
                continue;
            }
            let device = &self.devices[pair.mine];
            let (domain, route) =
                (Arc::clone(&device.domain), device.route(&self.config.rdma, &Way::of(pair)));
            let asked =
                self.resolver.ask(Ask { link: at, incarnation: link.incarnation, rail, domain, route });
            asked.map_err(|why| format!("a thread could not be started: {why}"))?;
            *way = Resolved::Asked;
        }
        Ok(())
    }

    /// Takes the ways that were found.
    fn take_ways(&mut self) -> bool {
        let mut moved = false;
        while let Some(Found { link: at, incarnation, rail, found }) = self.resolver.next() {
            moved = true;
            let Some(link) = self.links.get_mut(at as usize).filter(|l| l.incarnation == incarnation) else {
                continue;
            };
            let Some(way) = link.ways.get_mut(rail) else { continue };
            *way = match found {
                Ok(handle) => Resolved::Ready(Arc::new(handle)),
                Err(why) => Resolved::Failed(why.to_string()),
            };
            if link.knows_ways()
                && let Some((hello, proof)) = link.early.take()
            {
                self.hear(hello, &proof);
            }
        }
        moved
    }

    /// What this side's hellos to a peer say.
    fn hello(&self, at: u32, answer: Answer) -> Hello {
        let link = &self.links[at as usize];
        let mut hello = Hello {
            answer,
            nonce: link.nonces.0,
            echo: link.nonces.1,
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
        // One that is not admitted here is not spoken to.
        let Some(key) = self.config.keys.key(self.links[at as usize].incarnation) else { return };
        let hello = self.hello(at, answer).encode(&key);
        let link = &mut self.links[at as usize];
        link.said += 1;
        // Each over another rail, since one that is down at the other side can be told by silence alone.
        let ways = link.ways.iter().zip(&link.pairs);
        let ready = ways.filter_map(|(way, pair)| match way {
            Resolved::Ready(handle) => Some((handle, pair)),
            _ => None,
        });
        let count = ready.clone().count().max(1);
        let Some((handle, pair)) = ready.clone().nth(link.said % count) else { return };
        let theirs = &link.offer.rails[pair.theirs];
        let to = (theirs.bootstrap_queue_pair, theirs.bootstrap_queue_key);
        self.devices[pair.mine].say(&hello, handle, to);
    }

    /// Takes a hello. What is none of this job's is ignored, and so is one from a peer that is not introduced yet, but
    /// for the last of each, within a limit.
    pub(super) fn hear(&mut self, hello: Hello, proof: &Proof) {
        let is_mine = (hello.from, hello.from_incarnation) == (self.config.me, self.config.incarnation);
        if hello.to != self.config.me || is_mine {
            tracing::debug!("a hello for peer {} was ignored", hello.to);
            return;
        }
        let Some(at) = self.link_of_process(hello.from, hello.from_incarnation) else {
            if self.strangers.len() < super::MAX_STRANGERS || self.strangers.contains_key(&hello.from) {
                self.strangers.insert(hello.from, (hello, *proof));
            }
            return;
        };
        let link = &self.links[at as usize];
        let lives = (hello.from_incarnation, hello.to_incarnation);
        if lives != (link.incarnation, self.config.incarnation) {
            tracing::debug!("a hello of another life of peer {} was ignored", hello.from);
            return;
        }
        // Its speaker repeats it until it is admitted.
        let Some(key) = self.config.keys.key(hello.from_incarnation) else { return };
        if !hello.is_proven(&key, proof) {
            return self.complain(hello.from);
        }
        if let Some(refusal) = hello.answer.refusal() {
            // H4: said of this meeting, not of one long ago.
            let is_met = link.channel.as_ref().is_some_and(|c| !c.is_up()) && hello.echo == link.nonces.0;
            if is_met {
                let peer = hello.from;
                let evidence = format!("peer {peer} turned us away: {refusal}");
                self.lose(at, Cause::new(CauseKind::Refused, evidence));
            }
            return;
        }
        if link.gone.is_some() {
            self.links[at as usize].nonces.1 = hello.nonce;
            self.say(at, Answer::Over);
            return;
        }
        self.open_channel(at);
        self.hear_peer(at, &hello, proof);
    }

    /// Warns of a hello that was said by nobody who has the key, once in a while for each that it says to be of.
    fn complain(&mut self, from: u32) {
        if self.complaints.due(IpAddr::from(from.to_be_bytes()), Instant::now()) {
            tracing::warn!(
                "a hello that says to be of peer {from} was ignored: its proof is not that of the group. It is of another \
                 job, the two have different tokens, or somebody says it again"
            );
        }
    }

    fn hear_peer(&mut self, at: u32, hello: &Hello, proof: &Proof) {
        let link = &mut self.links[at as usize];
        let (knows_ways, dead) = (link.knows_ways(), link.dead_ways());
        let Some(channel) = &mut link.channel else { return };
        channel.sign_ms = self.now_ms;
        if matches!(channel.stage, Stage::Meeting(..)) && !knows_ways {
            link.early = Some((*hello, *proof));
            return;
        }
        let (heard, answer) = match &mut channel.stage {
            Stage::None => return,
            // Its answer was lost.
            Stage::Up(_) if hello.answer != Answer::Both && hello.nonce == link.nonces.1 => {
                return self.say(at, Answer::Both);
            }
            Stage::Up(_) => return,
            Stage::Meeting(connection, meeting) => {
                if meeting.is_fresh(hello)
                    && let Err(why) = connection.accepts(hello)
                {
                    let evidence = format!("peer {} said a hello with {why}", link.peer.0);
                    return self.lose(at, Cause::new(CauseKind::Protocol, evidence));
                }
                let heard = meeting.hear(hello);
                link.nonces = meeting.nonces();
                if heard.connect {
                    dead.iter().for_each(|(rail, _)| connection.leave_out(*rail));
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
            Stage::Meeting(mut connection, meeting) if meeting.is_up() => {
                let used = link.pairs.iter().zip(&connection.rails).filter(|(_, r)| r.is_alive());
                let used: Vec<RailPair> = used.map(|(pair, _)| pair.clone()).collect();
                link.why = Some(describe(&used, &self.offer, &link.offer));
                self.meetings.retain(|m| *m != at);
                let failed = std::mem::take(&mut connection.failed_early);
                for (rail, cause) in failed {
                    let (matcher, done) = (&mut channel.matcher, &mut self.done);
                    let verdict =
                        connection.after_failure(rail, (cause, false), &self.retired, matcher, done);
                    if let Verdict::Lost(cause) = verdict {
                        channel.stage = Stage::Up(connection);
                        return self.lose(at, cause);
                    }
                }
                Stage::Up(connection)
            }
            other => other,
        };
        self.soil(at);
    }

    /// Repeats hellos that are due, and gives up those that nobody answers.
    pub(super) fn step_meetings(&mut self) -> bool {
        let mut moved = self.take_ways();
        let now_ms = self.now_ms;
        for i in (0..self.meetings.len()).rev() {
            let at = self.meetings[i];
            let link = &mut self.links[at as usize];
            let (knows, dead) = (link.knows_ways(), link.dead_ways());
            let is_looking = link.is_looking();
            let is_reached = link.ways.iter().any(|w| matches!(w, Resolved::Ready(_)));
            let Some(Stage::Meeting(connection, meeting)) = link.channel.as_mut().map(|c| &mut c.stage)
            else {
                self.meetings.swap_remove(i);
                continue;
            };
            if let Some(tried) = meeting.is_late(now_ms) {
                let way = describe(&link.pairs, &self.offer, &link.offer);
                let timeout_ms = self.config.connect_timeout_ms;
                let no_way = dead.into_iter().next().filter(|_| !is_reached);
                let tried = no_way.map_or(tried, |(_, why)| why);
                let evidence =
                    format!("peer {} was not reached within {timeout_ms} ms: {tried} ({way})", link.peer.0);
                self.lose(at, Cause::new(CauseKind::Unreachable, evidence));
                moved = true;
            } else if knows && meeting.speaks(now_ms) {
                let answer = meeting.answer();
                dead.iter().for_each(|(rail, _)| connection.leave_out(*rail));
                self.say(at, answer);
                moved = true;
            } else if !is_reached && !is_looking && meeting.speaks(now_ms) {
                if let Err(why) = self.look_for_ways(at) {
                    self.lose(at, Cause::new(CauseKind::Local, why));
                }
                moved = true;
            }
        }
        moved
    }

    /// Takes a link's connection down: what its devices still do with lent memory ends here.
    pub(super) fn disconnect(&mut self, at: u32) {
        let Some(channel) = &mut self.links[at as usize].channel else { return };
        if let Stage::Meeting(connection, _) | Stage::Up(connection) =
            std::mem::replace(&mut channel.stage, Stage::None)
        {
            self.past += connection.copies();
            connection.rails.iter().for_each(|rail| rail.unreserve(&mut self.devices));
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
