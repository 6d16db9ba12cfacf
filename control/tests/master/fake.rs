//! A worker that does as the test says.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use ringway_control::core::coordination::errors::Code;
use ringway_control::core::master::step::Failure;
use ringway_control::runtime::master::{Answer, WorkerPort};
use ringway_proto::tensorflow as tf;
use tokio::sync::watch;

/// What a worker does with steps.
#[derive(Clone, Debug, Default)]
pub(crate) enum Mood {
    /// Answers: for each key that it is asked for, the number of the step, counted from 1.
    #[default]
    Well,
    /// Never answers.
    Silent,
    /// Fails so.
    Fails(Failure),
}

/// What was asked of a worker.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) sessions: BTreeSet<String>,
    pub(crate) masters: Vec<String>,
    pub(crate) graphs: HashMap<String, tf::GraphDef>,
    pub(crate) registered: usize,
    pub(crate) steps: Vec<tf::RunGraphRequest>,
    pub(crate) cancelled: usize,
    pub(crate) cleaned: Vec<i64>,
    pub(crate) cleared: Vec<Vec<String>>,
}

#[derive(Debug)]
struct State {
    name: String,
    incarnation: u64,
    mood: Mood,
    losses: u64,
    down: bool,
    log: Log,
}

/// See above. Clones are the same worker.
#[derive(Clone)]
pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

pub(crate) fn lost() -> Failure {
    Failure { code: Code::Unavailable, message: "connection refused".to_owned(), lost: true }
}

fn no_session() -> Failure {
    let message = "Session handle is not found: it is not known any more".to_owned();
    Failure { code: Code::Aborted, message, lost: false }
}

impl Fake {
    pub(crate) fn new(job: &str, index: u32, incarnation: u64) -> Fake {
        let name = format!("/job:{job}/replica:0/task:{index}/device:CPU:0");
        let (mood, log) = (Mood::default(), Log::default());
        let state = State { name, incarnation, mood, losses: 0, down: false, log };
        Fake { state: Arc::new(Mutex::new(state)), changed: watch::channel(0).0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn tell(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn set(&self, mood: Mood) {
        self.state().mood = mood;
    }

    /// Its process ends.
    pub(crate) fn die(&self) {
        let mut state = self.state();
        state.down = true;
        state.losses += 1;
    }

    /// Another process takes its place.
    pub(crate) fn rise(&self, incarnation: u64) {
        let mut state = self.state();
        (state.down, state.incarnation, state.mood) = (false, incarnation, Mood::Well);
        state.log.sessions.clear();
        state.log.graphs.clear();
    }

    /// The leases of its sessions end.
    pub(crate) fn forget_sessions(&self) {
        let mut state = self.state();
        state.log.sessions.clear();
        state.log.graphs.clear();
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&Log) -> T) -> T {
        read(&self.state().log)
    }

    /// Waits until the log is so.
    pub(crate) async fn until(&self, is: impl Fn(&Log) -> bool) {
        let mut changed = self.changed.subscribe();
        let all = async {
            while !self.read(&is) {
                changed.changed().await.unwrap();
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), all)
            .await
            .expect("the worker is told in time");
    }

    /// Answers at once, or as a process does that is not there.
    fn answer<T: Send + 'static>(&self, change: impl FnOnce(&mut State) -> Result<T, Failure>) -> Answer<T> {
        let mut state = self.state();
        let result = if state.down { Err(lost()) } else { change(&mut state) };
        drop(state);
        self.tell();
        Box::pin(async move { result })
    }
}

/// Notes that a call was dropped before its answer.
struct Call {
    worker: Fake,
    answered: bool,
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.answered {
            self.worker.state().log.cancelled += 1;
            self.worker.tell();
        }
    }
}

impl WorkerPort for Fake {
    fn get_status(&self) -> Answer<tf::GetStatusResponse> {
        self.answer(|state| {
            let device = tf::DeviceAttributes {
                name: state.name.clone(),
                device_type: "CPU".to_owned(),
                incarnation: state.incarnation,
                ..Default::default()
            };
            Ok(tf::GetStatusResponse { device_attributes: vec![device] })
        })
    }

    fn create_session(&self, request: tf::CreateWorkerSessionRequest) -> Answer<()> {
        self.answer(|state| {
            state.log.sessions.insert(request.session_handle);
            state.log.masters.push(request.master_task);
            Ok(())
        })
    }

    fn delete_session(&self, request: tf::DeleteWorkerSessionRequest) -> Answer<()> {
        self.answer(|state| {
            state.log.sessions.remove(&request.session_handle);
            Ok(())
        })
    }

    fn register_graph(&self, request: tf::RegisterGraphRequest) -> Answer<String> {
        self.answer(|state| {
            if !state.log.sessions.contains(&request.session_handle) {
                return Err(no_session());
            }
            state.log.registered += 1;
            let handle = format!("{:x}-{}", state.incarnation, state.log.registered);
            state.log.graphs.insert(handle.clone(), request.graph_def.unwrap_or_default());
            Ok(handle)
        })
    }

    fn deregister_graph(&self, request: tf::DeregisterGraphRequest) -> Answer<()> {
        self.answer(|state| {
            state.log.graphs.remove(&request.graph_handle);
            Ok(())
        })
    }

    fn run_graph(&self, request: tf::RunGraphRequest) -> Answer<tf::RunGraphResponse> {
        let mut state = self.state();
        if state.down {
            return Box::pin(async { Err(lost()) });
        }
        let known = state.log.sessions.contains(&request.session_handle);
        let there = state.log.graphs.contains_key(&request.graph_handle);
        state.log.steps.push(request.clone());
        let (mood, number) = (state.mood.clone(), state.log.steps.len() as f32);
        drop(state);
        self.tell();
        let call = Call { worker: self.clone(), answered: false };
        Box::pin(async move {
            let mut call = call;
            if let Mood::Silent = mood {
                std::future::pending::<()>().await;
            }
            call.answered = true;
            match mood {
                Mood::Fails(failure) => Err(failure),
                _ if !known => Err(no_session()),
                _ if !there => {
                    let message = "Graph handle is not found: it is another process's".to_owned();
                    Err(Failure { code: Code::Aborted, message, lost: false })
                }
                _ => {
                    let recv = request.recv_key.into_iter().map(|name| {
                        let tensor =
                            tf::TensorProto { dtype: 1, float_val: vec![number], ..Default::default() };
                        tf::NamedTensorProto { name, tensor: Some(tensor) }
                    });
                    Ok(tf::RunGraphResponse { recv: recv.collect(), ..Default::default() })
                }
            }
        })
    }

    fn clean_up(&self, step_id: i64) -> Answer<()> {
        self.answer(|state| {
            state.log.cleaned.push(step_id);
            Ok(())
        })
    }

    fn clean_up_all(&self, containers: Vec<String>) -> Answer<()> {
        self.answer(|state| {
            state.log.cleared.push(containers);
            Ok(())
        })
    }

    fn next_step(&self, graph_key: i64) -> Answer<i64> {
        self.answer(move |state| Ok(graph_key * 1000 + state.log.steps.len() as i64))
    }

    fn losses(&self) -> u64 {
        self.state().losses
    }
}
