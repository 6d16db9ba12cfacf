//! The key-value store: small values under paths, for setting up a job.
//!
//! - K1. A key is a path: parts separated by `/`, empty parts dropped. `a//b/` and `/a/b` are the key `a/b`.
//! - K2. Operations on one key take effect one after the other, in the order in which they arrive.
//! - K3. A blocking read is answered by the first write after which the key exists.
//! - K4. Keys, and bytes of keys and values together, never exceed their limits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::errors::{Code, Refusal};
use super::request::{Effect, Reply, ReplyTo, Value};
use super::{Answer, Held, Limits};

mod stored;

/// The store, and those who wait for a key.
#[derive(Debug)]
pub(super) struct Store {
    entries: BTreeMap<String, Value>,
    bytes: usize,
    /// Per key: who waits, with the key as that caller wrote it.
    waiting: BTreeMap<String, Vec<(ReplyTo, String)>>,
    /// Keys that are not remembered as they are.
    changed: BTreeSet<String>,
    limits: Limits,
}

impl Store {
    /// An empty store.
    pub(super) fn new(limits: Limits) -> Self {
        Store {
            entries: BTreeMap::new(),
            bytes: 0,
            waiting: BTreeMap::new(),
            changed: BTreeSet::new(),
            limits,
        }
    }

    /// Writes a value; one that is there is kept unless `overwrite`.
    pub(super) fn insert(
        &mut self,
        key: &str,
        value: Vec<u8>,
        overwrite: bool,
        out: &mut Vec<Effect>,
    ) -> Result<Reply, Refusal> {
        let path = self.path(key)?;
        if !overwrite && self.entries.contains_key(&path) {
            let message = format!("key {path:?} already exists: delete it first, or allow overwriting");
            return Err(Refusal::new(Code::AlreadyExists, message));
        }
        self.put(path, Arc::new(value), out)?;
        Ok(Reply::Done)
    }

    /// Reads a value, or waits until it is there.
    pub(super) fn get(&mut self, key: String, to: ReplyTo) -> Answer {
        let path = match self.path(&key) {
            Ok(path) => path,
            Err(error) => return Answer::Now(Err(error)),
        };
        if let Some(value) = self.entries.get(&path) {
            return Answer::Now(Ok(Reply::Entry { key, value: value.clone() }));
        }
        self.waiting.entry(path.clone()).or_default().push((to, key));
        Answer::Held(Held::Key(path))
    }

    /// Reads a value that is there.
    pub(super) fn try_get(&self, key: String) -> Result<Reply, Refusal> {
        let path = self.path(&key)?;
        match self.entries.get(&path) {
            Some(value) => Ok(Reply::Entry { key, value: value.clone() }),
            None => Err(Refusal::new(
                Code::NotFound,
                format!("key {path:?} not found: nobody has written it, or it was deleted"),
            )),
        }
    }

    /// Adds to a value that is decimal text; a missing one counts as 0.
    pub(super) fn increment(
        &mut self,
        key: String,
        by: i64,
        out: &mut Vec<Effect>,
    ) -> Result<Reply, Refusal> {
        let path = self.path(&key)?;
        let before = match self.entries.get(&path) {
            None => 0,
            Some(value) => {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
                number.ok_or_else(|| {
                    let message =
                        format!("the value of key {path:?} is no decimal number, so it cannot be added to");
                    Refusal::new(Code::FailedPrecondition, message)
                })?
            }
        };
        let after = before.checked_add(by).ok_or_else(|| {
            Refusal::new(Code::OutOfRange, format!("{before} + {by} at key {path:?} is past 64 bits"))
        })?;
        let value: Value = Arc::new(after.to_string().into_bytes());
        self.put(path, value.clone(), out)?;
        Ok(Reply::Entry { key, value })
    }

    /// Everything under a directory; an empty name is the root.
    pub(super) fn directory(&self, directory: String) -> Result<Reply, Refusal> {
        let prefix = prefix(&normalise(&directory));
        let mut bytes = 0;
        let mut entries = Vec::new();
        for (key, value) in self.under(&prefix) {
            bytes += key.len() + value.len();
            if bytes > self.limits.reply_bytes {
                let message = format!(
                    "directory {directory:?} holds more than {} bytes: read parts of it",
                    self.limits.reply_bytes
                );
                return Err(Refusal::new(Code::ResourceExhausted, message));
            }
            entries.push((key.clone(), value.clone()));
        }
        Ok(Reply::Directory { directory, entries })
    }

    /// Removes a key and everything under it. What is not there is removed already.
    pub(super) fn delete(&mut self, key: &str) -> Result<Reply, Refusal> {
        let path = self.path(key)?;
        let mut doomed: Vec<String> = self.under(&prefix(&path)).map(|(key, _)| key.clone()).collect();
        doomed.push(path);
        for key in doomed {
            if let Some(value) = self.entries.remove(&key) {
                self.bytes -= key.len() + value.len();
                self.changed.insert(key);
            }
        }
        Ok(Reply::Done)
    }

    /// A caller that waited for a key has gone.
    pub(super) fn forget(&mut self, path: &str, to: ReplyTo) {
        if let Some(waiting) = self.waiting.get_mut(path) {
            waiting.retain(|(waiting, _)| *waiting != to);
            if waiting.is_empty() {
                self.waiting.remove(path);
            }
        }
    }

    /// Removes everything. Who waits for a key goes on waiting.
    pub(super) fn clear(&mut self) {
        self.changed.extend(std::mem::take(&mut self.entries).into_keys());
        self.bytes = 0;
    }

    /// Sends everybody away, since the service ends.
    pub(super) fn stop(&mut self, error: &Refusal, out: &mut Vec<Effect>) {
        for (to, _) in std::mem::take(&mut self.waiting).into_values().flatten() {
            out.push(Effect::Reply { to, result: Err(error.clone()) });
        }
    }

    fn put(&mut self, path: String, value: Value, out: &mut Vec<Effect>) -> Result<(), Refusal> {
        let before = self.entries.get(&path).map(|value| path.len() + value.len());
        let after = path.len() + value.len();
        let bytes = self.bytes - before.unwrap_or(0) + after;
        let full = |what: String| {
            Err(Refusal::new(
                Code::ResourceExhausted,
                format!("{what}: the store is for setting up a job, not for data"),
            ))
        };
        if value.len() > self.limits.value_bytes {
            return full(format!(
                "a value of {} bytes at key {path:?} is over the limit of {}",
                value.len(),
                self.limits.value_bytes
            ));
        }
        if before.is_none() && self.entries.len() >= self.limits.keys {
            return full(format!("the store has {} keys, its limit", self.limits.keys));
        }
        if bytes > self.limits.store_bytes {
            return full(format!("key {path:?} would fill the store past {} bytes", self.limits.store_bytes));
        }
        self.bytes = bytes;
        for (to, key) in self.waiting.remove(&path).unwrap_or_default() {
            out.push(Effect::Reply { to, result: Ok(Reply::Entry { key, value: value.clone() }) });
        }
        self.changed.insert(path.clone());
        self.entries.insert(path, value);
        Ok(())
    }

    fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a String, &'a Value)> {
        let from =
            self.entries.range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
        from.take_while(move |(key, _)| key.starts_with(prefix))
    }

    fn path(&self, key: &str) -> Result<String, Refusal> {
        if key.len() > self.limits.key_bytes {
            let message =
                format!("a key of {} bytes is over the limit of {}", key.len(), self.limits.key_bytes);
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        let path = normalise(key);
        if path.is_empty() {
            return Err(Refusal::new(
                Code::InvalidArgument,
                "a key needs at least one part that is not empty",
            ));
        }
        Ok(path)
    }
}

/// A key as the store keeps it (K1).
fn normalise(key: &str) -> String {
    key.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

/// What all keys under a directory begin with.
fn prefix(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("{path}/") }
}
