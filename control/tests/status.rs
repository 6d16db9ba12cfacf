//! The status, health and reflection services of a coordination service, over real connections.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringway_control::core::coordination::CoordinatorConfig;
use ringway_control::core::status::{Look, RankReport};
use ringway_control::rpc::client::status::{LookError, Place, Question, look};
use ringway_control::rpc::client::{Agent, AgentConfig, Process};
use ringway_control::rpc::credentials::Credentials;
use ringway_control::rpc::serve::{Server, ServerConfig};
use ringway_control::window::{Heading, WindowConfig, socket};
use ringway_topology::{HostId, Incarnation, TaskId};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

#[path = "../../tests/ports/mod.rs"]
mod ports;

/// Far longer than anything here takes: a test that reaches it fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn serve(window: WindowConfig) -> Server {
    let coordinator =
        CoordinatorConfig { heartbeat_limit: PATIENCE, ..CoordinatorConfig::one_job("worker", 2) };
    let config = ServerConfig { window, ..ServerConfig::new(coordinator, Incarnation(0xabc)) };
    Server::start("127.0.0.1:0".parse().unwrap(), config).unwrap()
}

fn agent(server: &Server, index: u32) -> Agent {
    let process = Process {
        task: TaskId::new("worker", index).unwrap(),
        incarnation: Incarnation(500 + u64::from(index)),
        host: HostId::new("here", "boot").unwrap(),
        pid: 1000 + index,
    };
    Agent::start(AgentConfig::new(server.local_addr().to_string(), process, PATIENCE)).unwrap()
}

fn ask(server: &Server, patience: Duration) -> Look {
    let question = Question { ranks: true, flight: false, patience };
    look(&Place::Address(server.local_addr().to_string()), question, &Credentials::default()).unwrap()
}

fn connected(look: &Look) -> usize {
    look.overview.tasks.iter().filter(|task| task.state == "connected").count()
}

#[test]
fn a_look_has_what_the_service_knows_and_what_the_ranks_say() {
    let server = serve(WindowConfig::default());
    let agents = [agent(&server, 0), agent(&server, 1)];
    agents[0].on_survey(|flight| {
        assert!(!flight);
        Some(RankReport { rank: 7, transport: "pigeon".to_owned(), ..Default::default() })
    });
    let seen = ask(&server, PATIENCE);
    assert_eq!((connected(&seen), seen.silent.len()), (2, 0), "{seen:?}");
    assert_eq!(seen.overview.incarnation, "0000000000000abc");
    assert_eq!(seen.overview.tasks[1].incarnation, format!("{:016x}", 501));
    let of = |index: u32| {
        seen.reports.iter().find(|r| r.task.as_ref().is_some_and(|task| task.task == index)).unwrap()
    };
    assert_eq!((of(0).rank, &*of(0).transport, of(0).pid), (7, "pigeon", 1000));
    // One that has nothing to tell yet says who it is.
    assert_eq!((&*of(1).transport, of(1).pid, &*of(1).host), ("", 1001, "here"));
}

#[test]
fn a_task_that_does_not_answer_is_named_and_holds_up_nobody() {
    let server = serve(WindowConfig::default());
    let agents = [agent(&server, 0), agent(&server, 1)];
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    agents[1].on_survey(move |_| {
        // Until the test lets go, with an error then.
        let _ = held.lock().unwrap().recv();
        None
    });
    // On a busy machine the other one may need longer than that, too.
    let seen = loop {
        let seen = ask(&server, Duration::from_millis(300));
        if !seen.reports.is_empty() {
            break seen;
        }
    };
    assert_eq!(seen.reports.len(), 1, "{seen:?}");
    let [silent] = &seen.silent[..] else { panic!("{seen:?}") };
    assert_eq!((&*silent.job, silent.task), ("worker", 1));
    drop(release);
    assert!(ask(&server, PATIENCE).silent.is_empty(), "the next survey is answered");
}

#[test]
fn a_barrier_names_who_is_late() {
    let server = serve(WindowConfig::default());
    let agents = Arc::new([agent(&server, 0), agent(&server, 1)]);
    let early = agents.clone();
    let waiting = std::thread::spawn(move || early[0].barrier("step", &[], PATIENCE));
    let wait = loop {
        if let Some(wait) = ask(&server, PATIENCE).overview.waits.into_iter().next() {
            break wait;
        }
    };
    assert_eq!((&*wait.awaited, wait.late_count), ("barrier", 1));
    assert!(wait.name.contains("step"), "{wait:?}");
    assert_eq!((wait.waiting[0].task, wait.late[0].task), (0, 1));
    agents[1].barrier("step", &[], PATIENCE).unwrap();
    waiting.join().unwrap().unwrap();
    assert!(ask(&server, PATIENCE).overview.waits.is_empty());
}

#[test]
fn who_is_no_coordination_service_is_said() {
    let address = format!("127.0.0.1:{}", ports::free_ports(1));
    let question = Question { ranks: false, flight: false, patience: Duration::from_millis(100) };
    let error = look(&Place::Address(address), question, &Credentials::default()).unwrap_err();
    assert!(matches!(error, LookError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("connection refused"), "{error}");
    assert!(matches!(
        look(&Place::Address("not an address".to_owned()), question, &Credentials::default()),
        Err(LookError::Address { .. } | LookError::Unreachable { .. })
    ));
}

fn with_channel<T>(address: SocketAddr, f: impl AsyncFnOnce(tonic::transport::Channel) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
        f(endpoint.connect().await.unwrap()).await
    })
}

#[test]
fn health_says_that_the_services_serve() {
    let server = serve(WindowConfig::default());
    with_channel(server.local_addr(), async |channel| {
        let mut client = HealthClient::new(channel);
        for service in ["", "ringway.v1.Status", "tensorflow.CoordinationService"] {
            let request = HealthCheckRequest { service: service.to_owned() };
            let status = client.check(request).await.unwrap().into_inner().status();
            assert_eq!(status, ServingStatus::Serving, "{service:?}");
        }
        let unknown = client.check(HealthCheckRequest { service: "nobody".to_owned() }).await;
        assert_eq!(unknown.unwrap_err().code(), tonic::Code::NotFound);
    });
}

#[test]
fn reflection_lists_the_services_and_describes_them() {
    let server = serve(WindowConfig::default());
    with_channel(server.local_addr(), async |channel| {
        let mut client = ServerReflectionClient::new(channel);
        let asks = [
            MessageRequest::ListServices(String::new()),
            MessageRequest::FileContainingSymbol("ringway.v1.Status.Look".to_owned()),
            MessageRequest::FileContainingSymbol("tensorflow.CoordinationService".to_owned()),
        ];
        let requests =
            asks.map(|ask| ServerReflectionRequest { host: String::new(), message_request: Some(ask) });
        let mut answers =
            client.server_reflection_info(tokio_stream::iter(requests)).await.unwrap().into_inner();
        let listed = answers.message().await.unwrap().unwrap().message_response;
        let Some(MessageResponse::ListServicesResponse(listed)) = listed else { panic!("{listed:?}") };
        let names: BTreeSet<&str> = listed.service.iter().map(|service| service.name.as_str()).collect();
        for name in ["ringway.v1.Status", "ringway.v1.SessionSetup", "grpc.health.v1.Health"] {
            assert!(names.contains(name), "{name} is not among {names:?}");
        }
        for _ in 0..2 {
            let file = answers.message().await.unwrap().unwrap().message_response;
            assert!(matches!(file, Some(MessageResponse::FileDescriptorResponse(_))), "{file:?}");
        }
    });
}

/// A folder of one test, removed with it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_service_shows_itself_on_its_socket_while_it_lives() {
    let folder = Folder(std::env::temp_dir().join(format!("rw-status-{}", std::process::id())));
    let window = WindowConfig {
        socket_dir: Some(folder.0.clone()),
        name: "coordinator".to_owned(),
        job: "a job".to_owned(),
        metrics: None,
    };
    let server = serve(window);
    // It is there from before the first connection is answered.
    let agents = [agent(&server, 0), agent(&server, 1)];
    let [path] = &socket::list(&folder.0).unwrap()[..] else { panic!() };
    let mut text = String::new();
    UnixStream::connect(path).unwrap().read_to_string(&mut text).unwrap();
    let heading = Heading::parse(text.lines().next().unwrap()).unwrap();
    assert_eq!((&*heading.job, &*heading.coordinator), ("a job", &*server.local_addr().to_string()));
    assert!(text.contains("2 of 2 tasks connected"), "{text}");
    // Beside it is one for programs.
    let calls = path.with_extension("grpc");
    let question = Question { ranks: true, flight: false, patience: PATIENCE };
    let seen = look(&Place::Socket(calls.clone()), question, &Credentials::default()).unwrap();
    assert_eq!((connected(&seen), seen.reports.len()), (2, 2), "{seen:?}");
    drop(agents);
    drop(server);
    assert!(!path.exists() && !calls.exists());
    let error = look(&Place::Socket(calls), question, &Credentials::default()).unwrap_err();
    assert!(matches!(error, LookError::Unreachable { .. }), "{error}");
}
