//! Making connections: accepting and checking who comes, dialling and taking up what was agreed.
#![forbid(unsafe_code)]

use super::connection::Connection;
use super::device::{self, Connected};
use super::handshake::{Dial, Heard, Other, Stage, Stranger, agree, check, fds, hear, same_token, say};
use super::links::Way;
use super::segment::Segment;
use super::transport::ShmTransport;
use super::watch::Token;
use super::wire::{Greeting, Identity, Refusal};
use super::{GREETING_TIMEOUT_MS, MAX_STRANGERS};
use crate::transport::matching::UNIT_BYTES;
use crate::transport::{Cause, CauseKind};
use std::os::fd::OwnedFd;

/// Connections accepted in one look.
const ACCEPTS_PER_LOOK: usize = 64;
/// Pause after the process ran out of descriptors, and between attempts at a listener that has too many to accept.
pub(super) const PAUSE_MS: u64 = 5;

/// Accepted connections that are no peer's yet.
#[derive(Default)]
pub(super) struct Door {
    strangers: Vec<Stranger>,
    next: u32,
    paused_until_ms: Option<u64>,
}

impl Door {
    /// Whether somebody has a time limit.
    pub(super) fn is_quiet(&self) -> bool {
        self.paused_until_ms.is_none() && self.strangers.iter().all(|s| s.said.is_some())
    }

    pub(super) fn due_ms(&self) -> Option<u64> {
        let silent = self.strangers.iter().filter(|s| s.said.is_none());
        silent.map(|s| s.came_ms + GREETING_TIMEOUT_MS).chain(self.paused_until_ms).min()
    }

    pub(super) fn clear(&mut self) {
        self.strangers.clear();
    }
}

impl ShmTransport {
    fn identity(&self, to: u32, to_incarnation: u64) -> Identity {
        let config = &self.config;
        Identity {
            token: config.token,
            from: config.me,
            to,
            from_incarnation: config.incarnation,
            to_incarnation,
            eager_bytes: config.eager_bytes,
            window_units: config.eager_window_bytes / UNIT_BYTES as u32,
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
                    tracing::warn!("accepting failed ({e}): trying again; raise ulimit -n if it persists");
                    self.watch.remove(listener);
                    self.door.paused_until_ms = Some(self.now_ms + PAUSE_MS);
                    return;
                }
            }
        }
    }

    fn let_in(&mut self, socket: OwnedFd) {
        if self.door.strangers.len() >= MAX_STRANGERS {
            tracing::warn!("over {MAX_STRANGERS} connections that belong to no peer: the oldest is dropped");
            self.door.strangers.remove(0);
        }
        let number = self.door.next;
        self.door.next = number.wrapping_add(1);
        if let Err(e) = self.watch.add(&socket, Token::Stranger(number)) {
            tracing::warn!("a connection was turned away: {e}");
            return;
        }
        self.door.strangers.push(Stranger { socket, number, came_ms: self.now_ms, said: None });
        self.hear_stranger(number);
    }

    /// Takes what a stranger has said.
    pub(super) fn hear_stranger(&mut self, number: u32) {
        let Some(at) = self.door.strangers.iter().position(|s| s.number == number) else { return };
        let stranger = &mut self.door.strangers[at];
        let why = match hear(&stranger.socket) {
            Heard::Nothing => return,
            Heard::Greeting(Greeting::Hello(id), fds) if stranger.said.is_none() => {
                stranger.said = Some((id, fds));
                return self.answer(at);
            }
            Heard::Greeting(..) => "it greeted out of turn".to_owned(),
            Heard::Ended => String::new(),
            Heard::Nonsense(why) => why,
        };
        self.door.strangers.remove(at);
        if !why.is_empty() {
            tracing::warn!("a connection in shared memory was turned away: {why}");
        }
    }

    /// Answers those that were waiting for a peer to be introduced.
    pub(super) fn answer_waiting(&mut self) {
        let mut at = 0;
        while at < self.door.strangers.len() {
            let before = self.door.strangers.len();
            if self.door.strangers[at].said.is_some() {
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
        self.door.strangers.retain(|s| s.said.is_some() || now_ms < s.came_ms + GREETING_TIMEOUT_MS);
    }

    /// Whether to take a greeting up, and on which link; `None`: its process was not introduced yet.
    fn judge(&self, socket: &OwnedFd, id: &Identity) -> Result<Option<u32>, Refusal> {
        if !same_token(&id.token, &self.config.token) {
            return Err(Refusal::Token);
        }
        if (id.to, id.to_incarnation) != (self.config.me, self.config.incarnation) {
            return Err(Refusal::Peer);
        }
        let Some(at) = self.link_of_process(id.from, id.from_incarnation) else { return Ok(None) };
        let link = &self.links[at as usize];
        if id.from_incarnation != link.published.incarnation {
            return Err(Refusal::Peer);
        }
        if link.gone.is_some() {
            return Err(Refusal::Duplicate);
        }
        if let Err(why) = check(socket, &self.published, &link.published) {
            tracing::warn!("a connection in shared memory was turned away: {why}");
            return Err(Refusal::Credentials);
        }
        let mine_stays = (self.config.me, self.config.incarnation) < (id.from, id.from_incarnation);
        match link.channel.as_ref().map(|c| &c.way) {
            Some(Way::Up(_)) => Err(Refusal::Duplicate),
            // S1: the one dialled by the lower number stays.
            Some(Way::Dial(dial)) if mine_stays && matches!(dial.stage, Stage::Greeted { .. }) => {
                Err(Refusal::UseMine)
            }
            _ => Ok(Some(at)),
        }
    }

    /// Answers a stranger that has greeted, unless it has to wait.
    fn answer(&mut self, index: usize) {
        let stranger = &self.door.strangers[index];
        let Some((id, _)) = &stranger.said else { return };
        let judged = match self.judge(&stranger.socket, id) {
            Ok(None) => return,
            Ok(Some(at)) => Ok(at),
            Err(why) => Err(why),
        };
        let Stranger { socket, said, .. } = self.door.strangers.remove(index);
        let Some((id, mut shown)) = said else { return };
        let refused = |why| {
            // Whoever does not hear it finds the connection closed.
            let _ = say(&socket, &Greeting::Refuse(Ok(why)), &[]);
        };
        let at = match judged {
            Ok(at) => at,
            Err(why) => {
                tracing::debug!("process {} was refused ({why:?})", id.from);
                return refused(why);
            }
        };
        let segment = if shown.is_empty() { None } else { Some(shown.remove(0)) };
        let segment = segment.ok_or("it brought no queue".to_owned());
        let segment = segment.and_then(|file| Segment::of_peer(&file).map_err(|e| e.to_string()));
        let other = Other::new(&socket, &id, shown, self.config.means());
        let (segment, other) = match (segment, other) {
            (Ok(segment), Ok(other)) => (segment, other),
            (Err(why), _) | (_, Err(why)) => {
                tracing::warn!("a connection in shared memory was turned away: {why}");
                return refused(Refusal::Memory);
            }
        };
        let welcome = Greeting::Welcome(self.identity(id.from, id.from_incarnation));
        if let Err(why) = say(&socket, &welcome, &fds(None, &self.shown)) {
            tracing::debug!("a greeting was not answered: {why}");
            return;
        }
        self.watch.change(&socket, Token::Link(at));
        self.establish(at, socket, segment.ends(false), other, &id);
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
        let published = link.published;
        let unreachable =
            |why: String| Cause::new(CauseKind::Unreachable, format!("process {}: {why}", published.pid));
        let Some(Way::Dial(dial)) = link.channel.as_ref().map(|c| &c.way) else { return Ok(()) };
        let heard = match &dial.stage {
            Stage::Awaited => return Ok(()),
            Stage::Busy => {
                let gone = |e: std::io::Error| unreachable(format!("nobody listens at its socket ({e})"));
                let Connected::Yes(socket) = device::dial(&published.name).map_err(gone)? else {
                    return Ok(());
                };
                check(&socket, &self.published, &published)
                    .map_err(|why| Cause::new(CauseKind::Refused, why))?;
                return self.greet(at, socket);
            }
            Stage::Greeted { socket, .. } => hear(socket),
        };
        match heard {
            Heard::Nothing => Ok(()),
            Heard::Greeting(Greeting::Welcome(id), shown) => self.welcomed(at, &id, shown),
            Heard::Greeting(Greeting::Refuse(Ok(Refusal::UseMine)), _) => {
                if let Some(Way::Dial(dial)) = self.links[at as usize].channel.as_mut().map(|c| &mut c.way) {
                    dial.stage = Stage::Awaited;
                }
                Ok(())
            }
            Heard::Greeting(Greeting::Refuse(why), _) => {
                let words = match why {
                    Ok(why) => why.words().to_owned(),
                    Err(code) => format!("refusal {code}, which this release does not know"),
                };
                Err(Cause::new(CauseKind::Refused, format!("process {} refused: {words}", published.pid)))
            }
            Heard::Ended => Err(Cause::new(
                CauseKind::Closed,
                format!("process {} closed its end without an answer", published.pid),
            )),
            Heard::Greeting(Greeting::Hello(_), _) => Err(unreachable("it greeted as a dialler".to_owned())),
            Heard::Nonsense(why) => Err(Cause::new(CauseKind::Protocol, why)),
        }
    }

    fn greet(&mut self, at: u32, socket: OwnedFd) -> Result<(), Cause> {
        let own = |e: std::io::Error| {
            Cause::new(CauseKind::Local, format!("no memory to share ({e}): raise ulimit -n and -v"))
        };
        let published = self.links[at as usize].published;
        let (segment, file) = Segment::new().map_err(own)?;
        let hello = Greeting::Hello(self.identity(published.number, published.incarnation));
        self.watch.add(&socket, Token::Link(at)).map_err(own)?;
        say(&socket, &hello, &fds(Some(&file), &self.shown)).map_err(|e| {
            Cause::new(CauseKind::Closed, format!("process {} did not take a greeting ({e})", published.pid))
        })?;
        if let Some(Way::Dial(dial)) = self.links[at as usize].channel.as_mut().map(|c| &mut c.way) {
            dial.stage = Stage::Greeted { socket, segment };
        }
        Ok(())
    }

    fn welcomed(&mut self, at: u32, id: &Identity, shown: Vec<OwnedFd>) -> Result<(), Cause> {
        let published = self.links[at as usize].published;
        let right = same_token(&id.token, &self.config.token)
            && (id.from, id.from_incarnation) == (published.number, published.incarnation)
            && (id.to, id.to_incarnation) == (self.config.me, self.config.incarnation);
        if !right {
            return Err(Cause::new(CauseKind::Refused, "another process answered in its place"));
        }
        let Some(channel) = self.links[at as usize].channel.as_mut() else { return Ok(()) };
        let Way::Dial(dial) = std::mem::replace(&mut channel.way, Way::None) else { return Ok(()) };
        let Stage::Greeted { socket, segment } = dial.stage else { return Ok(()) };
        let other = Other::new(&socket, id, shown, self.config.means())
            .map_err(|why| Cause::new(CauseKind::Protocol, why))?;
        self.establish(at, socket, segment.ends(true), other, id);
        Ok(())
    }

    /// The greeting is done: records may flow.
    fn establish(
        &mut self,
        at: u32,
        socket: OwnedFd,
        ends: (super::segment::Outlet, super::segment::Inlet),
        other: Other,
        theirs: &Identity,
    ) {
        self.dialling.retain(|d| *d != at);
        let agreed = agree(&self.identity(theirs.from, 0), theirs);
        let link = &mut self.links[at as usize];
        let who = format!("process {}", link.published.pid);
        link.why = Some(format!("same host, {who}; {}", other.ways()));
        let channel = link.channel.get_or_insert_with(|| self.spare.make(link.peer));
        channel.way = Way::Up(Box::new(Connection::new(socket, who, ends, other, agreed.eager_bytes)));
        channel.matcher.open(agreed, &mut self.done);
        self.live.push(at);
    }
}
