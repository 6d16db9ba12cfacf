//! The data plane of a task: a process that sends and receives tensors by key, and is not a rank of a communicator.
//!
//! A task says where it is reached in a [`DataPlaneTask`], which two tasks exchange beside their first RecvTensor. Each
//! numbers the others as they come. Tasks of one token (`RINGWAY_TOKEN`, or none on both sides) reach each other, and prove
//! themselves with what each has said of itself there (`proof`).
//!
//! - **D1** A task has one number here for its name. Another incarnation under that name is its next life: whatever waits
//!   for the earlier one fails.

use super::pinning::Binding;
use super::proof::{job_of, pair_key};
use super::transports::{Identity, Opened, TransportsError, open};
use crate::random::{self, incarnation};
use crate::settings::Settings;
use prost::Message;
use ringway_dataplane::fabric::SpinPolicy;
use ringway_dataplane::memory::Pool;
use ringway_dataplane::rendezvous::{OnLoss, Options, PeerInfo, Rendezvous, Source, StartError, Traffic};
use ringway_dataplane::transport::authentication::{Key, SECRET_BYTES};
use ringway_dataplane::transport::{Address, Cause, CauseKind, ConnectError, Keyring, Peer};
use ringway_proto::ringway::v1::DataPlaneTask;
use ringway_topology::host::{DiscoverError, host_id};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Type of the Any that holds a [`DataPlaneTask`].
pub const TASK_TYPE_URL: &str = "type.googleapis.com/ringway.v1.DataPlaneTask";
/// Most tasks that one knows at a time.
pub const MAX_TASKS: usize = 1 << 14;
/// What the keys of tasks are for.
const PURPOSE: &str = "tensors between tasks";

/// A task has no data plane.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No transport could be opened.
    #[error("{name}: no way to move tensors: {source}")]
    Transports {
        /// The task.
        name: String,
        /// What happened.
        source: TransportsError,
    },
    /// This host has no usable name.
    #[error("{name}: {source}")]
    Host {
        /// The task.
        name: String,
        /// What is wrong.
        source: DiscoverError,
    },
    /// The system has no room for it.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The kernel gives no random bytes.
    #[error("no secret could be drawn: {0}")]
    Random(std::io::Error),
}

/// Another task is not reached by the data plane; its tensors travel by RecvTensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntroduceError {
    /// It has another token.
    #[error(
        "{name} on {host} belongs to another job: set the same RINGWAY_TOKEN, or none, on both to move tensors \
         between them by the data plane"
    )]
    OtherJob {
        /// The task.
        name: String,
        /// Its host.
        host: String,
    },
    /// What it says of itself is incomplete.
    #[error("a task that does not say {what} has no data plane")]
    Incomplete {
        /// What is missing.
        what: &'static str,
    },
    /// [`MAX_TASKS`] are known.
    #[error("{name} on {host}: {MAX_TASKS} tasks are known already: forget some")]
    TooMany {
        /// The task.
        name: String,
        /// Its host.
        host: String,
    },
    /// No transport reaches it.
    #[error("{name} on {host}: {source}")]
    Connect {
        /// The task.
        name: String,
        /// Its host.
        host: String,
        /// Why not.
        source: ConnectError,
    },
}

#[derive(Debug, Default)]
struct Known {
    by_name: HashMap<String, Peer>,
    next: u32,
    /// The lives of the tasks that are known, by their numbers.
    lives: HashMap<Peer, u64>,
    /// Numbers of forgotten tasks.
    free: Vec<Peer>,
}

/// How a task's data plane is made.
#[derive(Clone)]
pub struct TaskOptions {
    /// Its name, e.g. `/job:worker/replica:0/task:1`: what errors of others call it. Two tasks of a job have two names.
    pub name: String,
    /// Whether all tasks are known to be on this host, so that its loopback interface will do.
    pub all_local: bool,
    /// Blocks for received tensors. Those sent out of blocks of one pool are registered with devices once.
    pub pool: Pool,
    /// Called once for every task that is lost.
    pub on_loss: Option<OnLoss>,
    /// What the tasks have in common already, where they are members of a group: then they need not tell each other a
    /// secret.
    pub group: Option<Key>,
}

/// The data plane of this task. Dereferences to its [`Rendezvous`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TaskRendezvous {
    rendezvous: Rendezvous,
    settings: Arc<Settings>,
    keys: Keyring,
    group: Option<Key>,
    me: Arc<DataPlaneTask>,
    known: Arc<Mutex<Known>>,
}

impl TaskRendezvous {
    /// Opens the transports that the settings want, and starts.
    ///
    /// # Errors
    /// [`OpenError`]; the message says what to do.
    pub fn open(settings: &Settings, options: TaskOptions) -> Result<TaskRendezvous, OpenError> {
        let TaskOptions { name, all_local, pool, on_loss, group } = options;
        let secret: [u8; SECRET_BYTES] = random::bytes().map_err(OpenError::Random)?;
        let keys = Keyring::default();
        let life = incarnation();
        // Any number that no other process has will do; both halves of a random one are used up.
        let number = (life.0 >> 32) as u32 ^ life.0 as u32;
        let failed = |source| OpenError::Transports { name: name.clone(), source };
        let me = Identity { number, keys: keys.clone(), life };
        let transport = match open(&me, all_local, &Binding::default(), settings).map_err(failed)? {
            Opened::Endpoint(endpoint) => endpoint,
            Opened::Unusable(unusable, _) => return Err(failed(unusable.into())),
        };
        let host = host_id().map_err(|source| OpenError::Host { name: name.clone(), source })?;
        let who =
            PeerInfo { name, host: host.name().to_owned(), pid: std::process::id(), incarnation: life.0 };
        let spin = settings.spin.map_or(SpinPolicy::Auto, super::world::micros).here(1);
        let rendezvous =
            Rendezvous::start(transport, who.clone(), Options { pool, spin, on_loss, ..Options::default() })?;
        let me = DataPlaneTask {
            name: who.name,
            host: who.host,
            pid: who.pid,
            incarnation: who.incarnation,
            address: rendezvous.address().0,
            job: job_of(PURPOSE, settings),
            secret: if group.is_some() { Vec::new() } else { secret.to_vec() },
        };
        let settings = Arc::new(settings.clone());
        Ok(TaskRendezvous { rendezvous, settings, keys, group, me: Arc::new(me), known: Arc::default() })
    }

    /// What other tasks need to reach this one.
    #[must_use]
    pub fn task(&self) -> &DataPlaneTask {
        &self.me
    }

    /// The same, as the Any that travels in `transport_options`.
    #[must_use]
    pub fn to_any(&self) -> prost_types::Any {
        prost_types::Any { type_url: TASK_TYPE_URL.to_owned(), value: self.me.encode_to_vec() }
    }

    /// The same, as bytes for [`introduce_bytes`](Self::introduce_bytes).
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.me.encode_to_vec()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Nothing that could panic changes what is known.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets to know another task, which must get to know this one as well, and says where its values come from: with
    /// [`Source::Local`], the task is this one. Doing it again changes nothing; another life under the same name replaces the
    /// earlier one (D1).
    ///
    /// # Errors
    /// [`IntroduceError`] when the two have no data plane between them.
    pub fn introduce(&self, task: &DataPlaneTask) -> Result<Source, IntroduceError> {
        let DataPlaneTask { name, host, pid, incarnation, address, job, secret } = task.clone();
        if name.is_empty() {
            return Err(IntroduceError::Incomplete { what: "its name" });
        }
        if address.is_empty() {
            return Err(IntroduceError::Incomplete { what: "where it is reached" });
        }
        if job != self.me.job {
            return Err(IntroduceError::OtherJob { name, host });
        }
        if (incarnation, &address) == (self.me.incarnation, &self.me.address) {
            return Ok(Source::Local);
        }
        let key = match &self.group {
            Some(group) => Some(group.bound_to(&[PURPOSE.as_bytes()])),
            None => pair_key(&self.me.secret, &secret, PURPOSE, &self.settings),
        };
        let key = key.ok_or(IntroduceError::Incomplete { what: "its secret" })?;
        // Held meanwhile, so that two lives of a task do not cross.
        let mut known = self.known();
        let (peer, new) = match known.by_name.get(&name) {
            Some(peer) => (*peer, false),
            None if known.by_name.len() >= MAX_TASKS => return Err(IntroduceError::TooMany { name, host }),
            None => (known.free.last().copied().unwrap_or(Peer(known.next)), true),
        };
        let who = PeerInfo { name: name.clone(), host: host.clone(), pid, incarnation };
        self.keys.admit(incarnation, key);
        if let Err(source) = self.rendezvous.connect(peer, who, &Address(address)) {
            if known.lives.get(&peer) != Some(&incarnation) {
                self.keys.dismiss(incarnation);
            }
            return Err(IntroduceError::Connect { name, host, source });
        }
        if let Some(before) = known.lives.insert(peer, incarnation).filter(|before| *before != incarnation) {
            self.keys.dismiss(before);
        }
        if new {
            if known.free.pop().is_none() {
                known.next += 1;
            }
            known.by_name.insert(name, peer);
        }
        Ok(Source::Peer(peer))
    }

    /// As [`Self::introduce`], for the Any that another task has sent. `None`: it holds something else, or nothing that can
    /// be read; then the task is not one of ours.
    ///
    /// # Errors
    /// As [`Self::introduce`].
    pub fn introduce_any(&self, any: &prost_types::Any) -> Option<Result<Source, IntroduceError>> {
        let ours = any.type_url == TASK_TYPE_URL;
        let task = ours.then(|| DataPlaneTask::decode(any.value.as_slice()))?.ok()?;
        Some(self.introduce(&task))
    }

    /// As [`Self::introduce`], for what another task's [`to_bytes`](Self::to_bytes) gave.
    ///
    /// # Errors
    /// As [`Self::introduce`].
    pub fn introduce_bytes(&self, bytes: &[u8]) -> Result<Source, IntroduceError> {
        let task = DataPlaneTask::decode(bytes);
        self.introduce(&task.map_err(|_| IntroduceError::Incomplete { what: "who it is" })?)
    }

    /// Where the values of a task that was introduced come from.
    #[must_use]
    pub fn source(&self, name: &str) -> Option<Source> {
        if name == self.me.name {
            return Some(Source::Local);
        }
        self.known().by_name.get(name).copied().map(Source::Peer)
    }

    /// Forgets a task by its name: whatever waits for it fails.
    pub fn forget_task(&self, name: &str) {
        let mut known = self.known();
        if let Some(peer) = known.by_name.remove(name) {
            if let Some(life) = known.lives.remove(&peer) {
                self.keys.dismiss(life);
            }
            known.free.push(peer);
            self.rendezvous.forget(peer);
        }
    }

    /// Declares a task lost that the control plane has found to be, in its words.
    pub fn report_lost_task(&self, name: &str, evidence: &str) {
        if let Some(Source::Peer(peer)) = self.source(name) {
            self.rendezvous.report_loss(peer, Cause::new(CauseKind::Reported, evidence));
        }
    }

    /// What went over the data plane to and from each task, by its name.
    #[must_use]
    pub fn traffic_by_task(&self) -> Vec<(String, Traffic)> {
        let traffic: HashMap<Peer, Traffic> = self.rendezvous.traffic().into_iter().collect();
        let known = self.known();
        let mut all: Vec<(String, Traffic)> = known
            .by_name
            .iter()
            .map(|(name, peer)| (name.clone(), traffic.get(peer).copied().unwrap_or_default()))
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

impl Deref for TaskRendezvous {
    type Target = Rendezvous;

    fn deref(&self) -> &Rendezvous {
        &self.rendezvous
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_dataplane::memory::SharedBytes;
    use ringway_dataplane::rendezvous::{self, Meta, RendezvousError, StepId, Value};
    use std::time::Duration;

    const FAR: Duration = Duration::from_secs(60);

    fn task(name: &str, pairs: &[(&str, &str)]) -> TaskRendezvous {
        let settings = Settings::from_pairs(pairs.iter().copied()).unwrap();
        let (name, pool) = (name.to_owned(), Pool::default());
        TaskRendezvous::open(
            &settings,
            TaskOptions { name, all_local: true, pool, on_loss: None, group: None },
        )
        .unwrap()
    }

    fn key(name: &str) -> rendezvous::Key {
        rendezvous::Key::new(name).unwrap()
    }

    #[test]
    fn tasks_find_each_other_by_what_they_say_of_themselves() {
        let (ps, worker) = (task("/job:ps/task:0", &[]), task("/job:worker/task:0", &[]));
        assert_eq!(ps.introduce(ps.task()), Ok(Source::Local));
        let from_ps = worker.introduce_any(&ps.to_any()).unwrap().unwrap();
        assert_eq!(worker.introduce(ps.task()), Ok(from_ps));
        ps.introduce(worker.task()).unwrap();
        let payload = SharedBytes::copy_of(&[3; 100_000], ps.pool()).unwrap();
        ps.send(StepId(1), &key("w"), Value::new(Meta::default(), payload)).unwrap();
        let got =
            worker.recv_wait(StepId(1), &key("w"), worker.source("/job:ps/task:0").unwrap(), FAR).unwrap();
        assert_eq!(*got.payload, [3; 100_000]);
        let traffic = worker.traffic_by_task();
        assert_eq!((traffic[0].0.as_str(), traffic[0].1.bytes_received), ("/job:ps/task:0", 100_000));

        // D1: the next life under the same name; what waits for the earlier one fails.
        let waits = worker.receive(StepId(2), &key("w"), from_ps);
        let again = task("/job:ps/task:0", &[]);
        again.introduce(worker.task()).unwrap();
        assert_eq!(worker.introduce(again.task()), Ok(from_ps));
        let error = waits.wait(FAR).unwrap_err();
        assert!(matches!(error, RendezvousError::Lost { .. }), "{error}");
        again.send(StepId(2), &key("w"), Value::default()).unwrap();
        assert!(worker.recv_wait(StepId(2), &key("w"), from_ps, FAR).is_ok());

        worker.report_lost_task("/job:ps/task:0", "missed 3 heartbeats");
        let error = worker.recv_wait(StepId(3), &key("w"), from_ps, FAR).unwrap_err();
        assert!(error.to_string().ends_with("is lost: missed 3 heartbeats"), "{error}");
        worker.forget_task("/job:ps/task:0");
        assert_eq!(worker.source("/job:ps/task:0"), None);
    }

    #[test]
    fn others_are_turned_away_with_a_reason() {
        let (mine, other) = (task("a", &[]), task("b", &[("RINGWAY_TOKEN", "hunter2.hunter2.hunter2")]));
        assert!(matches!(mine.introduce(other.task()), Err(IntroduceError::OtherJob { .. })));
        let nameless = DataPlaneTask { name: String::new(), ..mine.task().clone() };
        assert!(matches!(mine.introduce(&nameless), Err(IntroduceError::Incomplete { .. })));
        let open = DataPlaneTask { secret: vec![1; 31], ..task("c", &[]).task().clone() };
        assert!(matches!(mine.introduce(&open), Err(IntroduceError::Incomplete { .. })));
        let nowhere = DataPlaneTask { address: vec![1, 2], incarnation: 1, ..mine.task().clone() };
        assert!(matches!(mine.introduce(&nowhere), Err(IntroduceError::Connect { .. })));
        let else_ = prost_types::Any { type_url: "type.googleapis.com/x".into(), value: Vec::new() };
        assert!(mine.introduce_any(&else_).is_none());
        assert_eq!(mine.traffic_by_task(), []);
    }
}
