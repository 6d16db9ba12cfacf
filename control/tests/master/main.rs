//! The master over workers that fail, fall silent, die and come back.

mod fake;

use std::sync::Arc;
use std::time::Duration;

use fake::{Fake, Mood, lost};
use ringway_control::core::coordination::errors::Code;
use ringway_control::core::master::MasterError;
use ringway_control::core::master::step::Failure;
use ringway_control::runtime::master::{ClusterTask, Master, MasterConfig};
use ringway_proto::tensorflow as tf;
use tf::attr_value::Value;

const FLOAT: Value = Value::Type(1);

fn node(name: &str, op: &str, inputs: &[&str], device: &str, attrs: &[(&str, Value)]) -> tf::NodeDef {
    let attr =
        attrs.iter().map(|(n, v)| ((*n).to_owned(), tf::AttrValue { value: Some(v.clone()) })).collect();
    let input = inputs.iter().map(|input| (*input).to_owned()).collect();
    tf::NodeDef {
        name: name.to_owned(),
        op: op.to_owned(),
        input,
        device: device.to_owned(),
        attr,
        ..Default::default()
    }
}

/// `x` and `y` are fed; `a` = x on worker 0, `b` = a + y on worker 1.
fn graph() -> tf::GraphDef {
    let (w0, w1) = ("/job:worker/task:0", "/job:worker/task:1");
    let node = vec![
        node("x", "Placeholder", &[], w0, &[("dtype", FLOAT)]),
        node("y", "Placeholder", &[], w1, &[("dtype", FLOAT)]),
        node("a", "Identity", &["x"], w0, &[("T", FLOAT)]),
        node("b", "AddV2", &["a", "y"], w1, &[("T", FLOAT)]),
    ];
    tf::GraphDef { node, ..Default::default() }
}

fn scalar(value: f32) -> tf::TensorProto {
    tf::TensorProto { dtype: 1, float_val: vec![value], ..Default::default() }
}

fn fed(name: &str) -> tf::NamedTensorProto {
    tf::NamedTensorProto { name: name.to_owned(), tensor: Some(scalar(2.0)) }
}

struct Rig {
    master: Master,
    workers: Vec<Fake>,
}

impl Rig {
    fn over(workers: &[Fake], job: &str) -> Rig {
        let port = |(at, fake): (usize, &Fake)| ClusterTask {
            job: "worker".to_owned(),
            index: at as u32,
            port: Arc::new(fake.clone()),
        };
        let tasks = workers.iter().enumerate().map(port).collect();
        Rig { master: Master::new(MasterConfig::new(job, 0, tasks)), workers: workers.to_vec() }
    }

    fn new() -> Rig {
        Rig::over(&[Fake::new("worker", 0, 0xa0), Fake::new("worker", 1, 0xa1)], "worker")
    }

    async fn session(&self) -> String {
        self.session_of(graph()).await.unwrap()
    }

    async fn session_of(&self, graph: tf::GraphDef) -> Result<String, MasterError> {
        let request = tf::CreateSessionRequest { graph_def: Some(graph), ..Default::default() };
        self.master.create_session(request).await.map(|response| response.session_handle)
    }

    async fn run(
        &self,
        session: &str,
        feeds: &[&str],
        fetch: &str,
    ) -> Result<tf::RunStepResponse, MasterError> {
        self.master.run_step(step(session, feeds, &[fetch])).await
    }

    async fn close(&self, session: &str) -> Result<(), MasterError> {
        let request = tf::CloseSessionRequest { session_handle: session.to_owned() };
        self.master.close_session(request).await.map(|_| ())
    }
}

fn step(session: &str, feeds: &[&str], fetches: &[&str]) -> tf::RunStepRequest {
    tf::RunStepRequest {
        session_handle: session.to_owned(),
        feed: feeds.iter().map(|name| fed(name)).collect(),
        fetch: fetches.iter().map(|name| (*name).to_owned()).collect(),
        ..Default::default()
    }
}

#[tokio::test]
async fn parts_are_registered_once_and_every_step_is_cleaned_up() {
    let rig = Rig::new();
    let session = rig.session().await;
    for number in 1..=3 {
        let response = rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap();
        assert_eq!(response.tensor[0].name, "b:0");
        assert_eq!(response.tensor[0].tensor.as_ref().unwrap().float_val, [number as f32]);
    }
    for worker in &rig.workers {
        worker.until(|log| log.cleaned.len() == 3).await;
        worker.read(|log| {
            assert_eq!((log.registered, log.steps.len()), (1, 3));
            let ids: Vec<i64> = log.steps.iter().map(|step| step.step_id).collect();
            assert_eq!(log.cleaned, ids);
            // Each gets what it reads, and nothing else.
            assert_eq!(log.steps[0].send.len(), 1);
        });
    }
    assert!(rig.workers[0].read(|log| log.steps[0].recv_key.is_empty()));
    let key = rig.workers[1].read(|log| log.steps[0].send[0].name.clone());
    let device = "/job:worker/replica:0/task:1/device:CPU:0";
    assert_eq!(key, format!("{device};00000000000000a1;{device};y:0;0:0"));
}

#[tokio::test]
async fn the_first_cause_is_told_and_the_others_are_cancelled() {
    let rig = Rig::new();
    let session = rig.session().await;
    rig.workers[0].set(Mood::Silent);
    let why = Failure { code: Code::InvalidArgument, message: "by zero".to_owned(), lost: false };
    rig.workers[1].set(Mood::Fails(why));
    let error = rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap_err();
    assert_eq!(error.to_string(), "From /job:worker/replica:0/task:1:\nby zero");
    assert_eq!(error.code(), Code::InvalidArgument);
    rig.workers[0].until(|log| log.cancelled == 1 && log.cleaned.len() == 1).await;
    // And the session goes on.
    rig.workers.iter().for_each(|worker| worker.set(Mood::Well));
    rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap();
}

#[tokio::test]
async fn a_dead_worker_is_named_and_another_life_of_it_is_used() {
    let rig = Rig::new();
    let session = rig.session().await;
    rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap();
    rig.workers[1].die();
    for _ in 0..2 {
        let error = rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.to_string().starts_with("From /job:worker/replica:0/task:1:\n"), "{error}");
    }
    // What does not need it runs.
    rig.run(&session, &["x:0"], "a:0").await.unwrap();
    rig.workers[1].rise(0xb7);
    rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap();
    let key = rig.workers[1].read(|log| log.steps.last().unwrap().send[0].name.clone());
    assert!(key.contains(";00000000000000b7;"), "{key}");
    // The other's part names the new life too.
    let named = rig.workers[0].read(|log| {
        let graph = &log.graphs[&log.steps.last().unwrap().graph_handle];
        graph.node.iter().filter(|node| node.op == "_Send").count()
    });
    assert_eq!(named, 1);
}

#[tokio::test]
async fn a_worker_that_was_started_again_unnoticed_costs_one_step() {
    let rig = Rig::new();
    let session = rig.session().await;
    rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap();
    // No connection was seen to end.
    rig.workers[1].rise(0xb7);
    let error = rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap_err();
    assert_eq!(error.code(), Code::Aborted);
    rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap();
}

#[tokio::test]
async fn a_session_whose_lease_ended_at_a_worker_is_begun_there_anew() {
    let rig = Rig::new();
    let session = rig.session().await;
    rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap();
    // A run that its workers know costs one step, one that they do not know yet costs none.
    rig.workers[1].forget_sessions();
    let error = rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap_err();
    assert_eq!(error.code(), Code::Aborted);
    rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap();
    rig.workers.iter().for_each(Fake::forget_sessions);
    rig.run(&session, &["x:0", "y:0"], "a:0").await.unwrap();
    rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap();
}

#[tokio::test]
async fn a_worker_whose_connection_broke_goes_on_where_it_was() {
    let rig = Rig::new();
    let session = rig.session().await;
    rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap();
    rig.workers[0].set(Mood::Fails(lost()));
    rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap_err();
    rig.workers[0].set(Mood::Well);
    rig.run(&session, &["x:0", "y:0"], "b:0").await.unwrap();
    assert_eq!(rig.workers[0].read(|log| log.registered), 1);
}

#[tokio::test]
async fn closing_ends_steps_and_what_comes_after_is_refused() {
    let rig = Rig::new();
    let session = rig.session().await;
    rig.workers[0].set(Mood::Silent);
    let running = {
        let (master, request) = (rig.master.clone(), step(&session, &["x:0"], &["a:0"]));
        tokio::spawn(async move { master.run_step(request).await })
    };
    rig.workers[0].until(|log| log.steps.len() == 1).await;
    rig.close(&session).await.unwrap();
    assert_eq!(running.await.unwrap().unwrap_err(), MasterError::SessionClosed(session.clone()));
    rig.workers[0].until(|log| log.cancelled == 1 && log.sessions.is_empty()).await;
    let error = rig.run(&session, &["x:0"], "a:0").await.unwrap_err();
    assert_eq!((error.code(), &error), (Code::Aborted, &MasterError::NoSession(session.clone())));
    assert_eq!(rig.close(&session).await.unwrap_err().code(), Code::Aborted);
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_step() {
    let rig = Rig::new();
    let session = rig.session().await;
    rig.workers[0].set(Mood::Silent);
    let (master, request) = (rig.master.clone(), step(&session, &["x:0"], &["a:0"]));
    let running = tokio::spawn(async move { master.run_step(request).await });
    rig.workers[0].until(|log| log.steps.len() == 1).await;
    running.abort();
    rig.workers[0].until(|log| log.cancelled == 1 && log.cleaned.len() == 1).await;
}

#[tokio::test]
async fn a_step_has_a_deadline() {
    let rig = Rig::new();
    let session = rig.session().await;
    rig.workers[1].set(Mood::Silent);
    // Enough for the other worker to answer on a busy machine.
    let options = tf::RunOptions { timeout_in_ms: 1000, ..Default::default() };
    let request = tf::RunStepRequest { options: Some(options), ..step(&session, &["x:0", "y:0"], &["b:0"]) };
    let error = rig.master.run_step(request).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!(error.to_string().contains("no answer from /job:worker/replica:0/task:1."), "{error}");
}

#[tokio::test]
async fn two_masters_share_a_worker() {
    let workers = [Fake::new("worker", 0, 0xa0), Fake::new("worker", 1, 0xa1)];
    let (one, two) = (Rig::over(&workers, "worker"), Rig::over(&workers, "chief"));
    let (first, second) = (one.session().await, two.session().await);
    assert_ne!(first, second);
    one.run(&first, &["x:0"], "a:0").await.unwrap();
    one.close(&first).await.unwrap();
    two.run(&second, &["x:0"], "a:0").await.unwrap();
    let masters = workers[0].read(|log| log.masters.clone());
    assert_eq!(masters, ["/job:worker/replica:0/task:0", "/job:chief/replica:0/task:0"]);
}

#[tokio::test]
async fn a_run_comes_in_parts() {
    let rig = Rig::new();
    let session = rig.session().await;
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let setup = tf::PartialRunSetupRequest {
        session_handle: session.clone(),
        feed: names(&["x:0", "y:0"]),
        fetch: names(&["a:0", "b:0"]),
        ..Default::default()
    };
    let handle = rig.master.partial_run_setup(setup).await.unwrap().partial_run_handle;
    assert_eq!(handle, "0");
    let part = |feeds: &[&str], fetches: &[&str]| tf::RunStepRequest {
        partial_run_handle: handle.clone(),
        ..step(&session, feeds, fetches)
    };
    let error = rig.master.run_step(part(&["x:0"], &["b:0"])).await.unwrap_err();
    assert!(
        error.to_string().contains("can't be computed from the feeds that have been fed so far"),
        "{error}"
    );
    let first = rig.master.run_step(part(&["x:0"], &["a:0"])).await.unwrap();
    assert_eq!((first.tensor.len(), first.metadata.is_some()), (1, false));
    let last = rig.master.run_step(part(&["y:0"], &["b:0"])).await.unwrap();
    assert_eq!((last.tensor[0].name.as_str(), last.metadata.is_some()), ("b:0", true));
    rig.workers[1].until(|log| log.cleaned.len() == 1).await;
    rig.workers[1].read(|log| {
        let flags: Vec<_> =
            log.steps.iter().map(|s| (s.is_partial, s.is_last_partial_run, s.send.len())).collect();
        assert_eq!(flags, [(true, false, 0), (true, true, 1)]);
        assert_eq!(log.steps[0].step_id, log.steps[1].step_id);
    });
    let error = rig.master.run_step(part(&[], &["a:0"])).await.unwrap_err();
    assert_eq!(error, MasterError::NoPartialRun("0".to_owned()));
}

#[tokio::test]
async fn callables_are_run_by_place() {
    let rig = Rig::new();
    let session = rig.session().await;
    let options = tf::CallableOptions {
        feed: vec!["x:0".to_owned()],
        fetch: vec!["a:0".to_owned()],
        ..Default::default()
    };
    let make = tf::MakeCallableRequest {
        session_handle: session.clone(),
        options: Some(options),
        ..Default::default()
    };
    let handle = rig.master.make_callable(make).await.unwrap().handle;
    assert_eq!(handle, 0);
    let run = |feeds: usize| tf::RunCallableRequest {
        session_handle: session.clone(),
        handle,
        feed: vec![scalar(1.0); feeds],
        ..Default::default()
    };
    assert_eq!(rig.master.run_callable(run(1)).await.unwrap().fetch.len(), 1);
    let error = rig.master.run_callable(run(2)).await.unwrap_err();
    assert_eq!(error, MasterError::FeedCount { expected: 1, given: 2 });
    let release = tf::ReleaseCallableRequest { session_handle: session.clone(), handle };
    rig.master.release_callable(release).await.unwrap();
    assert_eq!(rig.master.run_callable(run(1)).await.unwrap_err(), MasterError::NoCallable(0));
}

#[tokio::test]
async fn what_is_not_sound_is_refused_and_the_session_goes_on() {
    let rig = Rig::new();
    let session = rig.session().await;
    let code = |result: Result<tf::RunStepResponse, MasterError>| result.unwrap_err().code();
    assert_eq!(code(rig.master.run_step(step(&session, &[], &[])).await), Code::InvalidArgument);
    assert_eq!(code(rig.run(&session, &[], "nothing:0").await), Code::NotFound);
    let mut wrong = step(&session, &["x:0"], &["a:0"]);
    wrong.feed[0].tensor = Some(tf::TensorProto { dtype: 9, int64_val: vec![1], ..Default::default() });
    let error = rig.master.run_step(wrong).await.unwrap_err();
    assert!(error.to_string().contains("x:0 is of type int64 where the graph has float"), "{error}");
    let mut absurd = step(&session, &["x:0"], &["a:0"]);
    let dim = vec![tf::tensor_shape_proto::Dim { size: i64::MAX, name: String::new() }; 2];
    let shape = tf::TensorShapeProto { dim, unknown_rank: false };
    absurd.feed[0].tensor =
        Some(tf::TensorProto { dtype: 1, tensor_shape: Some(shape), ..Default::default() });
    assert_eq!(code(rig.master.run_step(absurd).await), Code::InvalidArgument);
    // None of these came to a worker.
    assert!(rig.workers[0].read(|log| log.steps.is_empty()));
    let cyclic = vec![
        node("p", "Identity", &["q"], "", &[("T", FLOAT)]),
        node("q", "Identity", &["p"], "", &[("T", FLOAT)]),
    ];
    let more = tf::ExtendSessionRequest {
        session_handle: session.clone(),
        graph_def: Some(tf::GraphDef { node: cyclic, ..Default::default() }),
        current_graph_version: 0,
    };
    assert_eq!(rig.master.extend_session(more).await.unwrap_err().code(), Code::InvalidArgument);
    rig.run(&session, &["x:0"], "a:0").await.unwrap();
}

#[tokio::test]
async fn an_extension_keeps_what_workers_know() {
    let rig = Rig::new();
    let session = rig.session().await;
    rig.run(&session, &["x:0"], "a:0").await.unwrap();
    let more = vec![node("c", "Identity", &["a"], "", &[("T", FLOAT)])];
    let request = tf::ExtendSessionRequest {
        session_handle: session.clone(),
        graph_def: Some(tf::GraphDef { node: more, ..Default::default() }),
        current_graph_version: 0,
    };
    assert_eq!(rig.master.extend_session(request).await.unwrap().new_graph_version, 1);
    rig.run(&session, &["x:0"], "a:0").await.unwrap();
    assert_eq!(rig.workers[0].read(|log| log.registered), 1);
    rig.run(&session, &["x:0"], "c:0").await.unwrap();
    assert_eq!(rig.workers[0].read(|log| log.registered), 2);
}

#[tokio::test]
async fn reset_ends_sessions_and_clears_containers() {
    let rig = Rig::new();
    let session = rig.session().await;
    let request = tf::ResetRequest { container: vec!["old".to_owned()], ..Default::default() };
    rig.master.reset(request).await.unwrap();
    for worker in &rig.workers {
        worker.read(|log| {
            assert_eq!((log.cleared.as_slice(), log.sessions.len()), (&[vec!["old".to_owned()]][..], 0))
        });
    }
    assert_eq!(rig.run(&session, &["x:0"], "a:0").await.unwrap_err(), MasterError::NoSession(session));
}

#[tokio::test]
async fn a_session_waits_for_its_workers_and_names_who_is_missing() {
    let rig = Rig::new();
    rig.workers[1].die();
    // Enough for the other worker to answer on a busy machine.
    let config = tf::ConfigProto { operation_timeout_in_ms: 1000, ..Default::default() };
    let request = |config| tf::CreateSessionRequest { config: Some(config), ..Default::default() };
    let error = rig.master.create_session(request(config)).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(
        error.to_string().contains("no answer from /job:worker/replica:0/task:1 (connection refused)"),
        "{error}"
    );
    // Left out, it is not missed.
    let waiting = tf::ConfigProto { operation_timeout_in_ms: 60_000, ..Default::default() };
    let filtered =
        tf::ConfigProto { device_filters: vec!["/job:worker/task:0".to_owned()], ..waiting.clone() };
    let session = rig.master.create_session(request(filtered)).await.unwrap().session_handle;
    let devices = tf::ListDevicesRequest { session_handle: session };
    assert_eq!(rig.master.list_devices(devices).await.unwrap().local_device.len(), 1);
    let (master, fake) = (rig.master.clone(), rig.workers[1].clone());
    let begun = tokio::spawn(async move { master.create_session(request(waiting)).await });
    fake.rise(0xb7);
    tokio::time::timeout(Duration::from_secs(60), begun).await.unwrap().unwrap().unwrap();
}
