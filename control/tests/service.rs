//! The real agent and the real service, over loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use ringway_control::core::coordination::CoordinatorConfig;
use ringway_control::rpc::client::{
    Agent, AgentConfig, AgentError, Alarm, BarrierError, Evidence, GroupRequest, GroupTable, JoinError,
    Process, Seen, StoreError,
};
use ringway_control::rpc::serve::{Keep, ServeError, Server, ServerConfig};
use ringway_control::store::file::{FileStore, Sync};
use ringway_topology::{HostId, Incarnation, TaskId};

/// Far longer than anything here takes: a test that reaches it fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn coordinator(tasks: u32) -> CoordinatorConfig {
    CoordinatorConfig { heartbeat_limit: PATIENCE, ..CoordinatorConfig::one_job("worker", tasks) }
}

fn serve(coordinator: CoordinatorConfig) -> Server {
    Server::start(local(), ServerConfig::new(coordinator, Incarnation(77))).unwrap()
}

fn worker(index: u32) -> TaskId {
    TaskId::new("worker", index).unwrap()
}

fn process(index: u32, incarnation: u64) -> Process {
    Process {
        task: worker(index),
        incarnation: Incarnation(incarnation),
        host: HostId::new("here", "boot").unwrap(),
        pid: 1000 + index,
    }
}

fn agent(server: &Server, index: u32) -> Agent {
    let address = server.local_addr().to_string();
    Agent::start(AgentConfig::new(address, process(index, 500 + u64::from(index)), PATIENCE)).unwrap()
}

fn world(rank: u32, size: u32) -> GroupRequest {
    GroupRequest {
        group: "world".to_owned(),
        rank: Some(rank),
        size,
        addresses: vec![rank as u8; 3],
        timeout: PATIENCE,
        hosts_coordinator: false,
    }
}

/// Agents of all tasks, in one group.
fn job(server: &Server, size: u32) -> Vec<(Agent, GroupTable)> {
    thread::scope(|scope| {
        let ranks = (0..size).map(|rank| {
            scope.spawn(move || {
                let agent = agent(server, rank);
                let table = agent.join_group(world(rank, size)).unwrap();
                (agent, table)
            })
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn alarms(agent: &Agent) -> mpsc::Receiver<Alarm> {
    let (send, receive) = mpsc::channel();
    agent.on_loss(move |alarm| {
        let _ = send.send(alarm.clone());
    });
    receive
}

#[test]
fn ranks_find_each_other_in_one_round() {
    let server = serve(coordinator(4));
    let job = job(&server, 4);
    let table = &job[0].1;
    assert!(job.iter().all(|(_, other)| other == table), "every member gets the same table");
    for (rank, member) in table.members.iter().enumerate() {
        assert_eq!(member.rank as usize, rank);
        assert_eq!(member.process.task, worker(rank as u32));
        assert_eq!(member.addresses, [rank as u8; 3]);
    }
    assert_ne!(table.secret, [0; 32]);
    assert!(!server.wait_until_empty(Duration::ZERO));
    job.into_iter().for_each(|(agent, _)| agent.leave().unwrap());
    assert!(server.wait_until_empty(PATIENCE));
}

#[test]
fn keys_are_shared_and_reads_wait_for_writes() {
    let server = serve(coordinator(2));
    let (first, second) = (agent(&server, 0), agent(&server, 1));
    thread::scope(|scope| {
        let reader = scope.spawn(|| second.kv_get("split/7/members", PATIENCE));
        first.kv_set("/split//7/members/", b"0,1", false).unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), b"0,1");
    });
    let exists = first.kv_set("split/7/members", b"2", false);
    assert!(matches!(exists, Err(StoreError::Exists { .. })), "{exists:?}");
    first.kv_set("split/7/members", b"2", true).unwrap();
    assert_eq!(second.kv_list("split").unwrap(), [("split/7/members".to_owned(), b"2".to_vec())]);
    assert_eq!(second.kv_add("count", 5).unwrap(), 5);
    assert_eq!(first.kv_add("count", -7).unwrap(), -2);
    first.kv_delete("split").unwrap();
    assert_eq!(
        second.kv_try_get("split/7/members"),
        Err(StoreError::Missing { key: "split/7/members".to_owned() })
    );
    let never = second.kv_get("never", Duration::from_millis(1));
    assert!(matches!(never, Err(StoreError::TimedOut { .. })), "{never:?}");
}

#[test]
fn values_of_many_megabytes_pass() {
    let server = serve(coordinator(1));
    let agent = agent(&server, 0);
    let value: Vec<u8> = (0..16 << 20).map(|i: u32| (i ^ (i >> 11)) as u8).collect();
    agent.kv_set("large", &value, false).unwrap();
    assert!(agent.kv_try_get("large").unwrap() == value, "16 MiB came back changed");
    let over = agent.kv_set("larger", &vec![0; (64 << 20) + 1], false);
    assert!(matches!(over, Err(StoreError::Refused { .. })), "{over:?}");
    let far_over = agent.kv_set("largest", &vec![0; (65 << 20) + 1], false);
    assert!(far_over.is_err(), "a message over the limit was taken");
    assert_eq!(agent.kv_add("still there", 1), Ok(1));
}

#[test]
fn a_barrier_names_who_is_late() {
    let server = serve(coordinator(3));
    let agents: Vec<Agent> = (0..3).map(|index| agent(&server, index)).collect();
    thread::scope(|scope| {
        agents.iter().for_each(|agent| {
            scope.spawn(|| agent.barrier("all", &[], PATIENCE).unwrap());
        });
    });
    let late = agents[0].barrier("two", &[worker(0), worker(2)], Duration::from_millis(1)).unwrap_err();
    assert!(
        matches!(&late, BarrierError::Late { detail, .. } if detail.contains("/job:worker/task:2")),
        "{late}"
    );
    let again = agents[2].barrier("two", &[worker(0), worker(2)], PATIENCE).unwrap_err();
    assert!(matches!(again, BarrierError::Late { .. }), "the result of a barrier stands: {again}");
}

#[test]
fn a_process_that_vanishes_is_named_to_all() {
    let server = serve(coordinator(3));
    let mut job = job(&server, 3);
    let heard: Vec<_> = job.iter().map(|(agent, _)| alarms(agent)).collect();
    // Without a word, as after kill -9: the connection ends.
    drop(job.remove(1));
    for listener in [&heard[0], &heard[2]] {
        let alarm = listener.recv_timeout(PATIENCE).unwrap();
        let Alarm::Lost(loss) = &alarm else { panic!("{alarm:?}") };
        assert_eq!((loss.rank, loss.pid, loss.evidence), (Some(1), Some(1001), Evidence::Connection));
        assert!(
            alarm.to_string().contains("rank 1 (/job:worker/task:1, pid 1001 on host here) is lost"),
            "{alarm}"
        );
    }
    let dead = job[0].0.barrier("after", &[], PATIENCE).unwrap_err();
    assert!(matches!(&dead, BarrierError::TaskLost { detail, .. } if detail.contains("task:1")), "{dead}");
    let late = alarms(&job[1].0).recv_timeout(PATIENCE).unwrap();
    assert!(matches!(late, Alarm::Lost(_)), "a listener that comes later hears it too");
}

/// A way to a server that can be cut off without a word: nothing passes any more, and no connection ends.
fn cuttable(to: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind(local()).unwrap();
    let (address, cut) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
    let is_cut = cut.clone();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(to).unwrap());
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            for (from, to) in [(client, server), back] {
                let is_cut = is_cut.clone();
                thread::spawn(move || carry(from, to, &is_cut));
            }
        }
    });
    (address, cut)
}

fn carry(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(got @ 1..) = from.read(&mut bytes) {
        while is_cut.load(Ordering::Relaxed) {
            thread::park();
        }
        if to.write_all(&bytes[..got]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// W2 of the way to the coordinator: as when the leader's host loses power, and its connections stand.
#[test]
fn losses_are_heard_of_after_the_way_is_cut_off_without_a_word() {
    let file = format!("{}/cut-{}.state", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let store = FileStore::open(file.as_ref(), Sync::System).unwrap();
    let keep = Keep::File { store, failover: PATIENCE };
    let server = ServerConfig { keep, ..ServerConfig::new(coordinator(2), Incarnation(77)) };
    let server = Server::start(local(), server).unwrap();
    let (way, cut) = cuttable(server.local_addr());
    let mut config = AgentConfig::new(format!("{way},{}", server.local_addr()), process(0, 500), PATIENCE);
    config.times.heartbeat_every = Duration::from_millis(20);
    let survivor = Agent::start(config).unwrap();
    let heard = alarms(&survivor);
    let other = agent(&server, 1);
    cut.store(true, Ordering::Relaxed);
    drop(other);
    let alarm = heard.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(&alarm, Alarm::Lost(loss) if loss.task == worker(1)), "{alarm}");
    drop((survivor, server));
    for ending in ["", ".lock"] {
        let _ = std::fs::remove_file(format!("{file}{ending}"));
    }
}

#[test]
fn a_task_that_leaves_in_order_is_not_lost() {
    let server = serve(coordinator(2));
    let mut job = job(&server, 2);
    let heard = alarms(&job[0].0);
    job.remove(1).0.leave().unwrap();
    // What follows is the next thing that is heard.
    job[0].0.report_loss(&worker(0), Incarnation(500), "division by zero in step 3").unwrap();
    let alarm = heard.recv_timeout(PATIENCE).unwrap();
    let Alarm::Lost(loss) = &alarm else { panic!("{alarm:?}") };
    assert_eq!(
        (loss.rank, loss.evidence, &*loss.detail),
        (Some(0), Evidence::Own, "division by zero in step 3")
    );
}

#[test]
fn a_loss_that_a_peer_saw_reaches_everybody_once() {
    let server = serve(coordinator(3));
    let job = job(&server, 3);
    let heard: Vec<_> = job.iter().map(|(agent, _)| alarms(agent)).collect();
    let lost = &job[0].1.members[2].process;
    job[0].0.report_loss(&lost.task, lost.incarnation, "connection reset by peer").unwrap();
    job[1].0.report_loss(&lost.task, lost.incarnation, "connection reset by peer").unwrap();
    job[1].0.report_loss(&worker(1), Incarnation(501), "the end").unwrap();
    for listener in &heard[..2] {
        let seen = (0..2).map(|_| match listener.recv_timeout(PATIENCE).unwrap() {
            Alarm::Lost(loss) => (loss.rank, loss.evidence),
            other => panic!("{other:?}"),
        });
        assert_eq!(seen.collect::<Vec<_>>(), [(Some(2), Evidence::Peer), (Some(1), Evidence::Own)]);
    }
}

#[test]
fn a_restarted_task_takes_over_and_its_old_life_is_told() {
    let server = serve(coordinator(1));
    let old = agent(&server, 0);
    let heard = alarms(&old);
    let new =
        Agent::start(AgentConfig::new(server.local_addr().to_string(), process(0, 900), PATIENCE)).unwrap();
    let alarm = heard.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(&alarm, Alarm::Lost(loss) if loss.evidence == Evidence::Restart), "{alarm:?}");
    assert_eq!(new.kv_add("mine", 1), Ok(1));
    let back = Agent::start(AgentConfig::new(server.local_addr().to_string(), process(0, 500), PATIENCE));
    assert!(matches!(back, Err(AgentError::Refused { .. })), "{back:?}");
}

/// Where the notice of a preemption goes to.
fn told(agent: &Agent) -> mpsc::Receiver<Option<SystemTime>> {
    let (send, receive) = mpsc::channel();
    agent.on_preemption(move |when| send.send(when).unwrap());
    receive
}

#[test]
fn a_preemption_is_announced_to_all_tasks() {
    let server = serve(coordinator(2));
    let (first, second) = (agent(&server, 0), agent(&server, 1));
    let before = told(&second);
    let at_least = SystemTime::now() + Duration::from_secs(29);
    first.announce_preemption(Duration::from_secs(30)).unwrap();
    let when = before.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(when >= at_least, "{when:?}");
    assert_eq!(told(&first).recv_timeout(PATIENCE).unwrap(), Some(when), "also to who asks later");
    second.announce_preemption(Duration::from_secs(99)).unwrap();
    assert_eq!(told(&second).recv_timeout(PATIENCE).unwrap(), Some(when), "the first word stands");
}

#[test]
fn a_service_whose_process_is_told_to_end_tells_its_tasks() {
    let server = serve(coordinator(1));
    let agent = agent(&server, 0);
    let told = told(&agent);
    server.announce_preemption(Duration::from_secs(30));
    assert!(told.recv_timeout(PATIENCE).unwrap().is_some());
    assert!(!server.wait_until_empty(Duration::ZERO));
    agent.leave().unwrap();
    assert!(server.wait_until_empty(PATIENCE));
}

#[test]
fn the_end_of_the_coordinator_is_noticed() {
    let server = serve(coordinator(2));
    let job = thread::scope(|scope| {
        let ranks = (0..2).map(|rank| {
            let server = &server;
            scope.spawn(move || {
                let agent = agent(server, rank);
                agent.join_group(GroupRequest { hosts_coordinator: rank == 0, ..world(rank, 2) }).unwrap();
                agent
            })
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    thread::scope(|scope| {
        let waiting = scope.spawn(|| job[1].kv_get("never", PATIENCE));
        // In order: no loss is meant, but whoever waits is answered.
        drop(server);
        assert!(waiting.join().unwrap().is_err());
    });
    let after = job[1].kv_set("after", b"", false);
    assert!(matches!(after, Err(StoreError::Unreachable { .. })), "{after:?}");
}

#[test]
fn missing_members_are_named() {
    let server = serve(coordinator(3));
    let first = agent(&server, 0);
    let request = GroupRequest { timeout: Duration::from_millis(1), ..world(0, 3) };
    let error = first.join_group(request).unwrap_err();
    let JoinError::Incomplete { detail, .. } = &error else { panic!("{error:?}") };
    assert!(detail.contains("2 missing: rank 1, 2"), "{detail}");
    assert!(detail.contains("/job:worker/task:1 (never registered)"), "{detail}");
}

#[test]
fn members_that_disagree_are_shown_to_each_other() {
    let server = serve(coordinator(2));
    let (first, second) = (agent(&server, 0), agent(&server, 1));
    let errors = thread::scope(|scope| {
        let first = scope.spawn(|| first.join_group(world(0, 2)));
        let second = scope.spawn(|| second.join_group(GroupRequest { rank: Some(0), ..world(0, 2) }));
        [first.join().unwrap().unwrap_err(), second.join().unwrap().unwrap_err()]
    });
    for error in errors {
        assert!(matches!(error, JoinError::Disagree { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("pid 1000 on host here") && text.contains("pid 1001 on host here"), "{text}");
    }
}

#[test]
fn a_port_in_use_is_said_to_be() {
    let taken = TcpListener::bind(local()).unwrap();
    let address = taken.local_addr().unwrap();
    let error = Server::start(address, ServerConfig::new(coordinator(1), Incarnation(1))).unwrap_err();
    assert!(matches!(error, ServeError::PortInUse { .. }), "{error:?}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

/// Starts an agent that gives up soon.
fn start_impatiently(address: String, patience: Duration) -> AgentError {
    let mut config = AgentConfig::new(address, process(0, 1), PATIENCE);
    config.times.register_timeout = patience;
    Agent::start(config).unwrap_err()
}

#[test]
fn what_is_at_the_address_instead_is_said() {
    let refused = {
        let listener = TcpListener::bind(local()).unwrap();
        listener.local_addr().unwrap()
    };
    // It tries again while there is time: on a busy machine the first may take all of it, and it is given more.
    let mut patience = Duration::from_millis(50);
    loop {
        let error = start_impatiently(refused.to_string(), patience);
        let AgentError::Unreachable { seen: Seen::Refused, tries, address, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*address, refused.to_string(), "{error}");
        if *tries > 1 {
            break;
        }
        patience *= 10;
        assert!(patience < PATIENCE, "{error}");
    }

    let other = TcpListener::bind(local()).unwrap();
    let address = other.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    let error = start_impatiently(address, PATIENCE);
    server.join().unwrap();
    assert!(error.to_string().contains("SSH-2.0-OpenSSH"), "{error}");

    for address in ["nowhere", "host:", ":80", "host:0", "host:99999"] {
        let error = start_impatiently(address.to_owned(), PATIENCE);
        assert!(matches!(error, AgentError::BadAddress { .. }), "{address}: {error:?}");
    }
}

#[test]
fn a_task_outside_the_cluster_is_refused() {
    let server = serve(coordinator(2));
    let config = AgentConfig::new(server.local_addr().to_string(), process(2, 1), PATIENCE);
    let error = Agent::start(config).unwrap_err();
    assert!(matches!(error, AgentError::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("job worker with 2 tasks"), "{error}");
}

#[test]
fn strangers_on_the_port_do_no_harm() {
    let server = serve(coordinator(1));
    let agent = agent(&server, 0);
    let http1 = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".as_slice();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    let garbage: Vec<u8> = (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let frame_too_long = [preface, &[0xff, 0xff, 0xff, 4, 0, 0, 0, 0, 0]].concat();
    let half = &preface[..10];
    for bytes in [http1, &garbage, &[preface, &garbage].concat(), &frame_too_long, half, &[]] {
        let mut stream = TcpStream::connect(server.local_addr()).unwrap();
        // The service may close before it has read all.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        let ended = stream.read_to_end(&mut answer);
        assert!(
            !matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
            "the service keeps a stranger's connection"
        );
    }
    assert_eq!(agent.kv_add("alive", 1), Ok(1));
    agent.leave().unwrap();
}

#[test]
fn a_connection_over_the_limit_is_closed_and_the_others_go_on() {
    let config = ServerConfig { connections_limit: 1, ..ServerConfig::new(coordinator(2), Incarnation(1)) };
    let server = Server::start(local(), config).unwrap();
    let first = agent(&server, 0);
    let error = {
        let mut config = AgentConfig::new(server.local_addr().to_string(), process(1, 1), PATIENCE);
        config.times.register_timeout = Duration::from_millis(50);
        Agent::start(config).unwrap_err()
    };
    assert!(matches!(error, AgentError::Unreachable { .. }), "{error:?}");
    assert_eq!(first.kv_add("alive", 1), Ok(1));
    first.leave().unwrap();
}
