//! An orderly end: everything sent, a goodbye after it, and the end of the stream after that.
#![forbid(unsafe_code)]

use super::driver;
use super::links::Way;
use super::transport::TcpTransport;
use crate::transport::matching::{Frame, Kind};
use crate::transport::{Cause, CauseKind};
use std::time::{Duration, Instant};

/// Pause between two looks at sockets that have nothing new.
const PAUSE_US: u64 = 200;

impl TcpTransport {
    /// Flushes, says goodbye to all peers, and waits for at most `linger_ms` until they have it all.
    pub(super) fn say_goodbye(&mut self, linger_ms: u64) {
        let deadline = Instant::now() + Duration::from_millis(linger_ms);
        let up: Vec<u32> = (0..self.links.len() as u32)
            .filter(|at| self.links[*at as usize].connection().is_some())
            .collect();
        let mut open: Vec<(u32, bool)> = up.into_iter().map(|at| (at, false)).collect();
        while !open.is_empty() {
            let some: Vec<u32> = open.iter().map(|(at, _)| *at).collect();
            let moved = self.pump(&some, true);
            open.retain_mut(|(at, said)| !self.is_flushed(*at, said));
            if Instant::now() >= deadline {
                break;
            }
            if !moved && !open.is_empty() {
                std::thread::sleep(Duration::from_micros(PAUSE_US));
            }
        }
        if !open.is_empty() {
            tracing::warn!("{} peers had not taken everything within {linger_ms} ms of leaving", open.len());
        }
        self.done.clear();
        let gone = Cause::new(CauseKind::Local, "this side has left");
        for link in &mut self.links {
            link.channel = None;
            link.gone.get_or_insert_with(|| gone.clone());
        }
        self.active.clear();
        self.dialling.clear();
        self.listeners.clear();
    }

    /// One step of saying goodbye to a peer. `said`: the goodbye is staged.
    fn is_flushed(&mut self, at: u32, said: &mut bool) -> bool {
        let Some(channel) = &mut self.links[at as usize].channel else { return true };
        let waiting = channel.has_output();
        let Way::Up(connection) = &mut channel.way else { return true };
        if !*said {
            *said = !waiting && connection.stage_frame(&Frame::bare(Kind::Bye));
            return false;
        }
        if connection.has_output() {
            return false;
        }
        // The end of what we send comes after all of it; closing before the other side has it could cut it short.
        let _ = connection.socket().shutdown(std::net::Shutdown::Write);
        driver::unacknowledged_bytes(connection.fd()) == 0
    }
}
