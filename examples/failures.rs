//! What every rank is told when one of them does something wrong.
//!
//! ```sh
//! cargo build --release --examples
//! target/release/ringway run -n 4 --tag -- target/release/examples/failures count
//! ```
//!
//! The last rank makes the mistake that the argument names; all ranks print what their own call answered, and exit with
//! 1 if it was an error.
#![forbid(unsafe_code)]

use ringway::{CollectiveError, Communicator, ReduceOp};
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

const MISTAKES: &str = "count      gives twice the elements
type       gives i32 where the others give f32
operation  asks for the maximum where the others ask for the sum
root       broadcasts from itself where the others expect rank 0
order      makes two calls in the other order
skip       leaves out a call
abort      ends the communicator with words of its own
panic      panics in the middle
exit       exits in the middle, without a word
late MS    comes late, which is no mistake";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(mistake) = args.first() else {
        eprintln!("usage: failures MISTAKE, made by the last rank:\n{MISTAKES}");
        return ExitCode::from(2);
    };
    let comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => {
            // In one write: other ranks write to the same file, and `eprintln!` writes each of its parts by itself.
            let _ = io::stderr().write_all(format!("{error}\n").as_bytes());
            return ExitCode::FAILURE;
        }
    };
    match calls(&comm, mistake, args.get(1).and_then(|ms| ms.parse().ok()).unwrap_or(0)) {
        Ok(()) => {
            println!("rank {}: fine", comm.rank());
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("rank {}: {error}", comm.rank());
            ExitCode::FAILURE
        }
    }
}

fn calls(comm: &Communicator, mistake: &str, late_ms: u64) -> Result<(), CollectiveError> {
    let culprit = comm.rank() + 1 == comm.size();
    let mut floats = vec![1.0f32; 1000];
    comm.all_reduce(&mut floats, ReduceOp::Sum)?;
    match mistake {
        "count" if culprit => comm.all_reduce(&mut vec![1.0f32; 2000], ReduceOp::Sum)?,
        "type" if culprit => comm.all_reduce(&mut vec![1i32; 1000], ReduceOp::Sum)?,
        "operation" if culprit => comm.all_reduce(&mut floats, ReduceOp::Max)?,
        "root" => comm.broadcast(&mut floats, if culprit { comm.rank() } else { 0 })?,
        "order" if culprit => {
            comm.broadcast(&mut floats, 0)?;
            comm.all_reduce(&mut floats, ReduceOp::Sum)?;
        }
        "order" => {
            comm.all_reduce(&mut floats, ReduceOp::Sum)?;
            comm.broadcast(&mut floats, 0)?;
        }
        "skip" if culprit => {}
        "abort" if culprit => comm.abort("the data of shard 7 is damaged"),
        "panic" if culprit => panic!("no data in shard 7"),
        "exit" if culprit => std::process::exit(3),
        "late" if culprit => {
            std::thread::sleep(Duration::from_millis(late_ms));
            comm.all_reduce(&mut floats, ReduceOp::Sum)?;
        }
        _ => comm.all_reduce(&mut floats, ReduceOp::Sum)?,
    }
    // Whoever got through before the others noticed hears of it here.
    comm.barrier()
}
