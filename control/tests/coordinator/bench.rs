//! A coordinator under test, and what is asked of it.

use std::collections::BTreeMap;
use std::time::Duration;

use ringway_control::core::coordination::errors::{Code, Refusal};
use ringway_control::core::coordination::losses::Evidence;
use ringway_control::core::coordination::request::{
    BarrierCall, Effect, Event, Join, Notice, Process, Reply, ReplyTo, Request, State, Value, WatchId,
};
use ringway_control::core::coordination::{Coordinator, CoordinatorConfig};
use ringway_control::core::machine::Machine;
use ringway_control::core::time::Time;
use ringway_topology::{HostId, Incarnation, TaskId};

pub(crate) type Answer = Result<Reply, Refusal>;

/// A coordinator, a clock that the test turns, and everything that came out.
pub(crate) struct Bench {
    pub(crate) machine: Coordinator,
    pub(crate) now: Time,
    pub(crate) next: u64,
    pub(crate) answers: BTreeMap<ReplyTo, Answer>,
    pub(crate) notices: Vec<(WatchId, Notice)>,
    pub(crate) closed: Vec<WatchId>,
    pub(crate) pushed: Vec<(TaskId, Refusal)>,
    pub(crate) blamed: Vec<(TaskId, TaskId)>,
    /// What the coordinator wants remembered.
    pub(crate) stored: BTreeMap<String, Value>,
}

impl Bench {
    pub(crate) fn with(change: impl FnOnce(&mut CoordinatorConfig)) -> Bench {
        let mut config = CoordinatorConfig::one_job("worker", 3);
        config.heartbeat_limit = Duration::from_secs(8);
        change(&mut config);
        Bench {
            machine: Coordinator::new(config),
            now: Time::ZERO,
            next: 0,
            answers: BTreeMap::new(),
            notices: Vec::new(),
            closed: Vec::new(),
            pushed: Vec::new(),
            blamed: Vec::new(),
            stored: BTreeMap::new(),
        }
    }

    /// Three tasks, all connected.
    pub(crate) fn up() -> Bench {
        let mut bench = Bench::with(|_| {});
        (0..3).for_each(|index| assert_eq!(bench.now(register(index, 1)), Ok(Reply::Done)));
        bench
    }

    pub(crate) fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Reply { to, result } => {
                    assert!(self.answers.insert(to, result).is_none(), "C1: {to:?} was answered twice");
                }
                Effect::Notify { watch, notice } => self.notices.push((watch, notice)),
                Effect::CloseWatch { watch } => self.closed.push(watch),
                Effect::PushError { to, error } => self.pushed.push((to, error)),
                Effect::Blamed { reporter, cause } => self.blamed.push((reporter, cause)),
                Effect::Remember { writes } => {
                    for write in writes {
                        match write.value {
                            Some(value) => drop(self.stored.insert(write.key, value)),
                            None => drop(self.stored.remove(&write.key)),
                        }
                    }
                }
                Effect::Connected { .. } => {}
            }
        }
    }

    pub(crate) fn event(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.machine.on_event(self.now, event, &mut effects);
        self.take(effects);
    }

    pub(crate) fn ask(&mut self, request: Request) -> ReplyTo {
        self.next += 1;
        let reply = ReplyTo(self.next);
        self.event(Event::Ask { reply, from: None, request });
        reply
    }

    /// The answer to a request that does not wait.
    pub(crate) fn now(&mut self, request: Request) -> Answer {
        let reply = self.ask(request);
        self.answers.remove(&reply).expect("the answer comes at once")
    }

    /// Lets time pass as the driver would: no deadline is missed.
    pub(crate) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(due) = self.machine.deadline().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            let mut effects = Vec::new();
            self.machine.on_time(self.now, &mut effects);
            self.take(effects);
            assert!(
                self.machine.deadline().is_none_or(|next| next > due),
                "what was due at {due} is left undone"
            );
        }
        self.now = end;
    }

    /// The same, while all tasks send heartbeats.
    pub(crate) fn pass_alive(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.pass(Duration::from_secs(1).min(end.since(self.now)));
            (0..3).for_each(|index| drop(self.now(beat(index, 1))));
        }
    }

    pub(crate) fn losses(&self, watch: u64) -> Vec<(u32, Evidence)> {
        let mine = self.notices.iter().filter(|(to, _)| *to == WatchId(watch));
        mine.filter_map(|(_, notice)| match notice {
            Notice::Loss(loss) => Some((loss.task.index(), loss.evidence)),
            Notice::Closing | Notice::Survey { .. } => None,
        })
        .collect()
    }
}

pub(crate) fn worker(index: u32) -> TaskId {
    TaskId::new("worker", index).unwrap()
}

pub(crate) fn process(index: u32, life: u64) -> Process {
    Process {
        task: worker(index),
        incarnation: Incarnation(life),
        host: HostId::new("here", "").unwrap(),
        pid: 100 + index,
    }
}

pub(crate) fn register(index: u32, life: u64) -> Request {
    Request::Register { task: worker(index), incarnation: Incarnation(life), silence: None }
}

pub(crate) fn beat(index: u32, life: u64) -> Request {
    Request::Heartbeat { task: worker(index), incarnation: Incarnation(life) }
}

pub(crate) fn barrier(id: &str, source: u32, tasks: &[u32]) -> Request {
    Request::Barrier(BarrierCall {
        id: id.to_owned(),
        counter: 0,
        counted: false,
        timeout: Duration::from_secs(5),
        tasks: tasks.iter().map(|&index| worker(index)).collect(),
        source: worker(source),
    })
}

pub(crate) fn join(index: u32, rank: Option<u32>, size: u32) -> Request {
    Request::Join(Box::new(Join {
        group: "world".to_owned(),
        process: process(index, 1),
        rank,
        size,
        addresses: vec![index as u8],
        timeout: Some(Duration::from_secs(5)),
        hosts_coordinator: index == 0,
        fresh_secret: [index as u8 + 1; 32],
    }))
}

pub(crate) fn watch(id: u64, index: u32, life: u64, since_epoch: u64) -> Request {
    Request::Watch { watch: WatchId(id), process: process(index, life), since_epoch }
}

pub(crate) fn insert(key: &str, value: &str) -> Request {
    Request::Insert { key: key.to_owned(), value: value.into(), overwrite: false }
}

pub(crate) fn state(bench: &mut Bench, index: u32) -> State {
    match bench.now(Request::TaskStates { tasks: vec![worker(index)] }) {
        Ok(Reply::States(states)) => states[0].state,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn code(answer: &Answer) -> Option<Code> {
    answer.as_ref().err().map(|refusal| refusal.code)
}
