//! Sessions from Rust, and the examples that train by them.

use ringway::session::{Code, GraphBuilder, Options, Session, SessionError};
use ringway::tensor::Tensor;
use rustix::process::Signal;

use crate::ports::free_ports;
use crate::process::{End, Run, command, example, ringway};

/// What a model trained by an example must reach on the digits that it was not trained with, in percent.
const ASKED: f64 = 95.0;

fn accuracy(end: &End) -> f64 {
    let line = end.stdout.iter().find_map(|line| line.strip_prefix("held-out accuracy: "));
    let line = line.unwrap_or_else(|| panic!("it says what was reached: {end:?}"));
    line.trim_end_matches(" %").parse().unwrap()
}

#[test]
fn mirrors_train_through_a_collective_operation_of_the_graph() {
    let end = Run::start(command(example("mirrored"))).end();
    assert_eq!(end.code(), 0, "{}", end.stderr);
    assert!(accuracy(&end) >= ASKED, "{end:?}");
}

#[test]
fn training_by_parameter_servers_outlives_a_worker() {
    let mut training = command(example("parameter_server"));
    training.args(["--sync", "--kill"]);
    let end = Run::start(training).end();
    assert_eq!(end.code(), 0, "{}", end.stderr);
    assert!(end.stdout.iter().any(|line| line == "worker 1 is killed"), "{end:?}");
    assert!(accuracy(&end) >= ASKED, "{end:?}");
}

#[test]
fn a_session_whose_master_died_says_so_and_what_to_do() {
    let port = free_ports(1);
    let cluster = format!(r#"{{"worker": ["127.0.0.1:{port}"]}}"#);
    let master = Run::start(ringway(&["serve", "--cluster", &cluster, "--job", "worker", "--task", "0"]));
    assert!(master.error_line().contains("SIGTERM ends it"));
    let mut graph = GraphBuilder::new();
    let seven = graph.constant(&Tensor::scalar(7.0_f32).unwrap());
    let target = format!("grpc://127.0.0.1:{port}");
    let mut session = Session::connect(&target, graph.finish().unwrap(), Options::default()).unwrap();
    assert_eq!(session.run(&[], &[&seven], &[]).unwrap()[0].single::<f32>().unwrap(), 7.0);
    master.signal(Signal::KILL);
    assert!(!master.end().status.success());
    let error = session.run(&[], &[&seven], &[]).unwrap_err();
    assert!(matches!(error, SessionError::Status { code: Code::Unavailable, .. }), "{error:?}");
    let said = error.to_string();
    assert!(
        said.contains(&target) && said.contains("its process ended") && said.contains("begin another"),
        "{said}"
    );
}
