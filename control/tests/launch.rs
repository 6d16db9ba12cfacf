//! Rank discovery against the environments in `fixtures/launch/`: recorded from the launcher, or written from its
//! documentation, as each file's first line says. A file without an expectation fails the test, and so does an
//! expectation without a file.

use std::collections::BTreeMap;
use std::path::Path;

use ringway_control::launch::{Explicit, Here, Launch, LaunchError, Vars};
use ringway_control::settings::{HostPort, Settings};

/// What each environment must be read as. `Ok`: `rank/size local/size at address, by whom, job`; a port that is
/// derived from the job id is written `~`, one that the system picks `0`. `Err`: parts of the message.
type Expected = Result<&'static str, &'static [&'static str]>;

const EXPECTED: &[(&str, Expected)] = &[
    (
        "kubernetes-no-coordinator",
        Err(&["rank 2 of 4", "RINGWAY_COORDINATOR=train-0.SERVICE:29400", "subdomain"]),
    ),
    (
        "kubernetes-no-size",
        Err(&["JOB_COMPLETION_INDEX is set", "RINGWAY_WORLD_SIZE is not", "spec.completions"]),
    ),
    (
        "kubernetes",
        Ok("2/4 -/- at train-0.train-net:29400 joins kubernetes-train by a Kubernetes indexed Job"),
    ),
    ("mpich-one-host", Ok("1/2 1/2 at 127.0.0.1:~ joins pmi-socket:[32515] by PMI (MPICH, Intel MPI)")),
    ("mpich-port", Err(&["PMI_PORT is set", "PMI_RANK is not"])),
    ("mpich-two-hosts", Err(&["rank 1 of 4", "-genv RINGWAY_COORDINATOR HOST:29400"])),
    ("nothing", Ok("0/1 0/1 at 127.0.0.1:0 hosts single-77 by a single process")),
    ("openmpi-half", Err(&["OMPI_COMM_WORLD_RANK is set", "OMPI_COMM_WORLD_SIZE is not"])),
    ("openmpi-one-host", Ok("1/2 1/2 at 127.0.0.1:~ joins openmpi-1298268161 by Open MPI or PMIx")),
    (
        "openmpi-two-hosts-coordinator",
        Ok("1/4 1/2 at node1:29400 joins openmpi-1298268161 by Open MPI or PMIx"),
    ),
    ("openmpi-two-hosts", Err(&["rank 1 of 4", "-x RINGWAY_COORDINATOR=HOST:29400"])),
    ("pmix-only", Err(&["PMIX_RANK is set", "OMPI_COMM_WORLD_SIZE is not", "RINGWAY_RANK"])),
    ("ringway-by-hand", Ok("0/2 -/- at [fd00::1]:29400 hosts ringway by RINGWAY_* variables")),
    ("ringway-half", Err(&["RINGWAY_RANK is set", "RINGWAY_WORLD_SIZE is not"])),
    ("ringway-no-coordinator", Err(&["rank 1 of 2", "set RINGWAY_COORDINATOR=HOST:PORT", "ringway run"])),
    ("ringway-no-rank", Err(&["RINGWAY_WORLD_SIZE is set", "RINGWAY_RANK is not"])),
    ("ringway-rank-too-large", Err(&["rank 2 of 2", "count from 0"])),
    ("ringway-run-in-slurm", Ok("3/4 3/4 at 127.0.0.1:41733 joins run-9f2c41d0 by RINGWAY_* variables")),
    ("ringway-run", Ok("3/4 3/4 at 127.0.0.1:41733 joins run-9f2c41d0 by RINGWAY_* variables")),
    ("ringway-unknown-setting", Err(&["RINGWAY_RNAK is no setting", "did you mean RINGWAY_RANK?"])),
    ("slurm-bad-nodelist", Err(&["SLURM_STEP_NODELIST=gpu[007-0", "brackets do not match"])),
    ("slurm-batch-script", Ok("0/1 0/1 at 127.0.0.1:0 hosts single-77 by a single process")),
    ("slurm-mpirun", Ok("1/4 1/2 at node1:29400 joins openmpi-1298268161 by Open MPI or PMIx")),
    ("slurm-no-nodelist", Err(&["SLURM_PROCID is set", "SLURM_JOB_NODELIST is not"])),
    ("slurm-pmi2", Ok("3/4 1/2 at gpu007:~ joins slurm-481516-0 by Slurm")),
    ("slurm-pmix", Ok("3/4 1/2 at gpu007:~ joins slurm-481516-0 by Slurm")),
    ("slurm-two-nodes", Ok("3/4 1/2 at gpu007:~ joins slurm-481516-0 by Slurm")),
    ("tf-config-broken", Err(&["TF_CONFIG: not valid JSON", "line 1 column 2"])),
    ("tf-config-no-task", Err(&["its task is not set"])),
    ("tf-config-ps", Err(&["this is ps:0", "no ranks", "ringway serve --cluster ... --job ps --task 0"])),
    ("tf-config-wrong-index", Err(&["no task worker:2", "worker:0=tf0:2222 worker:1=tf1:2222"])),
    ("tf-config", Ok("2/3 -/- at tf0:2222 joins tf-e01e142ad3b99121 by TF_CONFIG")),
    ("torchrun-half", Err(&["RANK is set", "WORLD_SIZE is not"])),
    ("torchrun-malformed", Err(&["RANK=${SLURM_PROCID}", "a whole number"])),
    ("torchrun-no-port", Err(&["RANK is set", "MASTER_PORT is not"])),
    (
        "torchrun-one-host",
        Ok(
            "2/4 2/4 at localhost:~ joins torchrun-localhost-44297-0b2b7e3c-4f0c-4bde-9d0f-8f4d3c1b5a77-0 by torchrun",
        ),
    ),
    (
        "torchrun-operator",
        Ok("2/4 -/- at train-master-0:23456 joins torchrun-train-master-0-23456-none-0 by torchrun"),
    ),
    (
        "torchrun-restarted",
        Ok(
            "2/4 2/4 at localhost:~ joins torchrun-localhost-44297-0b2b7e3c-4f0c-4bde-9d0f-8f4d3c1b5a77-1 by torchrun",
        ),
    ),
    ("world-size-without-rank", Err(&["WORLD_SIZE is set", "RANK is not"])),
];

fn here() -> Here {
    Here { pid: 77, parent_pid: 70, control_socket: Some("socket:[32515]".into()), host: "login1".into() }
}

fn read_fixture(name: &str) -> BTreeMap<String, String> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/launch").join(format!("{name}.env"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(text.starts_with("# "), "{name}: the first line says where it comes from");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once('=').expect("NAME=value")).map(|(n, v)| (n.into(), v.into())).collect()
}

fn discover(pairs: &BTreeMap<String, String>, explicit: &Explicit) -> Result<Launch, LaunchError> {
    let settings = Settings::from_pairs(pairs.clone())?;
    Launch::discover(explicit, &settings, &pairs.clone().into_iter().collect::<Vars>(), &here())
}

fn render(launch: &Launch) -> String {
    use ringway_control::launch::PortFrom;
    let or_dash = |number: Option<u32>| number.map_or("-".to_owned(), |n| n.to_string());
    let port = match launch.coordinator.port_from {
        PortFrom::Derived => "~".to_owned(),
        _ => launch.coordinator.address.port.to_string(),
    };
    let shown = launch.coordinator.address.to_string();
    let (host, _) = shown.rsplit_once(':').unwrap();
    format!(
        "{}/{} {}/{} at {host}:{port} {} {} by {}",
        launch.rank.0,
        launch.world_size,
        or_dash(launch.local_rank.map(|rank| rank.0)),
        or_dash(launch.local_size),
        if launch.coordinator.i_host { "hosts" } else { "joins" },
        launch.job_id,
        launch.found_by,
    )
}

#[test]
fn every_recorded_environment_is_read_as_expected() {
    for (name, expected) in EXPECTED {
        let found = discover(&read_fixture(name), &Explicit::default());
        match (expected, found) {
            (Ok(expected), Ok(launch)) => assert_eq!(render(&launch), *expected, "{name}"),
            (Err(parts), Err(error)) => {
                let message = error.to_string();
                for part in *parts {
                    assert!(message.contains(part), "{name}: {message:?} does not say {part:?}");
                }
            }
            (expected, found) => panic!("{name}: expected {expected:?}, found {found:?}"),
        }
    }
}

#[test]
fn every_fixture_has_an_expectation() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/launch");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let stem = name.strip_suffix(".env").unwrap_or_else(|| panic!("{name} is no .env file"));
        assert!(EXPECTED.iter().any(|(expected, _)| *expected == stem), "{name} is not tested");
    }
}

/// I2: whatever the rank, the same place and job; one host of the service.
#[test]
fn all_ranks_of_a_launch_agree() {
    for (name, rank_variable, size) in [
        ("openmpi-one-host", "OMPI_COMM_WORLD_RANK", 2),
        ("slurm-two-nodes", "SLURM_PROCID", 4),
        ("torchrun-one-host", "RANK", 4),
    ] {
        let mut pairs = read_fixture(name);
        let launches: Vec<Launch> = (0..size)
            .map(|rank| {
                pairs.insert(rank_variable.into(), rank.to_string());
                discover(&pairs, &Explicit::default()).unwrap()
            })
            .collect();
        assert!(launches.iter().all(|l| l.job_id == launches[0].job_id), "{name}");
        assert!(launches.iter().all(|l| l.coordinator.address == launches[0].coordinator.address), "{name}");
        let hosts: Vec<bool> = launches.iter().map(|l| l.coordinator.i_host).collect();
        assert_eq!(hosts.iter().filter(|hosts| **hosts).count(), 1, "{name}: {hosts:?}");
        assert!(hosts[0], "{name}: rank 0 runs the service");
    }
}

/// A restarted gang must not meet the one before: another job, and so another port.
#[test]
fn a_restarted_gang_is_another_job() {
    let before = discover(&read_fixture("torchrun-one-host"), &Explicit::default()).unwrap();
    let after = discover(&read_fixture("torchrun-restarted"), &Explicit::default()).unwrap();
    assert_ne!(before.job_id, after.job_id);
    assert_ne!(before.coordinator.address.port, after.coordinator.address.port);
}

#[test]
fn explicit_values_go_before_everything() {
    let explicit = Explicit {
        rank: Some(1),
        world_size: Some(3),
        coordinator: Some(HostPort { host: "head".into(), port: 5 }),
        job_id: Some("mine".into()),
    };
    let launch = discover(&read_fixture("slurm-two-nodes"), &explicit).unwrap();
    assert_eq!(render(&launch), "1/3 -/- at head:5 joins mine by explicit values");
    let half = Explicit { rank: Some(1), ..Explicit::default() };
    assert!(
        discover(&read_fixture("nothing"), &half)
            .unwrap_err()
            .to_string()
            .contains("the world size is not set")
    );
}

#[test]
fn a_second_size_must_agree() {
    let mut pairs = read_fixture("slurm-two-nodes");
    pairs.insert("RINGWAY_WORLD_SIZE".into(), "8".into());
    let message = discover(&pairs, &Explicit::default()).unwrap_err().to_string();
    assert!(message.contains("4 ranks while RINGWAY_WORLD_SIZE=8"), "{message}");
    pairs.insert("RINGWAY_WORLD_SIZE".into(), "4".into());
    assert!(discover(&pairs, &Explicit::default()).is_ok());
}

#[test]
fn a_service_outside_needs_an_address() {
    let mut pairs = read_fixture("openmpi-one-host");
    pairs.insert("RINGWAY_COORDINATOR_BY".into(), "outside".into());
    let message = discover(&pairs, &Explicit::default()).unwrap_err().to_string();
    assert!(message.contains("set RINGWAY_COORDINATOR=HOST:PORT"), "{message}");
}

#[test]
fn ipv6_only_hosts_meet_on_ipv6_loopback() {
    let mut pairs = read_fixture("openmpi-one-host");
    pairs.insert("RINGWAY_SOCKET_FAMILY".into(), "AF_INET6".into());
    let launch = discover(&pairs, &Explicit::default()).unwrap();
    assert_eq!(launch.coordinator.address.host, "::1");
}

/// MPICH names no job: without the control socket, the process that started the ranks tells jobs apart.
#[test]
fn mpich_without_a_control_socket_goes_by_the_parent() {
    let pairs = read_fixture("mpich-one-host");
    let settings = Settings::from_pairs(pairs.clone()).unwrap();
    let vars: Vars = pairs.into_iter().collect();
    let here = Here { control_socket: None, ..here() };
    let launch = Launch::discover(&Explicit::default(), &settings, &vars, &here).unwrap();
    assert_eq!(launch.job_id, "pmi-70");
}
