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

/// How far the goodbye to one peer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Sends or notes are still to go, or it is only being connected.
    Flushing,
    /// The goodbye is staged.
    Said,
    /// The peer's host has everything, or there is nobody to tell.
    Over,
}

impl TcpTransport {
    /// Lets sends that the peers want finish, says goodbye to all of them, and waits until they have it all; for at
    /// most `linger_ms`. The goodbye is tried in any case.
    pub(super) fn say_goodbye(&mut self, linger_ms: u64) {
        let deadline = Instant::now() + Duration::from_millis(linger_ms);
        let mut open: Vec<(u32, Stage)> =
            (0..self.links.len() as u32).map(|at| (at, Stage::Flushing)).collect();
        let mut late = false;
        loop {
            open.retain_mut(|(at, stage)| {
                *stage = self.goodbye_step(*at, *stage, late);
                *stage != Stage::Over
            });
            let connected: Vec<u32> = open.iter().map(|(at, _)| *at).collect();
            let moved = self.pump(&connected, true) | self.progress();
            if open.is_empty() || late {
                break;
            }
            late = Instant::now() >= deadline;
            if !moved && !late {
                std::thread::sleep(Duration::from_micros(PAUSE_US));
            }
        }
        let unheard = open.len();
        if unheard > 0 && linger_ms > 0 {
            tracing::warn!("{unheard} peers had not taken everything within {linger_ms} ms of leaving");
        }
        self.done.clear();
        let gone = Cause::new(CauseKind::Local, "this side has left");
        for link in &mut self.links {
            if let Some(channel) = link.channel.take() {
                self.past += channel.copies();
            }
            link.gone.get_or_insert_with(|| gone.clone());
        }
        self.active.clear();
        self.dialling.clear();
        self.listeners.clear();
    }

    fn goodbye_step(&mut self, at: u32, stage: Stage, late: bool) -> Stage {
        let link = &mut self.links[at as usize];
        let (None, Some(channel)) = (&link.gone, &mut link.channel) else { return Stage::Over };
        let waiting = channel.has_output() || channel.matcher.has_sends() || !channel.notes.is_empty();
        match &mut channel.way {
            Way::None => Stage::Over,
            Way::Dial(_) if waiting => Stage::Flushing,
            Way::Dial(_) => Stage::Over,
            Way::Up(connection) if stage == Stage::Flushing => {
                let speak = !waiting || late;
                if speak && connection.stage_frame(&Frame::bare(Kind::Bye)) { Stage::Said } else { stage }
            }
            Way::Up(connection) if connection.has_output() => stage,
            Way::Up(connection) => {
                // The end of what we send comes after all of it; closing before the other side has it could cut it
                // short.
                let _ = connection.socket().shutdown(std::net::Shutdown::Write);
                if driver::unacknowledged_bytes(connection.fd()) == 0 { Stage::Over } else { stage }
            }
        }
    }
}
