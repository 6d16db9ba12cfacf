//! What a rank tells of itself: to the coordinator when somebody asks, on its own windows, and to a file when a
//! communicator dies.

mod dump;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use ringway_collectives::engine::{Call, Ending, Flight, PeerView, Record, Reporter, WaitView, WriteDown};
use ringway_proto::ringway::v1 as wire;

pub use self::dump::{DumpError, Dumps, FILE_PREFIX, PROCESS_LIMIT};
use crate::core::status::{prometheus, text};
use crate::launch::Launch;
use crate::rpc::client::{Agent, Process};
use crate::settings::Settings;
use crate::window::{Page, WindowConfig};

/// Peers that a report without flight record tells of, those with the most bytes.
const PEERS_TOLD: usize = 64;

/// Which rank reports.
#[derive(Clone, Debug)]
pub struct Me {
    rank: u32,
    local_rank: u32,
    world_size: u32,
    job: String,
    process: Process,
}

impl Me {
    /// The rank that a launch makes of a process.
    #[must_use]
    pub fn new(launch: &Launch, process: Process) -> Self {
        Me {
            rank: launch.rank.0,
            local_rank: launch.local_rank.map_or(launch.rank.0, |local| local.0),
            world_size: launch.world_size,
            job: launch.job_id.clone(),
            process,
        }
    }

    /// The report of what an engine shows. `whole`: with the flight record, and all peers.
    #[must_use]
    pub fn report(&self, flight: &Flight, whole: bool, why: &str) -> wire::RankReport {
        let epoch = flight.epoch.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (peers, more_peers) = peers(&flight.peers, whole);
        let group = |g: &ringway_collectives::engine::GroupView| wire::GroupReport {
            id: g.id,
            rank: g.rank,
            size: g.size,
            next_call: g.next_call,
            dead: g.dead.clone().unwrap_or_default(),
        };
        wire::RankReport {
            rank: self.rank,
            world_size: self.world_size,
            job: self.job.clone(),
            host: self.process.host.name().to_owned(),
            pid: self.process.pid,
            incarnation: crate::rpc::life(self.process.incarnation),
            epoch_unix_us: u64::try_from(epoch.as_micros()).unwrap_or(u64::MAX),
            now_ns: nanos(flight.now),
            why: why.to_owned(),
            transport: flight.transport.to_owned(),
            groups: flight.groups.iter().map(group).collect(),
            waits: flight.waits.iter().map(|w| wait(w, flight.now)).collect(),
            last: flight.last.as_ref().map(record),
            peers,
            more_peers,
            totals: totals(flight),
            calls: if whole { flight.calls.iter().map(record).collect() } else { Vec::new() },
            happenings: if whole { happenings(flight) } else { Vec::new() },
            forgotten_calls: flight.forgotten_calls,
            task: Some(crate::rpc::task_name(&self.process.task)),
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn operation(call: &Call) -> String {
    call.collective.map_or_else(|| "message".to_owned(), |collective| collective.to_string())
}

fn record(record: &Record) -> wire::CallRecord {
    let began = wire::CallRecord {
        group: record.group,
        bytes: record.bytes,
        began_ns: nanos(record.began),
        first_byte_ns: record.first_byte.map(nanos),
        ended_ns: record.ended.map(|(at, _)| nanos(at)),
        outcome: match record.ended {
            None => "open",
            Some((_, Ending::Done)) => "done",
            Some((_, Ending::Failed)) => "failed",
        }
        .to_owned(),
        ..wire::CallRecord::default()
    };
    called(&record.call, began)
}

/// A record with what was called.
fn called(call: &Call, record: wire::CallRecord) -> wire::CallRecord {
    wire::CallRecord {
        number: call.seq,
        operation: operation(call),
        r#type: call.dtype.map_or_else(String::new, |dtype| dtype.to_string()),
        reduction: call.op.map_or_else(String::new, |op| op.to_string()),
        count: call.count,
        root: call.root,
        algorithm: call.algorithm.map_or_else(String::new, |algorithm| algorithm.to_string()),
        ..record
    }
}

fn wait(wait: &WaitView, now: Duration) -> wire::Wait {
    let call = wire::CallRecord {
        group: wait.group,
        began_ns: nanos(wait.began.unwrap_or(now)),
        outcome: "open".to_owned(),
        ..wire::CallRecord::default()
    };
    wire::Wait {
        call: Some(called(&wait.call, call)),
        still_since_ns: nanos(wait.still_since),
        queued: wait.queued,
        // A peer's number is its rank in the world.
        on: wait.on.iter().map(|on| wire::Awaited { rank: on.peer.0, receives: on.receives }).collect(),
    }
}

/// The peers to tell of, by rank, and how many are left out.
fn peers(all: &[PeerView], whole: bool) -> (Vec<wire::PeerReport>, u32) {
    let mut told: Vec<&PeerView> = all.iter().collect();
    if !whole && told.len() > PEERS_TOLD {
        told.sort_by_key(|p| std::cmp::Reverse(p.exchanged.sent_bytes + p.exchanged.received_bytes));
        told.truncate(PEERS_TOLD);
        told.sort_by_key(|p| p.peer);
    }
    let more = (all.len() - told.len()) as u32;
    let peer = |p: &PeerView| wire::PeerReport {
        rank: p.peer.0,
        sends: p.exchanged.sends,
        sent_bytes: p.exchanged.sent_bytes,
        receives: p.exchanged.receives,
        received_bytes: p.exchanged.received_bytes,
        route: p.route.clone().unwrap_or_default(),
    };
    (told.into_iter().map(peer).collect(), more)
}

fn totals(flight: &Flight) -> Vec<wire::TotalReport> {
    let total = |(kind, total): &(Option<_>, ringway_collectives::engine::Total)| wire::TotalReport {
        operation: kind.map_or_else(
            || "message".to_owned(),
            |kind: ringway_collectives::schedule::Collective| kind.to_string(),
        ),
        done: total.done,
        failed: total.failed,
        bytes: total.bytes,
        time_ns: nanos(total.time),
    };
    flight.totals.iter().map(total).collect()
}

fn happenings(flight: &Flight) -> Vec<wire::Happening> {
    let happening = |h: &ringway_collectives::engine::Happening| wire::Happening {
        at_ns: nanos(h.at),
        what: h.what.word().to_owned(),
        group: h.group,
        rank: h.peer.map(|peer| peer.0),
        detail: h.detail.clone(),
    };
    flight.happenings.iter().map(happening).collect()
}

/// The engine's hook that writes the flight record to a file, where the settings name a folder.
pub(super) fn write_down(settings: &Settings, me: Me) -> Option<WriteDown> {
    let dumps = Dumps::new(settings.status.dump_dir.clone()?, settings.status.dump_files, PROCESS_LIMIT);
    Some(WriteDown(Arc::new(move |flight| {
        let why = flight.groups.iter().find_map(|group| group.dead.as_deref());
        let report = me.report(flight, true, why.unwrap_or("a communicator died and was closed"));
        match dumps.write(report) {
            Ok(path) => tracing::info!("the flight record of rank {} is in {}", me.rank, path.display()),
            Err(error) => tracing::warn!("no flight record of rank {}: {error}", me.rank),
        }
    })))
}

/// Has the flight record written down when the control plane tells of a loss, also where no call is under way that would
/// fail of it. One thread at a time does it, as that takes as long as writing a file takes.
pub(super) fn write_down_on_loss(agent: &Agent, eye: Eye) {
    let busy = Arc::new(AtomicBool::new(false));
    agent.on_loss(move |_| {
        if busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let (done, reporter) = (busy.clone(), eye.engine());
        let write = move || {
            // Before: a loss that comes meanwhile is seen, or brings another thread.
            done.store(false, Ordering::Release);
            reporter.write_down();
        };
        if let Err(error) = std::thread::Builder::new().name("ringway-dump".to_owned()).spawn(write) {
            busy.store(false, Ordering::Release);
            tracing::warn!(
                "no thread to write the flight record on ({error}): the next failed call writes it"
            );
        }
    });
}

/// The engine that is looked at: that of the group which this process is in, which changes in elastic jobs.
#[derive(Clone, Debug)]
pub(super) struct Eye(Arc<Mutex<Reporter>>);

impl Eye {
    pub(super) fn new(engine: Reporter) -> Eye {
        Eye(Arc::new(Mutex::new(engine)))
    }

    /// Looks at another engine from now on.
    pub(super) fn turn(&self, engine: Reporter) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = engine;
    }

    fn engine(&self) -> Reporter {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Answers surveys, and opens this rank's windows.
pub(super) fn show(agent: &Agent, me: &Me, eye: &Eye, settings: &Settings) {
    let (of, eyes) = (me.clone(), eye.clone());
    agent.on_survey(move |whole| Some(of.report(&eyes.engine().flight(whole)?, whole, "asked")));
    let page = |render: fn(&wire::RankReport) -> String| -> Page {
        let (of, eyes) = (me.clone(), eye.clone());
        Arc::new(move || {
            let (of, engine) = (of.clone(), eyes.engine());
            Box::pin(async move {
                // For a moment it takes the engine's lock. With all peers, whose bytes are summed up here.
                let made = tokio::task::spawn_blocking(move || {
                    engine.flight(false).map(|flight| render(&of.report(&flight, true, "asked")))
                });
                made.await.ok().flatten().unwrap_or_default()
            })
        })
    };
    let config = WindowConfig::new(settings, format!("rank{}", me.rank), &me.job, Some(me.local_rank));
    agent.open_windows(config, page(text::rank), page(prometheus::rank));
}
