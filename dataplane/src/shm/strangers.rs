//! Making connections: accepting and checking who comes, dialling and taking up what was agreed.
#![forbid(unsafe_code)]

use super::attach;
use super::connection::Connection;
use super::device::{self, Connected};
use super::handshake::{Dial, Heard, Other, Said, Stage, Stranger, agree, check, fds, hear, say};
use super::links::Way;
use super::segment::Segment;
use super::transport::ShmTransport;
use super::watch::Token;
use super::wire::{Greeting, Identity, Offer, Refusal};
use super::{GREETING_TIMEOUT_MS, MAX_STRANGERS};
use crate::transport::authentication::{Nonce, Proof, nonce};
use crate::transport::limits::own_limit;
use crate::transport::matching::UNIT_BYTES;
use crate::transport::{Cause, CauseKind, Complaints};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Connections accepted in one look.
const ACCEPTS_PER_LOOK: usize = 64;
/// Pause after the process ran out of descriptors, and between attempts at a listener that has too many to accept.
pub(super) const PAUSE_MS: u64 = 5;
/// Stands for this process where it complains of itself.
const OURSELVES: u32 = u32::MAX;

/// Accepted connections that are no peer's yet.
#[derive(Default)]
pub(super) struct Door {
    strangers: Vec<Stranger>,
    next: u32,
    complaints: Complaints,
    paused_until_ms: Option<u64>,
}

impl Door {
    /// Whether somebody has a time limit, or waits for a key.
    pub(super) fn is_quiet(&self) -> bool {
        self.paused_until_ms.is_none() && self.strangers.iter().all(|s| s.is_patient() && !s.wants_key())
    }

    pub(super) fn due_ms(&self, now_ms: u64) -> Option<u64> {
        let limits = self.strangers.iter().filter(|s| !s.is_patient());
        let limits = limits.map(|s| s.since_ms + GREETING_TIMEOUT_MS).chain(self.paused_until_ms);
        let key = self.strangers.iter().any(Stranger::wants_key).then_some(now_ms + PAUSE_MS);
        limits.chain(key).min()
    }

    pub(super) fn clear(&mut self) {
        self.strangers.clear();
    }

    /// Warns of a process, by its number, once in a while.
    fn complain(&mut self, pid: u32, why: &str) {
        if self.complaints.due(IpAddr::from(pid.to_be_bytes()), Instant::now()) {
            tracing::warn!("a connection in shared memory, of process {pid}, was turned away: {why}");
        }
    }
}

impl ShmTransport {
    fn identity(&self, to: u32, to_incarnation: u64) -> Result<Identity, Cause> {
        let nonce = nonce()
            .map_err(|e| Cause::new(CauseKind::Local, format!("the kernel gives no random bytes: {e}")))?;
        let (from, from_incarnation) = (self.config.me, self.config.incarnation);
        Ok(Identity { from, to, from_incarnation, to_incarnation, nonce })
    }

    fn offer(&self) -> Offer {
        Offer {
            eager_bytes: self.config.eager_bytes,
            window_units: self.config.eager_window_bytes / UNIT_BYTES as u32,
            probe_address: (&raw const *self.shown.probe).addr() as u64,
            probe: *self.shown.probe,
        }
    }

    /// Accepts whoever waits.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_LOOK {
            let Some(listener) = &self.listener else { return };
            match device::accept(listener) {
                Ok(Some(socket)) => self.let_in(socket),
                Ok(None) => return,
                Err(e) => {
                    self.watch.remove(listener);
                    if self.door.complaints.due(IpAddr::from(OURSELVES.to_be_bytes()), Instant::now()) {
                        tracing::warn!(
                            "accepting failed ({e}): trying again; raise ulimit -n if it persists"
                        );
                    }
                    self.door.paused_until_ms = Some(self.now_ms + PAUSE_MS);
                    return;
                }
            }
        }
    }

    fn let_in(&mut self, socket: OwnedFd) {
        // S4: names of sockets are open to all users of the network namespace.
        let pid = match attach::credentials(&socket) {
            Ok(found) if found.uid == self.published.home.uid => found.pid,
            Ok(found) => return self.door.complain(found.pid, &format!("it is of user {}", found.uid)),
            Err(e) => return self.door.complain(0, &e.to_string()),
        };
        if self.door.strangers.len() >= MAX_STRANGERS {
            let oldest = self.door.strangers.remove(0);
            let why = format!("over {MAX_STRANGERS} belong to no peer, and it is the oldest");
            self.door.complain(oldest.pid, &why);
        }
        let number = self.door.next;
        self.door.next = number.wrapping_add(1);
        if let Err(e) = self.watch.add(&socket, Token::Stranger(number)) {
            return self.door.complain(pid, &e.to_string());
        }
        let (since_ms, said) = (self.now_ms, Said::Nothing);
        self.door.strangers.push(Stranger { socket, number, pid, since_ms, said });
        self.hear_stranger(number);
    }

    /// Takes what a stranger has said.
    pub(super) fn hear_stranger(&mut self, number: u32) {
        let Some(at) = self.door.strangers.iter().position(|s| s.number == number) else { return };
        let stranger = &mut self.door.strangers[at];
        let why = match (hear(&stranger.socket), stranger.said) {
            (Heard::Nothing, _) => return,
            (Heard::Greeting(Greeting::Knock(id), _), Said::Nothing) => {
                stranger.said = Said::Knock { id, introduced: false };
                return self.answer(at);
            }
            (Heard::Greeting(Greeting::Hello(offer, proof), shown), Said::Challenged(id, challenge)) => {
                return self.take_up(at, &id, &challenge, &offer, &proof, shown);
            }
            (Heard::Greeting(..), _) => "it greeted out of turn".to_owned(),
            (Heard::Ended, _) => String::new(),
            (Heard::Nonsense(why), _) => why,
        };
        let stranger = self.door.strangers.remove(at);
        if !why.is_empty() {
            self.door.complain(stranger.pid, &why);
        }
    }

    /// Answers those that were waiting for a peer to be introduced or admitted.
    pub(super) fn answer_waiting(&mut self) {
        let mut at = 0;
        while at < self.door.strangers.len() {
            let before = self.door.strangers.len();
            if self.door.strangers[at].is_patient() {
                self.answer(at);
            }
            at += usize::from(self.door.strangers.len() == before);
        }
    }

    /// Turns out whoever has been silent for too long, and accepts again after a pause.
    pub(super) fn tend_door(&mut self) {
        let now_ms = self.now_ms;
        if self.door.paused_until_ms.is_some_and(|t| t <= now_ms) {
            self.door.paused_until_ms = None;
            if let Some(listener) = &self.listener
                && let Err(e) = self.watch.add(listener, Token::Listener)
            {
                tracing::error!("epoll_ctl failed for a listener: {e}");
            }
            self.accept();
        }
        let is_late = |s: &Stranger| !s.is_patient() && now_ms >= s.since_ms + GREETING_TIMEOUT_MS;
        while let Some(at) = self.door.strangers.iter().position(is_late) {
            let late = self.door.strangers.remove(at);
            self.door.complain(late.pid, &format!("it did not greet within {GREETING_TIMEOUT_MS} ms"));
        }
        if self.door.strangers.iter().any(Stranger::wants_key) {
            self.answer_waiting();
        }
    }

    /// Whether to take a dialler up, and on which link; `None`: its process was not introduced yet.
    fn judge(&self, socket: &OwnedFd, id: &Identity) -> Result<Option<u32>, Refusal> {
        if (id.to, id.to_incarnation) != (self.config.me, self.config.incarnation) {
            return Err(Refusal::Peer);
        }
        let Some(at) = self.link_of_process(id.from, id.from_incarnation) else { return Ok(None) };
        let link = &self.links[at as usize];
        if id.from_incarnation != link.published.incarnation {
            return Err(Refusal::Peer);
        }
        // S6
        check(socket, &self.published, &link.published).map_err(|_| Refusal::Credentials)?;
        if link.gone.is_some() {
            return Err(Refusal::Duplicate);
        }
        let mine_stays = (self.config.me, self.config.incarnation) < (id.from, id.from_incarnation);
        match link.channel.as_ref().map(|c| &c.way) {
            Some(Way::Up(_)) => Err(Refusal::Duplicate),
            // S1: the one dialled by the lower number stays.
            Some(Way::Dial(dial)) if mine_stays && dial.stage.asked().is_some() => Err(Refusal::UseMine),
            _ => Ok(Some(at)),
        }
    }

    /// Turns a dialler away.
    fn refuse(&mut self, stranger: &Stranger, from: u32, why: Refusal) {
        match why {
            Refusal::Unproven | Refusal::Credentials => {
                self.door.complain(stranger.pid, &format!("as process {from}, it was refused ({why:?})"));
            }
            _ => tracing::debug!("process {from} was refused ({why:?})"),
        }
        // Whoever does not hear it finds the connection closed.
        let _ = say(&stranger.socket, &Greeting::Refuse(Ok(why)), &[]);
    }

    /// Challenges a stranger that has knocked, unless it has to wait.
    fn answer(&mut self, index: usize) {
        let stranger = &self.door.strangers[index];
        let Said::Knock { id, .. } = stranger.said else { return };
        let key = self.config.keys.key(id.from_incarnation);
        let said = match (self.judge(&stranger.socket, &id), key) {
            (Ok(None), _) => return,
            (Ok(Some(_)), None) => Ok(Said::Knock { id, introduced: true }),
            (Ok(Some(_)), Some(key)) => {
                let challenged = nonce().and_then(|challenge| {
                    let proof = id.prove_listener(&key, &challenge);
                    say(&stranger.socket, &Greeting::Challenge(challenge, proof), &[])?;
                    Ok(Said::Challenged(id, challenge))
                });
                match challenged {
                    Ok(said) => Ok(said),
                    Err(why) => {
                        tracing::debug!("process {} was not challenged: {why}", id.from);
                        self.door.strangers.remove(index);
                        return;
                    }
                }
            }
            (Err(why), _) => Err(why),
        };
        match said {
            Ok(said) => {
                self.door.strangers[index].said = said;
                self.door.strangers[index].since_ms = self.now_ms;
            }
            Err(why) => {
                let stranger = self.door.strangers.remove(index);
                self.refuse(&stranger, id.from, why);
            }
        }
    }

    /// Connects with a stranger that has answered its challenge, if it has proven itself.
    fn take_up(
        &mut self,
        index: usize,
        id: &Identity,
        challenge: &Nonce,
        offer: &Offer,
        proof: &Proof,
        mut shown: Vec<OwnedFd>,
    ) {
        let stranger = self.door.strangers.remove(index);
        // A1
        let key = self.config.keys.key(id.from_incarnation);
        let is_proven = key.is_some_and(|key| id.is_dialler(&key, challenge, offer, proof));
        let judged = if is_proven { self.judge(&stranger.socket, id) } else { Err(Refusal::Unproven) };
        let at = match judged {
            Ok(Some(at)) => at,
            Ok(None) => return self.refuse(&stranger, id.from, Refusal::Peer),
            Err(why) => return self.refuse(&stranger, id.from, why),
        };
        let segment = if shown.is_empty() { None } else { Some(shown.remove(0)) };
        let segment = segment.ok_or("it brought no queue".to_owned());
        let segment = segment.and_then(|file| Segment::of_peer(&file).map_err(|e| e.to_string()));
        let other = Other::new(&stranger.socket, offer, shown, self.config.means());
        let (segment, other) = match (segment, other) {
            (Ok(segment), Ok(other)) => (segment, other),
            (Err(why), _) | (_, Err(why)) => {
                self.door.complain(stranger.pid, &why);
                return self.refuse(&stranger, id.from, Refusal::Memory);
            }
        };
        let welcome = Greeting::Welcome(self.offer());
        if let Err(why) = say(&stranger.socket, &welcome, &fds(None, &self.shown)) {
            tracing::debug!("a greeting was not answered: {why}");
            return;
        }
        self.watch.change(&stranger.socket, Token::Link(at));
        self.establish(at, stranger.socket, segment.ends(false), other, offer);
    }

    /// Begins to dial a peer.
    pub(super) fn dial(&mut self, at: u32) {
        let dial = Dial { began_ms: self.clock_ms(), stage: Stage::Busy };
        if let Some(channel) = &mut self.links[at as usize].channel {
            channel.way = Way::Dial(Box::new(dial));
            self.dialling.push(at);
            self.must_look = true;
        }
    }

    /// Takes every dial as far as it goes.
    pub(super) fn step_dials(&mut self) {
        let mut i = 0;
        while let Some(at) = self.dialling.get(i).copied() {
            let due_ms = match self.links[at as usize].channel.as_ref().map(|c| &c.way) {
                Some(Way::Dial(dial)) => dial.began_ms + self.config.connect_timeout_ms,
                _ => {
                    self.dialling.swap_remove(i);
                    continue;
                }
            };
            match self.step_dial(at) {
                Ok(()) if self.now_ms >= due_ms => {
                    let waited_ms = self.config.connect_timeout_ms;
                    let why = format!("it has not answered within {waited_ms} ms, in shared memory");
                    self.lose(at, Cause::new(CauseKind::Unreachable, why));
                }
                Ok(()) => {}
                Err(cause) => self.lose(at, cause),
            }
            i += usize::from(self.dialling.get(i) == Some(&at));
        }
    }

    fn step_dial(&mut self, at: u32) -> Result<(), Cause> {
        let link = &self.links[at as usize];
        let pid = link.published.pid;
        let Some(Way::Dial(dial)) = link.channel.as_ref().map(|c| &c.way) else { return Ok(()) };
        let heard = match (&dial.stage, dial.stage.asked()) {
            (_, Some(socket)) => hear(socket),
            (Stage::Busy, _) => return self.knock(at),
            _ => return Ok(()),
        };
        let out_of_turn = || Cause::new(CauseKind::Protocol, format!("process {pid} greeted out of turn"));
        match heard {
            Heard::Nothing => Ok(()),
            Heard::Greeting(Greeting::Challenge(challenge, proof), _) => self.greet(at, &challenge, &proof),
            Heard::Greeting(Greeting::Welcome(offer), shown) => self.welcomed(at, &offer, shown),
            Heard::Greeting(Greeting::Refuse(Ok(Refusal::UseMine)), _) => {
                self.set_stage(at, Stage::Awaited);
                Ok(())
            }
            Heard::Greeting(Greeting::Refuse(why), _) => {
                let words = match why {
                    Ok(why) => why.words().to_owned(),
                    Err(code) => format!("refusal {code}, which this release does not know"),
                };
                Err(Cause::new(CauseKind::Refused, format!("process {pid} refused: {words}")))
            }
            Heard::Ended => {
                Err(Cause::new(CauseKind::Closed, format!("process {pid} closed its end without an answer")))
            }
            Heard::Greeting(Greeting::Knock(_) | Greeting::Hello(..), _) => Err(out_of_turn()),
            Heard::Nonsense(why) => Err(Cause::new(CauseKind::Protocol, why)),
        }
    }

    /// Goes a dial's next step, and returns the one that it was at.
    fn set_stage(&mut self, at: u32, stage: Stage) -> Option<Stage> {
        match self.links[at as usize].channel.as_mut().map(|c| &mut c.way) {
            Some(Way::Dial(dial)) => Some(std::mem::replace(&mut dial.stage, stage)),
            _ => None,
        }
    }

    /// Connects, and says who this is, once the peer is admitted.
    fn knock(&mut self, at: u32) -> Result<(), Cause> {
        let published = self.links[at as usize].published;
        if self.config.keys.key(published.incarnation).is_none() {
            return Ok(());
        }
        let unreachable = |e: std::io::Error| match own_limit(&e) {
            Some(why) => Cause::new(CauseKind::Local, format!("{why}, so that no socket could be made")),
            None => {
                let why = format!("process {}: nobody listens at its socket ({e})", published.pid);
                Cause::new(CauseKind::Unreachable, why)
            }
        };
        let Connected::Yes(socket) = device::dial(&published.name).map_err(unreachable)? else {
            return Ok(());
        };
        // S6
        check(&socket, &self.published, &published).map_err(|why| Cause::new(CauseKind::Refused, why))?;
        let id = self.identity(published.number, published.incarnation)?;
        self.watch.add(&socket, Token::Link(at)).map_err(|e| Cause::new(CauseKind::Local, e.to_string()))?;
        say(&socket, &Greeting::Knock(id), &[]).map_err(|e| not_taken(published.pid, &e))?;
        self.set_stage(at, Stage::Knocked { socket, id });
        Ok(())
    }

    /// Proves itself to a listener that has done so, and shows what it is to use.
    fn greet(&mut self, at: u32, challenge: &Nonce, theirs: &Proof) -> Result<(), Cause> {
        let published = self.links[at as usize].published;
        let pid = published.pid;
        let Some(Stage::Knocked { socket, id }) = self.set_stage(at, Stage::Awaited) else {
            return Err(Cause::new(CauseKind::Protocol, format!("process {pid} challenged twice")));
        };
        let key = self.config.keys.key(published.incarnation);
        let Some(key) = key.filter(|key| id.is_listener(key, challenge, theirs)) else {
            let why = format!(
                "the proof of process {pid} is not that of our group: it belongs to another job, or the two have different \
                 tokens"
            );
            return Err(Cause::new(CauseKind::Refused, why));
        };
        let (segment, file) = Segment::new().map_err(|e| {
            let why = own_limit(&e).unwrap_or_else(|| format!("{e}: raise ulimit -v"));
            Cause::new(CauseKind::Local, format!("no memory to share: {why}"))
        })?;
        let offer = self.offer();
        let hello = Greeting::Hello(offer, id.prove_dialler(&key, challenge, &offer));
        say(&socket, &hello, &fds(Some(&file), &self.shown)).map_err(|e| not_taken(pid, &e))?;
        self.set_stage(at, Stage::Greeted { socket, segment });
        Ok(())
    }

    fn welcomed(&mut self, at: u32, offer: &Offer, shown: Vec<OwnedFd>) -> Result<(), Cause> {
        let pid = self.links[at as usize].published.pid;
        let Some(Stage::Greeted { socket, segment }) = self.set_stage(at, Stage::Awaited) else {
            return Err(Cause::new(CauseKind::Protocol, format!("process {pid} welcomed out of turn")));
        };
        let other = Other::new(&socket, offer, shown, self.config.means())
            .map_err(|why| Cause::new(CauseKind::Protocol, why))?;
        self.establish(at, socket, segment.ends(true), other, offer);
        Ok(())
    }

    /// The greeting is done: records may flow.
    fn establish(
        &mut self,
        at: u32,
        socket: OwnedFd,
        ends: (super::segment::Outlet, super::segment::Inlet),
        other: Other,
        theirs: &Offer,
    ) {
        self.dialling.retain(|d| *d != at);
        let agreed = agree(&self.offer(), theirs);
        let link = &mut self.links[at as usize];
        let who = format!("process {}", link.published.pid);
        link.why = Some(format!("same host, {who}; {}", other.ways()));
        let channel = link.channel.get_or_insert_with(|| self.spare.make(link.peer));
        channel.way = Way::Up(Box::new(Connection::new(socket, who, ends, other, agreed.eager_bytes)));
        channel.matcher.open(agreed, &mut self.done);
        self.live.push(at);
    }
}

fn not_taken(pid: u32, e: &std::io::Error) -> Cause {
    Cause::new(CauseKind::Closed, format!("process {pid} did not take a greeting ({e})"))
}
