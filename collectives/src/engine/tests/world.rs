//! Ranks of one group on one loopback hub, stepped in a random order that a seed fixes.

use crate::engine::core::{CallRegions, Core};
use crate::engine::error::CollectiveError;
use crate::engine::group::{Group, GroupInfo, Member};
use crate::engine::options::EngineOptions;
use crate::engine::plan::Request;
use crate::engine::run::Phase;
use ringway_dataplane::memory::Region;
use ringway_dataplane::transport::seed::Seeded;
use ringway_dataplane::transport::{Hub, LoopbackConfig, Peer, Transport};
use ringway_topology::model::order::Site;
use std::time::{Duration, Instant};

/// Turns without movement, of all ranks together, after which the clock goes on.
const IDLE_TURNS_PER_RANK: u32 = 40;
/// Inquiries after which a call that is not over counts as hanging.
const PATIENCE_TICKS: u32 = 60;

pub(super) struct World {
    pub(super) hub: Hub,
    pub(super) cores: Vec<Core>,
    pub(super) rng: Seeded,
    now: Instant,
    label: String,
}

/// What a rank ended with: the outcome, and the bytes of its input and output.
pub(super) type Outcome = (Result<(), CollectiveError>, Vec<u8>, Vec<u8>);

pub(super) fn member(rank: u32) -> Member {
    // Dealt out to two machines, so that algorithms visit the ranks in another order than their own.
    let site = Site::on(format!("machine{}", rank % 2));
    Member { peer: Peer(rank), host: format!("h{rank}"), pid: 100 + rank, incarnation: 1, site }
}

pub(super) fn info(id: u32, ranks: &[u32], my_rank: u32) -> GroupInfo {
    GroupInfo { id, my_rank, members: ranks.iter().map(|r| member(*r)).collect() }
}

impl World {
    pub(super) fn new(ranks: u32, config: LoopbackConfig, options: &EngineOptions) -> World {
        World::of(config, &vec![options.clone(); ranks as usize])
    }

    /// A rank for each of these.
    pub(super) fn of(config: LoopbackConfig, options: &[EngineOptions]) -> World {
        let ranks = options.len() as u32;
        let hub = Hub::new(config);
        let all: Vec<u32> = (0..ranks).collect();
        let cores = hub.group(ranks).unwrap().into_iter().zip(0u32..).map(|(transport, rank)| {
            let mut core = Core::new(Box::new(transport), options[rank as usize].clone());
            core.add_group(Group::new(info(1, &all, rank)).unwrap());
            core
        });
        let cores = cores.collect();
        let label = format!("{ranks} ranks, {config:?}, {:?}", options[0].wanted);
        World { hub, cores, rng: Seeded::new(config.seed), now: Instant::now(), label }
    }

    fn region(&mut self, rank: usize, bytes: Option<&[u8]>) -> Option<Region> {
        let mut region = self.cores[rank].options.pool.region(bytes?.len()).unwrap();
        region.bytes_mut(0..bytes?.len()).unwrap().copy_from_slice(bytes?);
        Some(region)
    }

    /// Begins a call on a rank.
    pub(super) fn begin(
        &mut self,
        rank: usize,
        group: usize,
        request: &Request,
        input: Option<&[u8]>,
        output: Option<&[u8]>,
    ) -> Result<u16, CollectiveError> {
        let (mut input, mut output) = (self.region(rank, input), self.region(rank, output));
        let regions = CallRegions { input: &mut input, output: &mut output };
        self.cores[rank].begin(group, "test", request, regions, true).map_err(|failure| *failure)
    }

    /// Steps ranks at random until all the given calls are over.
    pub(super) fn settle(&mut self, calls: &[(usize, u16)]) {
        let over = |w: &World| {
            calls.iter().all(|(rank, slot)| w.cores[*rank].runs[usize::from(*slot)].phase == Phase::Done)
        };
        let idle_turns = IDLE_TURNS_PER_RANK * self.cores.len() as u32;
        let (mut idle, mut ticks) = (0, 0);
        while !over(self) {
            let rank = self.rng.index(self.cores.len());
            idle = if self.cores[rank].turn() { 0 } else { idle + 1 };
            if idle > idle_turns {
                idle = 0;
                ticks += 1;
                assert!(ticks < PATIENCE_TICKS, "hangs: {} {:?}", self.label, self.stuck());
                self.tick();
            }
        }
    }

    /// Steps one rank alone until its call is over.
    pub(super) fn settle_alone(&mut self, rank: usize, slot: u16) {
        for _ in 0..PATIENCE_TICKS {
            for _ in 0..IDLE_TURNS_PER_RANK {
                self.cores[rank].turn();
            }
            if self.cores[rank].runs[usize::from(slot)].phase == Phase::Done {
                return;
            }
            self.tick();
        }
        panic!("hangs: {} {:?}", self.label, self.stuck());
    }

    /// Lets all ranks go on until nothing moves.
    pub(super) fn quiesce(&mut self) {
        let mut idle = 0;
        while idle < IDLE_TURNS_PER_RANK as usize * self.cores.len() {
            let rank = self.rng.index(self.cores.len());
            idle = if self.cores[rank].turn() { 0 } else { idle + 1 };
        }
    }

    /// The clock of all ranks goes on by a tenth of a second.
    pub(super) fn tick(&mut self) {
        self.now += Duration::from_millis(100);
        for core in &mut self.cores {
            core.next_tick = self.now;
            core.tick(self.now);
        }
    }

    /// The clock goes on by a tenth of a second, and one rank alone sees it.
    pub(super) fn tick_alone(&mut self, rank: usize) {
        self.now += Duration::from_millis(100);
        self.cores[rank].tick(self.now);
    }

    fn stuck(&self) -> Vec<String> {
        let calls = |c: &Core| -> Vec<String> {
            let open = c.runs.iter().filter(|r| !matches!(r.phase, Phase::Idle | Phase::Done));
            open.map(|r| {
                let waits: Vec<String> = r.in_flight().map(|(_, step)| step.to_string()).collect();
                format!("{:?} {} posted {}: {waits:?}", r.phase, r.call, r.posted)
            })
            .collect()
        };
        self.cores.iter().map(|c| format!("{:?}", calls(c))).collect()
    }

    /// Takes the outcome of a call that is over.
    pub(super) fn take(&mut self, rank: usize, slot: u16) -> Outcome {
        let (mut input, mut output) = (None, None);
        let regions = CallRegions { input: &mut input, output: &mut output };
        let result = self.cores[rank].take(slot, regions).map_err(|failure| *failure);
        let bytes = |region: Option<Region>| {
            let Some(region) = region else { return Vec::new() };
            assert_eq!(region.outstanding(), 0, "E3");
            let bytes = region.bytes(0..region.len()).unwrap().to_vec();
            self.cores[rank].options.pool.recycle(region);
            bytes
        };
        let input = bytes(input);
        (result, input, bytes(output))
    }

    /// Ends a rank as a crash would.
    pub(super) fn kill(&mut self, rank: u32) {
        self.hub.kill(Peer(rank));
    }

    /// A rank says goodbye.
    pub(super) fn leave(&mut self, rank: usize) {
        self.cores[rank].transport.leave(0);
    }
}
