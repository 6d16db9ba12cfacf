//! Trains a small network on handwritten digits with mirrored variables: each worker holds the whole network and learns
//! from its part of every batch; gradients are summed over the workers by a collective operation in the graph.
//!
//! ```text
//! cargo run --example mirrored
//! ```
//!
//! Without `--cluster` it starts its own tasks on this host.
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use ringway::session::{GraphBuilder, Op, Options, Output, Session};
use ringway::tensor::{Tensor, TensorError};

use cluster::Cluster;
use model::{RATE, Tower, accuracy, batch, tower, variables};
use random::Random;

#[path = "../strategies/cluster.rs"]
#[allow(dead_code, reason = "the other strategy also kills tasks")]
mod cluster;
#[path = "../train_digits/data.rs"]
mod data;
#[path = "../strategies/model.rs"]
mod model;
#[path = "../train_digits/random.rs"]
mod random;

/// Learns to read handwritten digits, with a copy of the network on every worker.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Train on the tasks of this cluster, job `worker`, as `ringway serve` takes it
    #[arg(long, value_name = "JSON")]
    cluster: Option<String>,
    /// Workers to start
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Times that all images are learned from
    #[arg(long, default_value_t = 40)]
    epochs: usize,
    /// Images in a batch, shared out over the workers
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Decides the order of the images and the first weights
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mirrored: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One worker's copy of the network.
struct Mirror {
    tower: Tower,
    init: Op,
    update: Op,
}

/// A mirror on each of so many workers, whose gradients are summed.
fn mirrors(graph: &mut GraphBuilder, workers: usize, seed: u64) -> Result<Vec<Mirror>, TensorError> {
    let share = Tensor::scalar(RATE / workers as f32)?;
    let number = |graph: &mut GraphBuilder, n: usize| -> Result<Output, TensorError> {
        Ok(graph.constant(&Tensor::scalar(n as i32)?))
    };
    let mut all = Vec::new();
    for worker in 0..workers {
        let device = format!("/job:worker/task:{worker}");
        let variables = variables(graph, &format!("_{worker}"), seed, |_| device.clone())?;
        let tower = tower(graph, &format!("worker_{worker}"), &device, &variables.handles)?;
        let updates = graph.on(&device, |graph| -> Result<Vec<Op>, TensorError> {
            let mut updates = Vec::new();
            for (instance, (variable, gradient)) in variables.handles.iter().zip(&tower.gradients).enumerate()
            {
                let (size, group) = (number(graph, workers)?, number(graph, 1)?);
                let instance = number(graph, instance + 1)?;
                let sum = graph
                    .node("CollectiveReduceV2")
                    .attr("merge_op", "Add")
                    .attr("final_op", "Id")
                    .input(gradient)
                    .input(&size)
                    .input(&group)
                    .input(&instance)
                    .inputs(&[])
                    .one();
                let share = graph.constant(&share);
                updates.push(graph.gradient_descent(variable, &share, &sum));
            }
            Ok(updates)
        })?;
        let update = graph.on(&device, |graph| graph.group(&format!("worker_{worker}/update"), &updates));
        all.push(Mirror { tower, init: variables.init, update });
    }
    Ok(all)
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let cluster = match &args.cluster {
        Some(description) => Cluster::outside(description)?,
        None => Cluster::start(&[("worker", args.workers)])?,
    };
    cluster.wait()?;
    let workers = cluster.count("worker");
    let targets = cluster.targets("worker");
    let chief = targets.first().ok_or("the cluster has no job `worker`")?;
    let (images, held_out) = data::load()?;
    println!("workers: {workers}, images to learn from: {}, held out: {}", images.len(), held_out.len());

    let mut graph = GraphBuilder::new();
    let mirrors = mirrors(&mut graph, workers, args.seed)?;
    let options = Options::default().collectives_led_by("/job:worker/replica:0/task:0");
    let mut session = Session::connect(chief, graph.finish()?, options)?;
    session.run(&[], &[], &mirrors.iter().map(|mirror| &mirror.init).collect::<Vec<_>>())?;
    let updates: Vec<&Op> = mirrors.iter().map(|mirror| &mirror.update).collect();
    for epoch in 0..args.epochs {
        let order = Random::new(args.seed + epoch as u64).order(images.len());
        let mut loss = 0.0;
        // Parts of one size, so that the mean over the workers is the mean over the batch.
        let each = args.batch / workers;
        let steps = images.len() / (each * workers);
        for step in order.chunks_exact(each * workers) {
            let parts = step.chunks_exact(each).map(|part| batch(&images.pick(part)));
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            let feeds = mirrors.iter().zip(&parts).flat_map(|(mirror, (pixels, digits))| {
                [(&mirror.tower.images, pixels), (&mirror.tower.digits, digits)]
            });
            let feeds: Vec<_> = feeds.collect();
            let losses = session.run(&feeds, &[&mirrors[0].tower.loss], &updates)?;
            loss += losses[0].single::<f32>()? / steps as f32;
        }
        if (epoch + 1) % 10 == 0 {
            println!("epoch {:3}: loss {loss:.4}", epoch + 1);
        }
    }
    let (pixels, _) = batch(&held_out)?;
    let mut right = Vec::new();
    for mirror in &mirrors {
        let guesses = session.run(&[(&mirror.tower.images, &pixels)], &[&mirror.tower.guesses], &[])?;
        right.push(accuracy(&guesses[0], &held_out)?);
    }
    session.close()?;
    println!("held-out accuracy: {:.2} %", right[0] * 100.0);
    if right.iter().any(|copy| (copy - right[0]).abs() > f64::EPSILON) {
        return Err(format!("the copies differ: {right:?}").into());
    }
    if right[0] < 0.95 { Err("it should be 95 % or more".into()) } else { Ok(()) }
}
