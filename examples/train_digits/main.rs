//! Trains a small network on handwritten digits, on any number of ranks:
//!
//! ```text
//! ringway run -n 4 -- target/release/examples/train_digits --epochs 20
//! ```
//!
//! Every rank holds the whole network and learns from its part of each batch. The gradient of a layer is
//! summed over the ranks (`all_reduce_start`) while the gradients of the layers before it are computed. The
//! result is that of one process, but for rounding (`--check-single`), and the same bits on every run with
//! the same number of ranks.
#![forbid(unsafe_code)]

mod data;
mod net;
mod random;
mod ranks;
mod train;

use clap::Parser;
use net::{Alone, Net};
use ringway::{Communicator, ReduceOp};
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;
use train::{Plan, WIDTHS, epoch};

/// Learns to read handwritten digits, together with the other ranks.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    plan: Plan,
    /// Train once more in one process, and fail where the losses differ by more than rounding
    #[arg(long)]
    check_single: bool,
}

/// Losses differ by this fraction at most from those of one process. Sums are grouped in another way, and
/// every step builds on the rounding of the last: 1e-6 after 20 epochs by default. A step size too large for
/// the batch makes training itself chaotic, and then no two groupings stay together.
const SINGLE_TOLERANCE: f64 = 1e-3;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("train_digits: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let began = Instant::now();
    let comm = Communicator::from_env()?;
    let (images, held_out) = data::load()?;
    let plan = &args.plan;
    let say = |line: String| {
        if comm.rank() == 0 {
            println!("{line}");
        }
    };
    say(format!(
        "ranks: {}, images to learn from: {} in batches of {}, held out: {}, seed: {}",
        comm.size(),
        images.len(),
        plan.batch,
        held_out.len(),
        plan.seed
    ));

    let mut net = Net::new(&WIDTHS, plan.seed, &comm)?;
    for parameters in net.parameters_mut() {
        comm.broadcast(parameters, 0)?;
    }
    let place = (comm.rank() as usize, comm.size() as usize);
    let mut losses = Vec::new();
    for number in 1..=plan.epochs {
        let mut loss = [epoch(&mut net, &comm, &images, plan, number, place)?];
        comm.all_reduce(&mut loss, ReduceOp::Sum)?;
        let loss = loss[0] / images.len() as f64;
        say(format!("epoch {number:3}  loss {loss:.6}"));
        losses.push(loss);
    }

    let checksum = net.checksum();
    all_agree(&comm, checksum)?;
    let accuracy = 100.0 * net.correct(held_out.pixels(), held_out.labels()) as f64 / held_out.len() as f64;
    let seconds = began.elapsed().as_secs_f64();
    say(format!("accuracy {accuracy:.2} % held out, weights {checksum:016x}, {seconds:.2} s"));
    if args.check_single && comm.rank() == 0 {
        println!("{}", check_single(plan, &images, &losses)?);
    }
    Ok(())
}

/// Fails, on every rank, unless all ranks hold the same weights.
fn all_agree(comm: &Communicator, checksum: u64) -> Result<(), Box<dyn Error>> {
    let (mut lowest, mut highest) = ([checksum], [checksum]);
    comm.all_reduce(&mut lowest, ReduceOp::Min)?;
    comm.all_reduce(&mut highest, ReduceOp::Max)?;
    if lowest != highest {
        return Err(format!("the ranks' weights differ: rank {} has {checksum:016x}", comm.rank()).into());
    }
    Ok(())
}

/// Trains in this process alone and compares the loss of every epoch.
fn check_single(plan: &Plan, images: &data::Images, losses: &[f64]) -> Result<String, Box<dyn Error>> {
    let mut net = Net::new(&WIDTHS, plan.seed, &Alone)?;
    let mut worst: f64 = 0.0;
    for (number, together) in (1..=plan.epochs).zip(losses) {
        let alone = epoch(&mut net, &Alone, images, plan, number, (0, 1))? / images.len() as f64;
        let difference = (together - alone).abs() / alone.max(f64::MIN_POSITIVE);
        if difference.is_nan() || difference > SINGLE_TOLERANCE {
            return Err(format!(
                "epoch {number}: loss {together} together, {alone} in one process: a smaller --rate?"
            )
            .into());
        }
        worst = worst.max(difference);
    }
    Ok(format!("one process has the same losses to within {worst:.1e}"))
}
