//! All that the service knows, for people: members, waits, groups; and asking the tasks themselves.

use std::time::Duration;

use ringway_topology::TaskId;

use super::Coordinator;
use super::request::{Effect, Notice, Process, TaskStatus};
use super::waits::Wait;
use crate::core::time::Time;

/// A task, as the service knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskView {
    /// How it is.
    pub status: TaskStatus,
    /// Where it runs, once it has said so.
    pub process: Option<Process>,
    /// Its rank in the first group that it entered.
    pub rank: Option<u32>,
    /// Since its last sign of life, where it is connected.
    pub silent: Option<Duration>,
}

/// A group that is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its name.
    pub name: String,
    /// Its members.
    pub size: usize,
    /// Those of them that have neither left nor been lost.
    pub present: usize,
    /// Its epoch.
    pub epoch: u64,
}

/// All that the service knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    /// What time it is.
    pub now: Time,
    /// All tasks, in order.
    pub tasks: Vec<TaskView>,
    /// Waits that have not ended, the longest first.
    pub waits: Vec<Wait>,
    /// Groups that are made, by name.
    pub groups: Vec<GroupView>,
    /// Silence for so long means that a task is lost.
    pub heartbeat_limit: Duration,
}

impl Coordinator {
    /// All that is known. Lists of waits have at most `names` tasks.
    #[must_use]
    pub fn overview(&self, now: Time, names: usize) -> Overview {
        let tasks = self.members.everyone();
        let task = |&slot: &super::Slot| {
            let member = self.members.get(slot);
            TaskView {
                status: self.members.status(slot),
                process: member.process.clone(),
                rank: member.rank,
                silent: self.heartbeats.last(slot).map(|last| now.since(last)),
            }
        };
        let group = |(name, table, present): (&str, &super::groups::GroupTable, usize)| GroupView {
            name: name.to_owned(),
            size: table.members.len(),
            present,
            epoch: table.epoch,
        };
        let rounds = self.rounds.made().map(|(name, table, present)| GroupView {
            name: format!("{name}, generation {}", table.generation),
            ..group((name, &table.group, present))
        });
        Overview {
            now,
            tasks: tasks.iter().map(task).collect(),
            waits: self.waits(names),
            groups: self.groups.made().map(group).chain(rounds).collect(),
            heartbeat_limit: self.config.heartbeat_limit,
        }
    }

    /// Asks all tasks that have a stream of notices how they are. Returns them.
    pub(super) fn survey(&self, survey: u64, flight: bool, out: &mut Vec<Effect>) -> Vec<TaskId> {
        let ask = |(watch, slot)| {
            out.push(Effect::Notify { watch, notice: Notice::Survey { survey, flight } });
            self.members.name(slot).clone()
        };
        self.losses.streams().map(ask).collect()
    }
}
