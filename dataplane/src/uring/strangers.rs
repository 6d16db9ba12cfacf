//! Making connections: accepting and checking who comes, dialling and taking up what was agreed.
#![forbid(unsafe_code)]

use super::connection::Connection;
use super::device;
use super::handshake::{Dial, Dialled, Said, Stranger, agree, greet, same_token};
use super::links::Way;
use super::transport::TcpTransport;
use super::watch::Token;
use super::wire::{Greeting, Identity, Refusal};
use super::{GREETING_TIMEOUT_MS, MAX_STRANGERS};
use crate::transport::matching::UNIT_BYTES;
use crate::transport::{Cause, CauseKind, Complaints};
use socket2::Socket;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Connections accepted in one poll.
const ACCEPTS_PER_POLL: usize = 64;
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

    fn complain(&mut self, from: SocketAddr, why: &str) {
        if self.complaints.due(from.ip(), Instant::now()) {
            tracing::warn!("a connection from {from} was turned away: {why}");
        }
    }
}

impl TcpTransport {
    fn identity(&self, to: u32, to_incarnation: u64, nonce: u64) -> Identity {
        let config = &self.config;
        Identity {
            token: config.token,
            from: config.me,
            to,
            from_incarnation: config.incarnation,
            to_incarnation,
            host: config.host,
            nonce,
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
        if self.door.strangers.len() >= MAX_STRANGERS {
            let oldest = self.door.strangers.remove(0);
            self.door.complain(oldest.remote, "too many connections that do not greet");
        }
        let number = self.door.next;
        self.door.next = number.wrapping_add(1);
        if let Err(e) = socket
            .set_nonblocking(true)
            .and_then(|()| self.watch.add(&socket, Token::Stranger(number), false))
        {
            return self.door.complain(remote, &e.to_string());
        }
        self.door.strangers.push(Stranger::new(socket, remote, number, GREETING_TIMEOUT_MS));
        self.hear(number);
    }

    /// Reads what a stranger has said.
    pub(super) fn hear(&mut self, number: u32) {
        let Some(at) = self.door.strangers.iter().position(|s| s.number == number) else { return };
        match self.door.strangers[at].listen() {
            Said::Nothing => {}
            Said::Hello(id) => {
                let stranger = self.door.strangers.remove(at);
                if let Err(why) = self.answer(stranger, &id) {
                    tracing::debug!("a greeting was not answered: {why}");
                }
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
    fn judge(&self, id: &Identity) -> Result<u32, Refusal> {
        if !same_token(&id.token, &self.config.token) {
            return Err(Refusal::Token);
        }
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

    fn answer(&mut self, stranger: Stranger, id: &Identity) -> Result<(), String> {
        let Stranger { socket, remote, .. } = stranger;
        let at = match self.judge(id) {
            Ok(at) => at,
            Err(why) => {
                // These come of both sides dialling at once; the peer's life has been checked by then.
                if !matches!(why, Refusal::NotYet | Refusal::UseMine | Refusal::Duplicate) {
                    self.door.complain(remote, &format!("as peer {}, it was refused ({why:?})", id.from));
                }
                return greet(&socket, &Greeting::Refuse(Ok(why)));
            }
        };
        greet(&socket, &Greeting::Welcome(self.identity(id.from, id.from_incarnation, id.nonce)))?;
        self.stop_dialling(at);
        self.watch.change(&socket, Token::Link(at), false);
        self.establish(at, socket, remote, id, "accepted");
        Ok(())
    }

    /// Begins to dial a peer.
    pub(super) fn dial(&mut self, at: u32) {
        self.nonces = self.nonces.wrapping_add(1);
        let link = &self.links[at as usize];
        let hello = self.identity(link.published.number, link.published.incarnation, self.nonces);
        let (timeout_ms, buffers) = (self.config.connect_timeout_ms, self.config.socket_buffer_bytes);
        let dial = Dial::new(hello, link.candidates.clone(), timeout_ms, buffers);
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
        let agreed = agree(&self.identity(theirs.from, 0, 0), theirs);
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
