//! `ringway serve`: clusters that are sound and not, ports that are free and not, and its end.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use std::sync::mpsc;
use std::time::Duration;

use ringway_control::core::coordination::request::Process;
use ringway_control::rpc::client::{Agent, AgentConfig};
use ringway_topology::{HostId, Incarnation, TaskId};
use rustix::process::Signal;

use crate::ports::free_ports;
use crate::process::{Folder, Run, ringway};

/// Starts a service and waits until it says where it is.
fn served(arguments: &[&str]) -> (Run, String) {
    let run = Run::start(ringway(&[&["serve"], arguments].concat()));
    let line = run.error_line();
    let address = line.split(", at ").nth(1).and_then(|rest| rest.split(';').next());
    let address = address.unwrap_or_else(|| panic!("it says where it is: {line}")).to_owned();
    (run, address)
}

#[test]
fn serves_until_sigterm() {
    let port = free_ports(1);
    let folder = Folder::new("serve");
    let cluster =
        format!(r#"{{"worker": ["127.0.0.1:{port}", "127.0.0.1:1"], "ps": {{"0": "127.0.0.1:2"}}}}"#);
    let file = folder.file("cluster.json", &cluster);
    for cluster in [cluster, file] {
        let (run, address) = served(&["--cluster", &cluster, "--job", "worker", "--task", "0"]);
        assert_eq!(address, format!("127.0.0.1:{port}"));
        // An HTTP/2 server answers the preface with its settings (frame type 4 on stream 0).
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        let mut header = [0; 9];
        stream.read_exact(&mut header).unwrap();
        assert_eq!((header[3], &header[5..]), (4, &[0u8; 4][..]));
        run.signal(Signal::TERM);
        assert_eq!(run.end().code(), 0);
    }
}

#[test]
fn bind_goes_before_the_tasks_own_address() {
    let cluster = r#"{"worker": ["203.0.113.7:29400"]}"#;
    let bind = format!("127.0.0.1:{}", free_ports(1));
    let (run, address) = served(&["--cluster", cluster, "--job", "worker", "--task", "0", "--bind", &bind]);
    assert_eq!(address, bind);
    run.signal(Signal::INT);
    assert_eq!(run.end().code(), 0);
}

#[test]
fn a_port_in_use_is_named() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let cluster = format!(r#"{{"worker": ["{address}"]}}"#);
    let end = Run::start(ringway(&["serve", "--cluster", &cluster, "--job", "worker", "--task", "0"])).end();
    assert_eq!(end.code(), 125);
    assert!(end.stderr.contains(&address) && end.stderr.contains("in use"), "{}", end.stderr);
}

#[test]
fn what_cannot_be_served_is_explained() {
    for (cluster, job, task, said) in [
        (r#"{"worker": ["a:1"]"#, "worker", "0", "not valid JSON"),
        (r#"{"worker": ["a:1"], "worker": ["b:1"]}"#, "worker", "0", "job worker is given twice"),
        (r#"{"worker": {"0": "a:1", "0": "b:1"}}"#, "worker", "0", "task worker:0 is given twice"),
        (r#"{"worker": {"0": "a:1", "2": "b:1"}}"#, "worker", "0", "task worker:1 is missing"),
        (r#"{"worker": ["a:1", "a:1"]}"#, "worker", "0", "both have the address a:1"),
        (r#"{"worker": ["a:1"]}"#, "worker", "1", "no task worker:1; it has worker:0=a:1"),
        (r#"{"worker": ["a:1"]}"#, "ps", "0", "no task ps:0"),
        (r#"{"worker": ["no.such.host.invalid:1"]}"#, "worker", "0", "give --bind"),
        (r#"{"worker": ["203.0.113.7:1111"]}"#, "worker", "0", "whoever reaches that port could take part"),
        ("/no/such/file", "worker", "0", "/no/such/file"),
        ("/dev/zero", "worker", "0", "longer than 16777216 bytes"),
    ] {
        let end = Run::start(ringway(&["serve", "--cluster", cluster, "--job", job, "--task", task])).end();
        assert_eq!(end.code(), 125, "{cluster}");
        assert!(end.stderr.contains(said), "{cluster}: {}", end.stderr);
    }
    let end = Run::start(ringway(&["serve", "--ranks", "0", "--bind", "127.0.0.1:1"])).end();
    assert!(end.stderr.contains("0 is not in 1..="), "{}", end.stderr);
    let elsewhere = r#"{"worker": ["203.0.113.7:1111"]}"#;
    let arguments = ["serve", "--cluster", elsewhere, "--job", "worker", "--task", "0", "--insecure"];
    let end = Run::start(ringway(&arguments)).end();
    assert!(end.stderr.contains("no such address"), "{}", end.stderr);
    let arguments =
        ["serve", "--cluster", r#"{"worker": ["a:1"]}"#, "--job", "worker", "--task", "0", "--bind", "x"];
    let end = Run::start(ringway(&arguments)).end();
    assert!(end.stderr.contains("--bind x is not HOST:PORT"), "{}", end.stderr);
}

#[test]
fn beyond_this_host_it_listens_for_those_who_have_the_token() {
    let folder = Folder::new("token");
    let cluster = format!(r#"{{"worker": ["0.0.0.0:{}"]}}"#, free_ports(1));
    let arguments = ["--cluster", cluster.as_str(), "--job", "worker", "--task", "0"];
    let end = Run::start(ringway(&[&["serve"], &arguments[..]].concat())).end();
    assert_eq!(end.code(), 125);
    assert!(end.stderr.contains("RINGWAY_TOKEN_FILE") && end.stderr.contains("--insecure"), "{}", end.stderr);
    let file = folder.file("token", "0123456789abcdef0123456789abcdef\n");
    let (run, _) = served(&[&arguments[..], &["--token-file", &file]].concat());
    // SIGHUP is no end of it.
    run.signal(Signal::HUP);
    let line = run.error_line();
    assert!(line.contains("no certificates to read again"), "{line}");
    run.signal(Signal::TERM);
    assert_eq!(run.end().code(), 0);
    let (run, _) = served(&[&arguments[..], &["--insecure"]].concat());
    run.signal(Signal::TERM);
    assert_eq!(run.end().code(), 0);
    let end = Run::start(ringway(&[&["serve"], &arguments[..], &["--tls-cert", "x"]].concat())).end();
    assert!(end.stderr.contains("RINGWAY_TLS_CERT is given and RINGWAY_TLS_KEY is not"), "{}", end.stderr);
}

/// A rank that is connected to a service.
fn rank(address: &str, rank: u32) -> Agent {
    let process = Process {
        task: TaskId::new("worker", rank).unwrap(),
        incarnation: Incarnation(50 + u64::from(rank)),
        host: HostId::new("here", "boot").unwrap(),
        pid: 1000,
    };
    Agent::start(AgentConfig::new(address.to_owned(), process, Duration::from_secs(60))).unwrap()
}

#[test]
fn a_coordinator_that_is_to_end_tells_its_ranks_and_waits_for_them() {
    let bind = format!("127.0.0.1:{}", free_ports(1));
    let (run, address) = served(&["--ranks", "1", "--bind", &bind]);
    let agent = rank(&address, 0);
    let (told, hears) = mpsc::channel();
    agent.on_preemption(move |when| told.send(when).unwrap());
    run.signal(Signal::TERM);
    assert!(hears.recv_timeout(Duration::from_secs(60)).unwrap().is_some());
    let line = run.error_line();
    assert!(line.contains("are told; ending when they have left"), "{line}");
    agent.leave().unwrap();
    assert_eq!(run.end().code(), 0);
}

#[test]
fn a_coordinator_whose_state_is_kept_ends_at_once() {
    let folder = Folder::new("kept");
    let bind = format!("127.0.0.1:{}", free_ports(1));
    let file = folder.path_of("job.state");
    let (run, address) = served(&["--ranks", "1", "--bind", &bind, "--state", &file]);
    let agent = rank(&address, 0);
    run.signal(Signal::TERM);
    let end = run.end();
    assert_eq!(end.code(), 0);
    assert!(!end.stderr.contains("are told"), "{}", end.stderr);
    drop(agent);
}
