//! Trains a small network on handwritten digits with parameter servers: variables live on the tasks of job `ps`, each
//! worker computes gradients from its part of the images.
//!
//! ```text
//! cargo run --example parameter_server              # asynchronous: each worker updates when it is done
//! cargo run --example parameter_server -- --sync    # synchronous: one update from all workers' gradients
//! cargo run --example parameter_server -- --kill    # and a worker dies on the way
//! ```
//!
//! Without `--cluster` it starts its own tasks on this host. A worker that dies costs its part of the work: the others go
//! on, and it is taken back when it answers again.
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::Parser;
use ringway::session::{GraphBuilder, Op, Options, Session};
use ringway::tensor::{Tensor, TensorError};

use cluster::Cluster;
use data::Images;
use model::{RATE, Tower, Variables, accuracy, batch, tower, variables};
use random::Random;

#[path = "../strategies/cluster.rs"]
#[allow(dead_code, reason = "the other strategy also counts tasks")]
mod cluster;
#[path = "../train_digits/data.rs"]
mod data;
#[path = "../strategies/model.rs"]
#[allow(dead_code, reason = "the other strategy also shows the loss")]
mod model;
#[path = "../train_digits/random.rs"]
mod random;

/// How long a worker that does not answer is waited for before its session is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// Learns to read handwritten digits, with parameters on servers of their own.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Train on the tasks of this cluster, jobs `ps` and `worker`, as `ringway serve` takes it
    #[arg(long, value_name = "JSON")]
    cluster: Option<String>,
    /// Parameter servers to start
    #[arg(long, default_value_t = 2)]
    servers: usize,
    /// Workers to start
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// One update from all workers' gradients, instead of one update from each
    #[arg(long)]
    sync: bool,
    /// Kill a worker in the middle, and start it again
    #[arg(long, conflicts_with = "cluster")]
    kill: bool,
    /// Times that all images are learned from
    #[arg(long, default_value_t = 40)]
    epochs: usize,
    /// Images in a worker's batch
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Decides the order of the images and the first weights
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("parameter_server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut cluster = match &args.cluster {
        Some(description) => Cluster::outside(description)?,
        None => Cluster::start(&[("ps", args.servers), ("worker", args.workers)])?,
    };
    cluster.wait()?;
    let (images, held_out) = data::load()?;
    let (servers, workers) = (cluster.targets("ps"), cluster.targets("worker"));
    let chief = servers.first().ok_or("the cluster has no job `ps`")?;
    let plan = Plan { args, images: &images, servers: servers.len(), done: AtomicUsize::new(0) };
    println!(
        "servers: {}, workers: {}, {}",
        servers.len(),
        workers.len(),
        if args.sync { "synchronous" } else { "asynchronous" }
    );

    let (graph, parts) = plan.graph(&[])?;
    Session::connect(chief, graph, Options::default())?.run(&[], &[], &[&parts.init])?;
    let victim = args.kill.then(|| workers.len() - 1);
    let cluster = Mutex::new(&mut cluster);
    let accident = || {
        let Some(victim) = victim else { return Ok(()) };
        let mut cluster = cluster.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        cluster.kill("worker", victim)?;
        println!("worker {victim} is killed");
        cluster.start_task("worker", victim)
    };
    if args.sync {
        plan.synchronous(chief, workers.len(), accident)?
    } else {
        plan.asynchronous(&workers, accident)?
    }

    let (graph, parts) = plan.graph(&[])?;
    let mut session = Session::connect(chief, graph, Options::default())?;
    let (pixels, _) = batch(&held_out)?;
    let guesses = session.run(&[(&parts.reader.images, &pixels)], &[&parts.reader.guesses], &[])?;
    session.close()?;
    let right = accuracy(&guesses[0], &held_out)?;
    println!("held-out accuracy: {:.2} %", right * 100.0);
    if right < 0.95 { Err("it should be 95 % or more".into()) } else { Ok(()) }
}

/// What is trained, and how far it is.
struct Plan<'a> {
    args: &'a Args,
    images: &'a Images,
    servers: usize,
    /// Batches that were learned from.
    done: AtomicUsize,
}

/// The parts of the graph that are run.
struct Parts {
    init: Op,
    /// The network on a server, for the accuracy.
    reader: Tower,
    /// One for each worker asked for, with the update from its gradients.
    towers: Vec<(Tower, Op)>,
    /// One update from the mean of all towers' gradients.
    together: Option<Op>,
}

impl Plan<'_> {
    /// The variables on the servers, and a tower on each of these workers.
    fn graph(&self, workers: &[usize]) -> Result<(ringway::session::GraphDef, Parts), Box<dyn Error>> {
        let mut graph = GraphBuilder::new();
        let place = |number: usize| format!("/job:ps/task:{}", number % self.servers);
        let Variables { handles, init } = variables(&mut graph, "", self.args.seed, place)?;
        let reader = tower(&mut graph, "reader", &place(0), &handles)?;
        let rate = Tensor::scalar(RATE)?;
        let update = |graph: &mut GraphBuilder, name: &str, gradients: &[_]| {
            let pairs = handles.iter().zip(gradients).enumerate();
            let ops: Vec<Op> = pairs
                .map(|(number, (variable, gradient))| {
                    graph.on(&place(number), |graph| {
                        let rate = graph.constant(&rate);
                        graph.gradient_descent(variable, &rate, gradient)
                    })
                })
                .collect();
            graph.on(&place(0), |graph| graph.group(name, &ops))
        };
        let mut towers = Vec::new();
        for worker in workers {
            let name = format!("worker_{worker}");
            let tower = tower(&mut graph, &name, &format!("/job:worker/task:{worker}"), &handles)?;
            let apply = update(&mut graph, &format!("{name}/update"), &tower.gradients);
            towers.push((tower, apply));
        }
        let together = if towers.is_empty() {
            None
        } else {
            let share = Tensor::scalar(1.0 / towers.len() as f32)?;
            let means: Vec<_> = (0..handles.len())
                .map(|number| {
                    let all: Vec<_> =
                        towers.iter().map(|(tower, _)| tower.gradients[number].clone()).collect();
                    graph.on(&place(number), |graph| {
                        let (sum, share) = (graph.add_n(&all), graph.constant(&share));
                        graph.mul(&sum, &share)
                    })
                })
                .collect();
            Some(update(&mut graph, "together", &means))
        };
        Ok((graph.finish()?, Parts { init, reader, towers, together }))
    }

    fn batches(&self) -> usize {
        self.args.epochs * self.images.len().div_ceil(self.args.batch)
    }

    /// The images of one batch.
    fn batch(&self, number: usize) -> Result<(Tensor, Tensor), TensorError> {
        let in_epoch = self.images.len().div_ceil(self.args.batch);
        let order = Random::new(self.args.seed + (number / in_epoch) as u64).order(self.images.len());
        let from = number % in_epoch * self.args.batch;
        batch(&self.images.pick(&order[from..(from + self.args.batch).min(order.len())]))
    }

    /// Each worker, with a session of its own at its own master, takes the next batch until there is none.
    fn asynchronous(
        &self,
        workers: &[String],
        accident: impl Fn() -> Result<(), Box<dyn Error>> + Sync,
    ) -> Result<(), Box<dyn Error>> {
        let half = self.batches() / 2;
        std::thread::scope(|scope| {
            let threads: Vec<_> = workers
                .iter()
                .enumerate()
                .map(|(worker, target)| {
                    scope.spawn(move || self.work(worker, target).map_err(|e| e.to_string()))
                })
                .collect();
            let struck = scope.spawn(|| {
                while self.done.load(Ordering::Relaxed) < half {
                    std::thread::sleep(Duration::from_millis(1));
                }
                accident().map_err(|e| e.to_string())
            });
            for (worker, thread) in threads.into_iter().enumerate() {
                thread.join().map_err(|_| format!("the thread of worker {worker} panicked"))??;
            }
            struck.join().map_err(|_| "the accident panicked")??;
            Ok(())
        })
    }

    fn work(&self, worker: usize, target: &str) -> Result<(), Box<dyn Error>> {
        let (graph, parts) = self.graph(&[worker])?;
        let (tower, update) = &parts.towers[0];
        let mut session = None;
        loop {
            let number = self.done.fetch_add(1, Ordering::Relaxed);
            if number >= self.batches() {
                return Ok(());
            }
            let (pixels, digits) = self.batch(number)?;
            let step = self.step(target, &graph, &mut session, |session| {
                session.run(&[(&tower.images, &pixels), (&tower.digits, &digits)], &[], &[update])
            });
            if let Err(error) = step {
                // This batch is lost, as it would be with any worker that dies; the others go on.
                println!("worker {worker}: {error}");
                session = None;
                std::thread::sleep(RETRY);
            }
        }
    }

    /// Runs a step, in a new session if there is none.
    fn step<T>(
        &self,
        target: &str,
        graph: &ringway::session::GraphDef,
        session: &mut Option<Session>,
        run: impl FnOnce(&mut Session) -> Result<T, ringway::session::SessionError>,
    ) -> Result<T, ringway::session::SessionError> {
        let session = match session {
            Some(session) => session,
            none => none.insert(Session::connect(target, graph.clone(), Options::default())?),
        };
        run(session)
    }

    /// One step after the other at the first server's master, each over all workers that live.
    fn synchronous(
        &self,
        chief: &str,
        workers: usize,
        accident: impl Fn() -> Result<(), Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        let all: Vec<usize> = (0..workers).collect();
        let (graph, parts) = self.graph(&all)?;
        let together = parts.together.as_ref().ok_or("the cluster has no job `worker`")?;
        let (mut session, mut number, half) = (None, 0, self.batches() / 2);
        let mut struck = false;
        while number < self.batches() {
            if number >= half && !std::mem::replace(&mut struck, true) {
                accident()?;
            }
            let batches = (number..number + workers).map(|n| self.batch(n)).collect::<Result<Vec<_>, _>>()?;
            let feeds = parts.towers.iter().zip(&batches).flat_map(|((tower, _), (pixels, digits))| {
                [(&tower.images, pixels), (&tower.digits, digits)]
            });
            let feeds: Vec<_> = feeds.collect();
            match self.step(chief, &graph, &mut session, |session| session.run(&feeds, &[], &[together])) {
                Ok(_) => number += workers,
                Err(error) => {
                    // Nothing was updated: the same batches again, once the worker is back.
                    println!("the step failed: {error}");
                    std::thread::sleep(RETRY);
                }
            }
        }
        Ok(())
    }
}
