//! The store as it should be: a plain map.

use std::collections::BTreeMap;

use ringway_topology::{Incarnation, TaskId};

use crate::core::coordination::errors::Code;
use crate::core::coordination::request::{Reply, ReplyTo, Request};

/// What an answer should be, as far as it is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Done,
    Value(Vec<u8>),
    Entries(Vec<(String, Vec<u8>)>),
    Error(Code),
}

impl Expected {
    /// What of an answer is compared.
    pub(super) fn of(result: &Result<Reply, crate::core::coordination::errors::Refusal>) -> Option<Expected> {
        match result {
            Ok(Reply::Done) => Some(Expected::Done),
            Ok(Reply::Entry { value, .. }) => Some(Expected::Value(value.to_vec())),
            Ok(Reply::Directory { entries, .. }) => {
                let entries = entries.iter().map(|(key, value)| (key.clone(), value.to_vec()));
                Some(Expected::Entries(entries.collect()))
            }
            Ok(_) => None,
            Err(refusal) => Some(Expected::Error(refusal.code)),
        }
    }
}

/// The map, and who waits for a key.
#[derive(Debug, Default)]
pub(super) struct Model {
    map: BTreeMap<String, Vec<u8>>,
    waiting: BTreeMap<String, Vec<ReplyTo>>,
    /// Numbered requests that had an effect, and their answers.
    done: BTreeMap<(TaskId, Incarnation, u64), Expected>,
}

impl Model {
    /// Takes in a request, and gives the answers that the store must give at once. `None` for requests of others.
    pub(super) fn ask(&mut self, to: ReplyTo, request: &Request) -> Option<Vec<(ReplyTo, Expected)>> {
        let mut answers = Vec::new();
        match request {
            Request::Once { call, request } => {
                let number = (call.task.clone(), call.incarnation, call.sequence);
                if let Some(before) = self.done.get(&number) {
                    return Some(vec![(to, before.clone())]);
                }
                answers = self.ask(to, request)?;
                let own = answers.iter().find(|(answered, _)| *answered == to);
                if let Some((_, answer)) = own.filter(|(_, answer)| !matches!(answer, Expected::Error(_))) {
                    self.done.insert(number, answer.clone());
                }
            }
            Request::Insert { key, value, overwrite } => {
                if !overwrite && self.map.contains_key(&plain(key)) {
                    answers.push((to, Expected::Error(Code::AlreadyExists)));
                } else {
                    self.put(plain(key), value.clone(), &mut answers);
                    answers.push((to, Expected::Done));
                }
            }
            Request::Get { key } => match self.map.get(&plain(key)) {
                Some(value) => answers.push((to, Expected::Value(value.clone()))),
                None => self.waiting.entry(plain(key)).or_default().push(to),
            },
            Request::TryGet { key } => {
                let value = self.map.get(&plain(key)).cloned();
                answers.push((to, value.map_or(Expected::Error(Code::NotFound), Expected::Value)));
            }
            Request::Increment { key, by } => {
                let text = self.map.get(key).map(|value| String::from_utf8_lossy(value).into_owned());
                let sum =
                    text.map_or(0, |text| text.parse::<i64>().expect("only numbers are written there")) + by;
                let value = sum.to_string().into_bytes();
                self.put(key.clone(), value.clone(), &mut answers);
                answers.push((to, Expected::Value(value)));
            }
            Request::GetDirectory { directory } => {
                let prefix = format!("{directory}/");
                let found = self.map.iter().filter(|(key, _)| key.starts_with(&prefix));
                let found = found.map(|(key, value)| (key.clone(), value.clone()));
                answers.push((to, Expected::Entries(found.collect())));
            }
            Request::Delete { key } => {
                let (path, prefix) = (plain(key), format!("{}/", plain(key)));
                self.map.retain(|key, _| *key != path && !key.starts_with(&prefix));
                answers.push((to, Expected::Done));
            }
            _ => return None,
        }
        Some(answers)
    }

    /// Nobody waits any more.
    pub(super) fn forget_callers(&mut self) {
        self.waiting.clear();
    }

    /// A caller has gone.
    pub(super) fn gone(&mut self, to: ReplyTo) {
        for waiting in self.waiting.values_mut() {
            waiting.retain(|&waiting| waiting != to);
        }
    }

    fn put(&mut self, key: String, value: Vec<u8>, answers: &mut Vec<(ReplyTo, Expected)>) {
        let waiting = self.waiting.remove(&key).unwrap_or_default();
        answers.extend(waiting.into_iter().map(|to| (to, Expected::Value(value.clone()))));
        self.map.insert(key, value);
    }
}

/// A key without its empty parts, found in another way than the store does.
fn plain(key: &str) -> String {
    let mut plain = String::new();
    for c in key.chars() {
        if c != '/' || (!plain.is_empty() && !plain.ends_with('/')) {
            plain.push(c);
        }
    }
    plain.trim_end_matches('/').to_owned()
}
