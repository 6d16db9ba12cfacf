//! Agreement on who is alive: each of a set of tasks asks, and all get the same answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::errors::Refusal;
use super::membership::{Membership, Slot};
use super::request::{Effect, Reply, ReplyTo, State};
use super::{Answer, Held};

/// Rounds of questions that are not answered yet, by the set of tasks that they are about.
///
/// - I2. A round is answered as soon as each of its tasks has asked or is known to be gone. A task that was never
///   there counts as gone, so nobody waits for longer than a heartbeat limit.
#[derive(Debug, Default)]
pub(super) struct AliveRounds {
    rounds: BTreeMap<Arc<[Slot]>, Round>,
}

#[derive(Debug, Default)]
struct Round {
    asked: BTreeSet<Slot>,
    waiting: Vec<ReplyTo>,
}

impl AliveRounds {
    /// A task asks about a set of tasks, itself among them.
    pub(super) fn ask(
        &mut self,
        source: Slot,
        tasks: Arc<[Slot]>,
        to: ReplyTo,
        members: &Membership,
        out: &mut Vec<Effect>,
    ) -> Answer {
        let round = self.rounds.entry(tasks.clone()).or_default();
        round.asked.insert(source);
        round.waiting.push(to);
        self.settle(members, out);
        Answer::Held(Held::Alive(tasks))
    }

    /// Answers the rounds that wait for nobody any more. Called whenever a task fails or leaves.
    pub(super) fn settle(&mut self, members: &Membership, out: &mut Vec<Effect>) {
        let live = |slot: &Slot| members.get(*slot).state == State::Connected;
        self.rounds.retain(|tasks, round| {
            if tasks.iter().any(|slot| live(slot) && !round.asked.contains(slot)) {
                return true;
            }
            let alive = tasks.iter().filter(|slot| live(slot) && round.asked.contains(slot));
            let alive: Vec<_> =
                alive.map(|&slot| (members.name(slot).clone(), members.get(slot).incarnation)).collect();
            for &to in &round.waiting {
                out.push(Effect::Reply { to, result: Ok(Reply::Alive(alive.clone())) });
            }
            false
        });
    }

    /// A caller has gone. Its question stands.
    pub(super) fn forget(&mut self, tasks: &Arc<[Slot]>, to: ReplyTo) {
        if let Some(round) = self.rounds.get_mut(tasks) {
            round.waiting.retain(|&waiting| waiting != to);
            if round.waiting.is_empty() {
                self.rounds.remove(tasks);
            }
        }
    }

    /// Sends everybody away, since the service ends.
    pub(super) fn stop(&mut self, error: &Refusal, out: &mut Vec<Effect>) {
        for to in std::mem::take(&mut self.rounds).into_values().flat_map(|round| round.waiting) {
            out.push(Effect::Reply { to, result: Err(error.clone()) });
        }
    }
}
