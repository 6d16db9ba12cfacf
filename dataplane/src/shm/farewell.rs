//! An orderly end: everything sent and read, and a goodbye after it.
#![forbid(unsafe_code)]

use super::links::Way;
use super::transport::ShmTransport;
use crate::transport::{Cause, CauseKind};
use std::time::{Duration, Instant};

/// Pause between two looks at queues that have nothing new.
const PAUSE_US: u64 = 200;

/// How far the goodbye to one peer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Sends or notes are still to go, or it is only being connected.
    Flushing,
    /// The goodbye is in the queue, where the peer finds it whenever it looks.
    Said,
}

impl ShmTransport {
    /// Lets sends that the peers want finish and says goodbye to all of them; for at most `linger_ms`. The goodbye is
    /// tried in any case.
    pub(super) fn say_goodbye(&mut self, linger_ms: u64) {
        let deadline = Instant::now() + Duration::from_millis(linger_ms);
        let mut open: Vec<u32> = (0..self.links.len() as u32).collect();
        let mut late = false;
        loop {
            open.retain(|at| self.goodbye_step(*at, late) == Step::Flushing);
            let moved = self.progress();
            if open.is_empty() || late {
                break;
            }
            late = Instant::now() >= deadline;
            if !moved && !late {
                std::thread::sleep(Duration::from_micros(PAUSE_US));
            }
        }
        if !open.is_empty() && linger_ms > 0 {
            tracing::warn!("{} peers had not taken everything within {linger_ms} ms of leaving", open.len());
        }
        let gone = Cause::new(CauseKind::Local, "this side has left");
        for link in &mut self.links {
            if let Some(mut channel) = link.channel.take() {
                if let Way::Up(connection) = &mut channel.way {
                    connection.close();
                }
                self.past += channel.copies();
            }
            link.gone.get_or_insert_with(|| gone.clone());
        }
        self.done.clear();
        self.live.clear();
        self.dialling.clear();
        self.door.clear();
        self.listener = None;
    }

    fn goodbye_step(&mut self, at: u32, late: bool) -> Step {
        let link = &mut self.links[at as usize];
        let (None, Some(channel)) = (&link.gone, &mut link.channel) else { return Step::Said };
        let waiting = channel.has_output() || channel.matcher.has_sends();
        match &mut channel.way {
            Way::None => Step::Said,
            Way::Dial(_) if waiting => Step::Flushing,
            Way::Dial(_) => Step::Said,
            Way::Up(_) if waiting && !late => Step::Flushing,
            Way::Up(connection) => {
                if connection.say_goodbye() {
                    Step::Said
                } else {
                    Step::Flushing
                }
            }
        }
    }
}
