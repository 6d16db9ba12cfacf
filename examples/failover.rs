//! Ranks that need their coordination service all the time, and notice nothing when it is killed.
//!
//! ```sh
//! cargo build --release --examples
//! target/release/ringway serve --ranks 4 --bind 127.0.0.1:29400 --state /tmp/job.state &
//! target/release/ringway run -n 4 --coordinator 127.0.0.1:29400 -- target/release/examples/failover 100
//! ```
//!
//! Each round every rank adds one to a key, waits at a barrier of the service, sees that all have added, and reduces a vector
//! with the others. Rank 0 prints the rounds. It ends after so many rounds, or, of 0, when the file that is named is there.
#![forbid(unsafe_code)]

use ringway::parts::control::rpc::client::Agent;
use ringway::{Communicator, ReduceOp};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// A barrier of the service takes as long as the service is away, at most.
const PATIENCE: Duration = Duration::from_secs(120);
/// Elements that are reduced.
const ELEMENTS: usize = 1000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(rounds) = args.first().and_then(|rounds| rounds.parse().ok()) else {
        eprintln!("usage: failover ROUNDS [FILE]");
        return ExitCode::from(2);
    };
    match work(rounds, args.get(1).map(Path::new)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn work(rounds: u64, until: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let comm = Communicator::from_env()?;
    let agent = comm.world().agent().ok_or("this process has left its job")?;
    let mut round = 0;
    loop {
        step(&comm, agent, round)?;
        round += 1;
        if comm.rank() == 0 {
            println!("round {round}");
        }
        let over = (rounds > 0 && round >= rounds) || until.is_some_and(Path::exists);
        // Rank 0 decides for all.
        let mut decision = [u8::from(over)];
        comm.broadcast(&mut decision, 0)?;
        if decision[0] == 1 {
            println!("rank {} is done after {round} rounds", comm.rank());
            return Ok(());
        }
    }
}

fn step(comm: &Communicator, agent: &Agent, round: u64) -> Result<(), Box<dyn Error>> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let key = format!("came/{round}");
    agent.kv_add(&key, 1)?;
    agent.barrier(&format!("round/{round}"), &[], PATIENCE)?;
    let came = String::from_utf8(agent.kv_get(&key, PATIENCE)?)?;
    if came != ranks.to_string() {
        return Err(
            format!("rank {rank}, round {round}: {came} of {ranks} came before the barrier passed").into()
        );
    }
    if rank == 0 && round > 1 {
        agent.kv_delete(&format!("came/{}", round - 2))?;
    }
    let mut values: Vec<u64> = (0..ELEMENTS as u64).map(|i| round + i * u64::from(rank)).collect();
    comm.all_reduce(&mut values, ReduceOp::Sum)?;
    let all: u64 = (0..u64::from(ranks)).sum();
    for (i, value) in values.iter().enumerate() {
        if *value != round * u64::from(ranks) + i as u64 * all {
            return Err(format!("rank {rank}, round {round}: element {i} is {value}").into());
        }
    }
    Ok(())
}
