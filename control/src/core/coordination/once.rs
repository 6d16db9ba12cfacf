//! Requests that change something and may be asked again, since their answer may be lost on its way: each takes effect
//! once, and asking again gets the answer of the first time.
//!
//! A caller numbers its requests, and says with each which is the oldest that it still waits for; answers to older ones
//! are forgotten.
//!
//! - N1. A request of a number whose answer is kept changes nothing.
//! - N2. Of one task at most [`ANSWERS_LIMIT`] answers are kept, all of one life of it.
//! - N3. A request of a number below what its caller still waits for is a copy that was late: it changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use ringway_proto::ringway::v1 as wire;
use ringway_topology::Incarnation;

use super::errors::{Code, Refusal};
use super::membership::Slot;
use super::memory::Write;
use super::request::{CallId, Reply, Request, Value};

/// Requests of one task that change something and whose answers it has not had, at most.
pub const ANSWERS_LIMIT: usize = 256;

#[derive(Debug, Default)]
struct Answers {
    life: Incarnation,
    /// What the caller still waits for has this number or a higher one.
    oldest: u64,
    /// By number: what was written, for a request that is answered with it.
    kept: BTreeMap<u64, Option<Value>>,
}

/// The answers of all tasks.
#[derive(Debug, Default)]
pub(super) struct Once {
    of: BTreeMap<Slot, Answers>,
    changed: BTreeSet<Slot>,
}

impl Once {
    /// The answer that was given before, if this was asked before.
    ///
    /// # Errors
    /// When there is no room for another, or its caller has had the answer (N3).
    pub(super) fn before(
        &self,
        slot: Slot,
        call: &CallId,
        request: &Request,
    ) -> Result<Option<Reply>, Refusal> {
        let Some(answers) = self.of.get(&slot).filter(|answers| answers.life == call.incarnation) else {
            return Ok(None);
        };
        if call.sequence < answers.oldest {
            let message = format!("request {} of {} had its answer before", call.sequence, call.task);
            return Err(Refusal::new(Code::Aborted, message));
        }
        match (answers.kept.get(&call.sequence), request) {
            (Some(Some(value)), Request::Increment { key, .. }) => {
                Ok(Some(Reply::Entry { key: key.clone(), value: value.clone() }))
            }
            (Some(_), _) => Ok(Some(Reply::Done)),
            (None, _) if answers.kept.range(call.oldest..).count() >= ANSWERS_LIMIT => {
                let message = format!(
                    "{} has {ANSWERS_LIMIT} requests under way that change something, the limit: wait for some",
                    call.task
                );
                Err(Refusal::new(Code::ResourceExhausted, message))
            }
            (None, _) => Ok(None),
        }
    }

    /// A request had its effect, and this answer.
    pub(super) fn keep(&mut self, slot: Slot, call: &CallId, reply: &Reply) {
        let answers = self.of.entry(slot).or_default();
        if answers.life != call.incarnation {
            *answers = Answers { life: call.incarnation, ..Answers::default() };
        }
        answers.oldest = answers.oldest.max(call.oldest);
        answers.kept = answers.kept.split_off(&answers.oldest);
        let value = match reply {
            Reply::Entry { value, .. } => Some(value.clone()),
            _ => None,
        };
        answers.kept.insert(call.sequence, value);
        self.changed.insert(slot);
    }

    /// What has changed since this was last asked.
    pub(super) fn changes(&mut self) -> Vec<Write> {
        let changed = std::mem::take(&mut self.changed);
        let write = |slot: Slot| {
            let answers = self.of.get(&slot)?;
            let kept = answers.kept.iter().map(|(&sequence, value)| wire::stored_once::Answer {
                sequence,
                value: value.as_ref().map(|value| value.to_vec()),
            });
            let (incarnation, oldest) = (answers.life.0, answers.oldest);
            let stored = wire::StoredOnce { incarnation, oldest, answers: kept.collect() };
            Some(Write::put(format!("once/{}", slot.0), &stored))
        };
        changed.into_iter().filter_map(write).collect()
    }

    /// The answers of a task as they were remembered.
    pub(super) fn recall(&mut self, slot: Slot, stored: wire::StoredOnce) {
        let kept = stored.answers.into_iter().map(|answer| (answer.sequence, answer.value.map(Value::new)));
        let (life, oldest) = (Incarnation(stored.incarnation), stored.oldest);
        self.of.insert(slot, Answers { life, oldest, kept: kept.collect() });
    }
}
