//! Making connections: accepting and checking who comes, dialling and taking up what was agreed.
#![forbid(unsafe_code)]

use super::connection::Connection;
use super::device;
use super::handshake::{Dial, Dialled, Said, Stranger, agree, greet};
use super::links::{Link, Way};
use super::transport::TcpTransport;
use super::watch::Token;
use super::wire::{Greeting, Identity, Refusal};
use super::{GREETING_TIMEOUT_MS, MAX_STRANGERS, MAX_STRANGERS_PER_SOURCE};
use crate::transport::authentication::{NONCE_BYTES, Proof};
use crate::transport::matching::UNIT_BYTES;
use crate::transport::{Cause, CauseKind, Complaints};
use socket2::Socket;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Connections accepted in one poll.
const ACCEPTS_PER_POLL: usize = 64;
/// Connections that two sides dialled at once have met by then.
const SETTLED_MS: u64 = 2_000;
/// Pause after the process ran out of descriptors.
const ACCEPT_PAUSE_MS: u64 = 100;

/// Accepted connections that have not said who they are, and those complained about.
#[derive(Default)]
pub(super) struct Door {
    strangers: Vec<Stranger>,
    next: u32,
    complaints: Complaints,
    paused_until: Option<Instant>,
}

impl Door {
    pub(super) fn is_quiet(&self) -> bool {
        self.strangers.is_empty() && self.paused_until.is_none()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.strangers.iter().map(|s| s.deadline).chain(self.paused_until).min()
    }

    /// Puts the oldest out where there are too many, of all or of one source.
    fn make_room(&mut self, from: IpAddr) {
        let of_source = |s: &Stranger| s.remote.ip() == from;
        let crowded = self.strangers.iter().filter(|s| of_source(s)).count() >= MAX_STRANGERS_PER_SOURCE;
        let oldest = match (crowded, self.strangers.len() >= MAX_STRANGERS) {
            (true, _) => self.strangers.iter().position(of_source),
            (false, true) => Some(0),
            (false, false) => None,
        };
        if let Some(at) = oldest {
            let oldest = self.strangers.remove(at);
            self.complain(oldest.remote, "too many connections that do not greet");
        }
    }

    fn complain(&mut self, from: SocketAddr, why: &str) {
        if self.complaints.due(from.ip(), Instant::now()) {
            tracing::warn!("a connection from {from} was turned away: {why}");
        }
    }
}

impl TcpTransport {
    /// What this side says of itself to a peer; the nonce is the handshake's.
    fn identity(&self, to: u32, to_incarnation: u64) -> Identity {
        let config = &self.config;
        Identity {
            from: config.me,
            to,
            from_incarnation: config.incarnation,
            to_incarnation,
            host: config.host,
            nonce: [0; NONCE_BYTES],
            channel: 0,
            eager_bytes: config.eager_bytes,
            window_units: config.eager_window_bytes / UNIT_BYTES as u32,
        }
    }

    /// Accepts whoever waits.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_POLL {
            let mut nobody = true;
            for i in 0..self.listeners.len() {
                match self.listeners[i].accept() {
                    Ok((socket, from)) => {
                        nobody = false;
                        if let Some(remote) = from.as_socket() {
                            self.let_in(socket, device::plain(remote));
                        }
                    }
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(e) if e.kind() == std::io::ErrorKind::ConnectionAborted => nobody = false,
                    Err(e) => return self.pause_accepting(&e),
                }
            }
            if nobody {
                return;
            }
        }
    }

    fn pause_accepting(&mut self, e: &std::io::Error) {
        // Its own address stands for this side.
        if self.door.complaints.due(IpAddr::from([0; 4]), Instant::now()) {
            tracing::warn!(
                "accepting failed ({e}): trying again every {ACCEPT_PAUSE_MS} ms; raise ulimit -n if it persists"
            );
        }
        for listener in &self.listeners {
            self.watch.remove(listener);
        }
        self.door.paused_until = Some(Instant::now() + Duration::from_millis(ACCEPT_PAUSE_MS));
    }

    fn let_in(&mut self, socket: Socket, remote: SocketAddr) {
        self.door.make_room(remote.ip());
        let number = self.door.next;
        self.door.next = number.wrapping_add(1);
        if let Err(e) = socket
            .set_nonblocking(true)
            .and_then(|()| self.watch.add(&socket, Token::Stranger(number), false))
        {
            return self.door.complain(remote, &e.to_string());
        }
        match Stranger::new(socket, remote, number, GREETING_TIMEOUT_MS) {
            Ok(stranger) => match stranger.challenge() {
                Ok(()) => self.door.strangers.push(stranger),
                Err(why) => self.given_up(remote, &why),
            },
            Err(why) => self.door.complain(remote, &why),
        }
        self.hear(number);
    }

    /// Whoever made a connection has ended it. Peers that dial each other at once end those that they do not need.
    fn given_up(&mut self, by: SocketAddr, why: &str) {
        let is_peers = |link: &Link| link.published.at.iter().any(|at| device::plain(*at).ip() == by.ip());
        if self.links.iter().any(is_peers) {
            tracing::debug!("{by} ended a connection that it had made: {why}");
        } else {
            self.door.complain(by, why);
        }
    }

    /// Reads what a stranger has said.
    pub(super) fn hear(&mut self, number: u32) {
        let Some(at) = self.door.strangers.iter().position(|s| s.number == number) else { return };
        match self.door.strangers[at].listen() {
            Said::Nothing => {}
            Said::Hello(id, proof) => {
                let stranger = self.door.strangers.remove(at);
                if let Err(why) = self.answer(stranger, &id, &proof) {
                    tracing::debug!("a greeting was not answered: {why}");
                }
            }
            Said::Ended(why) => {
                let stranger = self.door.strangers.remove(at);
                self.given_up(stranger.remote, &why);
            }
            Said::Nonsense(why) => {
                let stranger = self.door.strangers.remove(at);
                self.door.complain(stranger.remote, &why);
            }
        }
    }

    /// Puts out whoever has been silent for too long, and accepts again after a pause.
    pub(super) fn tend_door(&mut self) {
        let now = Instant::now();
        if self.door.paused_until.is_some_and(|t| t <= now) {
            self.door.paused_until = None;
            for listener in &self.listeners {
                if let Err(e) = self.watch.add(listener, Token::Listener, false) {
                    tracing::error!("epoll_ctl failed for a listener: {e}");
                }
            }
            self.accept();
        }
        while let Some(at) = self.door.strangers.iter().position(|s| s.deadline <= now) {
            let stranger = self.door.strangers.remove(at);
            let why = format!("it did not greet within {GREETING_TIMEOUT_MS} ms");
            self.door.complain(stranger.remote, &why);
        }
    }

    /// Whether to take a greeting up, and on which link.
    fn judge(&self, stranger: &Stranger, id: &Identity, proof: &Proof) -> Result<u32, Refusal> {
        if id.to != self.config.me {
            return Err(Refusal::Peer);
        }
        if id.to_incarnation != self.config.incarnation {
            return Err(Refusal::Incarnation);
        }
        let at = self.link_of_process(id.from, id.from_incarnation).ok_or(Refusal::NotYet)?;
        let link = &self.links[at as usize];
        if id.from_incarnation != link.published.incarnation {
            return Err(Refusal::Incarnation);
        }
        if self.config.keys.key(id.from_incarnation).is_none() {
            return Err(Refusal::NotYet);
        }
        if !stranger.is_proven(id, proof, &self.config.keys) {
            return Err(Refusal::Unproven);
        }
        if link.gone.is_some() {
            return Err(Refusal::Duplicate);
        }
        let mine_stays = (self.config.me, self.config.incarnation) < (id.from, id.from_incarnation);
        match link.channel.as_ref().map(|c| &c.way) {
            Some(Way::Up(_)) => Err(Refusal::Duplicate),
            // C1: the one dialled by the lower number stays, once it is known to get through.
            Some(Way::Dial(dial)) if mine_stays && dial.is_greeted() => Err(Refusal::UseMine),
            _ => Ok(at),
        }
    }

    /// Whether a greeter is somebody else than the process that has had a connection for a while by what it calls itself.
    fn is_taken(&self, id: &Identity) -> bool {
        let link = self.link_of_process(id.from, id.from_incarnation).map(|at| &self.links[at as usize]);
        match link.and_then(|l| l.channel.as_ref()).map(|c| &c.way) {
            Some(Way::Up(connection)) => connection.since.elapsed() >= Duration::from_millis(SETTLED_MS),
            _ => false,
        }
    }

    fn answer(&mut self, stranger: Stranger, id: &Identity, proof: &Proof) -> Result<(), String> {
        let remote = stranger.remote;
        let me = self.identity(id.from, id.from_incarnation);
        let judged = self.judge(&stranger, id, proof).and_then(|at| {
            // Dismissed since it was judged.
            let welcome = stranger.welcome(me, proof, &self.config.keys).ok_or(Refusal::NotYet)?;
            Ok((at, welcome))
        });
        let (at, welcome) = match judged {
            Ok(judged) => judged,
            Err(why) => {
                let expected = match why {
                    // These come of both sides dialling at once.
                    Refusal::NotYet | Refusal::UseMine => true,
                    Refusal::Duplicate => !self.is_taken(id),
                    _ => false,
                };
                if !expected {
                    self.door.complain(remote, &format!("as peer {}, it was refused ({why:?})", id.from));
                }
                return greet(&stranger.socket, &Greeting::Refuse(Ok(why)));
            }
        };
        let socket = stranger.socket;
        greet(&socket, &welcome)?;
        self.stop_dialling(at);
        self.watch.change(&socket, Token::Link(at), false);
        self.establish(at, socket, remote, id, "accepted");
        Ok(())
    }

    /// Begins to dial a peer.
    pub(super) fn dial(&mut self, at: u32) {
        let link = &self.links[at as usize];
        let hello = self.identity(link.published.number, link.published.incarnation);
        let keys = self.config.keys.clone();
        let (timeout_ms, buffers) = (self.config.connect_timeout_ms, self.config.socket_buffer_bytes);
        let dial = Dial::new(hello, keys, link.candidates.clone(), timeout_ms, buffers);
        if let Some(channel) = &mut self.links[at as usize].channel {
            channel.way = Way::Dial(Box::new(dial));
            self.dialling.push(at);
        }
    }

    pub(super) fn stop_dialling(&mut self, at: u32) {
        self.dialling.retain(|d| *d != at);
    }

    /// Takes every dial as far as it goes. Returns whether any got through or was given up.
    pub(super) fn step_dials(&mut self) -> bool {
        let mut moved = false;
        let mut i = 0;
        while let Some(at) = self.dialling.get(i).copied() {
            let dial = match self.links[at as usize].channel.as_mut().map(|c| &mut c.way) {
                Some(Way::Dial(dial)) => dial,
                _ => {
                    self.dialling.remove(i);
                    continue;
                }
            };
            let step = dial.step();
            if let Some((socket, connecting)) = dial.socket() {
                if matches!(step, Dialled::Watch) {
                    if let Err(e) = self.watch.add(socket, Token::Link(at), connecting) {
                        tracing::error!("epoll_ctl failed for a new connection: {e}");
                    }
                } else if !connecting {
                    self.watch.change(socket, Token::Link(at), false);
                }
            }
            match step {
                Dialled::Waiting => i += 1,
                // It may be connected already.
                Dialled::Watch => {}
                Dialled::Welcome(socket, remote, id) => {
                    moved = true;
                    self.dialling.remove(i);
                    self.watch.change(&socket, Token::Link(at), false);
                    self.establish(at, socket, remote, &id, "dialled");
                }
                Dialled::Failed(cause) => {
                    moved = true;
                    self.dialling.remove(i);
                    self.lose(at, cause);
                }
            }
        }
        moved
    }

    /// The greeting is done: frames may flow.
    fn establish(&mut self, at: u32, socket: Socket, remote: SocketAddr, theirs: &Identity, how: &str) {
        let same_host = self.config.host != 0 && self.config.host == theirs.host;
        let congestion = device::tune(&socket, &self.config, same_host);
        let local = socket.local_addr().ok().and_then(|a| a.as_socket()).map(device::plain);
        let Some(local) = local else {
            return self.lose(at, Cause::new(CauseKind::Reset, format!("{remote} closed at once")));
        };
        let agreed = agree(&self.identity(theirs.from, 0), theirs);
        let link = &mut self.links[at as usize];
        link.why = Some(format!(
            "{} {local} -> {remote}, {how}, {}, congestion control {congestion}, no zero-copy; {}",
            if local.is_ipv4() { "tcp4" } else { "tcp6" },
            if same_host { "same host" } else { "another host" },
            self.driver_why,
        ));
        link.watched_for_room = false;
        let channel = link.channel.get_or_insert_with(|| self.spare.make(link.peer));
        channel.way = Way::Up(Box::new(Connection::new(socket, local, remote)));
        channel.matcher.open(agreed, &mut self.done);
        self.activate(at);
    }
}
