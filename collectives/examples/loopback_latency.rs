//! What a call costs in the engine alone: one rank, and two ranks as threads over loopback. Medians, in nanoseconds.
//!
//! `cargo run --release -p ringway-collectives --example loopback_latency`

use ringway_collectives::engine::{Communicator, EngineOptions, GroupInfo, Member};
use ringway_collectives::reduce::ReduceOp;
use ringway_dataplane::fabric::SpinPolicy;
use ringway_dataplane::transport::{Hub, LoopbackConfig, Peer};
use ringway_topology::model::order::Site;
use std::time::Instant;

const ROUNDS: usize = 20_000;

fn communicators(n: u32) -> Vec<Communicator> {
    let member = |r| Member {
        peer: Peer(r),
        host: "here".into(),
        pid: std::process::id(),
        incarnation: 1,
        site: Site::default(),
    };
    let members: Vec<Member> = (0..n).map(member).collect();
    let options = EngineOptions { spin: SpinPolicy::Micros(100), ..EngineOptions::default() };
    let transports = Hub::new(LoopbackConfig::default()).group(n).expect("file descriptors");
    let join = |(transport, my_rank)| {
        let group = GroupInfo { id: 1, my_rank, members: members.clone() };
        Communicator::new(Box::new(transport), group, options.clone()).expect("a well-formed group")
    };
    transports.into_iter().zip(0..).map(join).collect()
}

fn median_ns(c: &Communicator, elements: usize) -> u128 {
    let mut buffer = vec![1.0f32; elements];
    let mut times: Vec<u128> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            c.all_reduce(&mut buffer, ReduceOp::Max).expect("both ranks are here");
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    times[ROUNDS / 2]
}

fn main() {
    for n in [1, 2] {
        for elements in [2, 512, 8192] {
            let medians: Vec<u128> = std::thread::scope(|scope| {
                let threads: Vec<_> = communicators(n)
                    .into_iter()
                    .map(|c| scope.spawn(move || median_ns(&c, elements)))
                    .collect();
                threads.into_iter().map(|t| t.join().expect("no rank panics")).collect()
            });
            println!("{n} ranks, {} bytes: {medians:?} ns", elements * 4);
        }
    }
}
