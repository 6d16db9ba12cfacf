//! What an engine knows at one moment: the flight recorder's content, what is under way, and for whom it waits.
//!
//! Looking takes the engine's lock for as long as copying takes, from any thread; calls under way go on around it.

#![forbid(unsafe_code)]

use super::core::Core;
use super::fingerprint::Call;
use super::recorder::{Happening, Record, Total};
use super::run::{Phase, Run};
use super::traffic::Exchanged;
use crate::schedule::Collective;
use ringway_dataplane::transport::Peer;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Ranks that one call is shown to wait for, at most.
pub const MAX_AWAITED: usize = 16;

/// What [`WriteDown`] calls.
pub type Keep = dyn Fn(&Flight) + Send + Sync;

/// Given the flight record once after a communicator has died, before the first call that fails of it returns, or when
/// [`Reporter::write_down`](super::Reporter::write_down) is called. The engine is not locked meanwhile: it may take as long as writing a file takes.
#[derive(Clone)]
pub struct WriteDown(pub Arc<Keep>);

impl fmt::Debug for WriteDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteDown")
    }
}

/// What an engine knows. Durations count from `epoch`.
#[derive(Clone, Debug)]
pub struct Flight {
    /// The time of day at which the engine was made.
    pub epoch: SystemTime,
    /// When this was looked at.
    pub now: Duration,
    /// Name of the transport, or of the fabric where peers are reached by several.
    pub transport: &'static str,
    /// The communicators of the endpoint.
    pub groups: Vec<GroupView>,
    /// The last calls, oldest first, with those under way. Empty in [`Flight`]s that were made without.
    pub calls: Vec<Record>,
    /// Earlier calls that are no longer kept.
    pub forgotten_calls: u64,
    /// The last call that ended.
    pub last: Option<Record>,
    /// What befell the endpoint, oldest first.
    pub happenings: Vec<Happening>,
    /// Totals of the kinds of calls that were made; `None` stands for messages.
    pub totals: Vec<(Option<Collective>, Total)>,
    /// Peers that anything was exchanged with, by number.
    pub peers: Vec<PeerView>,
    /// The calls that are under way, and for whom they wait.
    pub waits: Vec<WaitView>,
}

/// A communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its id on the wire.
    pub id: u32,
    /// This process's rank in it.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
    /// Collective calls that were made on it, modulo 2^32: the number of the next.
    pub next_call: u32,
    /// Why it is dead, if it is.
    pub dead: Option<String>,
}

/// A peer that was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerView {
    /// The endpoint's number of it.
    pub peer: Peer,
    /// What was exchanged.
    pub exchanged: Exchanged,
    /// How it is reached, and why so.
    pub route: Option<String>,
}

/// A call under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitView {
    /// Its communicator.
    pub group: u32,
    /// The call.
    pub call: Call,
    /// When it began; `None` where so many began after it that it is forgotten.
    pub began: Option<Duration>,
    /// Since when nothing of it has moved, to a tenth of a second or so.
    pub still_since: Duration,
    /// Whether it waits for earlier calls, and has not begun to move.
    pub queued: bool,
    /// Ranks that it waits for messages from, or to take messages; the first [`MAX_AWAITED`].
    pub on: Vec<Awaited>,
}

/// A rank that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// Its rank in the communicator.
    pub rank: u32,
    /// The endpoint's number of it.
    pub peer: Peer,
    /// Whether a message is to come from it; otherwise it is to take one.
    pub receives: bool,
}

impl Core {
    /// What is known now; with the calls that are over, if `calls` is set.
    pub(super) fn flight(&mut self, calls: bool) -> Flight {
        let waits = self.waits();
        let groups = self.groups.iter().flatten().map(|g| GroupView {
            id: g.info.id,
            rank: g.info.my_rank,
            size: g.size(),
            next_call: g.numbers.seq,
            dead: g.dead.as_ref().map(ToString::to_string),
        });
        let route = |peer| self.transport.why(peer);
        let peers = self.traffic.all().into_iter();
        Flight {
            epoch: self.recorder.wall(),
            now: self.recorder.since_epoch(Instant::now()),
            transport: self.caps.name,
            groups: groups.collect(),
            calls: if calls { self.recorder.records() } else { Vec::new() },
            forgotten_calls: self.recorder.forgotten(),
            last: self.recorder.last_ended(),
            happenings: self.recorder.happenings(),
            totals: self.recorder.totals(),
            peers: peers.map(|(peer, exchanged)| PeerView { peer, exchanged, route: route(peer) }).collect(),
            waits,
        }
    }

    fn waits(&mut self) -> Vec<WaitView> {
        let now = Instant::now();
        let open = |run: &&Run| matches!(run.phase, Phase::Queued | Phase::Active | Phase::Failing);
        let mut waits = Vec::new();
        for run in self.runs.iter().filter(open) {
            let Some(group) = self.groups[run.group].as_ref() else { continue };
            let began = self.recorder.began(run.record);
            let still = match run.still_since {
                Some(since) if !run.moved => Some(self.recorder.since_epoch(since)),
                _ if run.phase == Phase::Queued => began,
                _ => None,
            };
            let mut on: Vec<Awaited> = Vec::new();
            for step in run.awaited() {
                let rank = step.peer();
                let awaited = Awaited { rank, peer: group.peers[rank as usize], receives: !step.is_send() };
                if on.len() < MAX_AWAITED && !on.contains(&awaited) {
                    on.push(awaited);
                }
            }
            waits.push(WaitView {
                group: group.info.id,
                call: run.call,
                began,
                still_since: still.unwrap_or_else(|| self.recorder.since_epoch(now)),
                queued: run.phase == Phase::Queued,
                on,
            });
        }
        waits.sort_by_key(|wait| (wait.began, wait.group, wait.call.seq));
        waits
    }
}
