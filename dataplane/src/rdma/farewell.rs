//! An orderly end: everything sent, a goodbye after it.
#![forbid(unsafe_code)]

use super::links::Stage;
use super::transport::RdmaTransport;
use crate::transport::{Cause, CauseKind};
use std::time::{Duration, Instant};

/// Pause between two looks at queues that have nothing new.
const PAUSE_US: u64 = 200;

/// How far the goodbye to one peer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Sends or notes are still to go, or it is only being connected.
    Flushing,
    /// The goodbye is posted.
    Said,
    /// The peer's device has everything, or there is nobody to tell.
    Over,
}

impl RdmaTransport {
    /// Lets sends that the peers want finish, says goodbye to all of them, and waits until their devices have it all; for
    /// at most `linger_ms`. The goodbye is tried in any case.
    pub(super) fn say_goodbye(&mut self, linger_ms: u64) {
        let deadline = Instant::now() + Duration::from_millis(linger_ms);
        let mut open: Vec<(u32, Step)> =
            (0..self.links.len() as u32).map(|at| (at, Step::Flushing)).collect();
        let mut late = false;
        loop {
            open.retain_mut(|(at, step)| {
                *step = self.goodbye_step(*at, *step, late);
                *step != Step::Over
            });
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
        for at in 0..self.links.len() as u32 {
            self.disconnect(at);
            let link = &mut self.links[at as usize];
            if let Some(mut channel) = link.channel.take() {
                channel.matcher.fail(&gone, &mut self.done);
                self.past += channel.copies();
            }
            link.gone.get_or_insert_with(|| gone.clone());
        }
        self.let_go();
        self.done.clear();
        self.meetings.clear();
        self.dirty.clear();
    }

    fn goodbye_step(&mut self, at: u32, step: Step, late: bool) -> Step {
        let link = &mut self.links[at as usize];
        let (None, Some(channel)) = (&link.gone, &mut link.channel) else { return Step::Over };
        let sends = channel.matcher.has_sends() || channel.matcher.has_output();
        let waiting = sends || !channel.notes.is_empty();
        match &mut channel.stage {
            Stage::None => Step::Over,
            Stage::Meeting(..) if waiting => Step::Flushing,
            Stage::Meeting(..) => Step::Over,
            Stage::Up(connection) if step == Step::Flushing => {
                if waiting && !late {
                    return step;
                }
                match connection.say_goodbye() {
                    Ok(true) => Step::Said,
                    Ok(false) => step,
                    Err(_) => Step::Over,
                }
            }
            Stage::Up(connection) if connection.is_goodbye_heard() => Step::Over,
            Stage::Up(_) => step,
        }
    }
}
