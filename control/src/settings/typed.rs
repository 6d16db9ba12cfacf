//! From checked texts and the table's defaults to typed values.

use super::table;
use super::value::{self, HostPort, NameList, Pin, Value};
use ringway_collectives::schedule::Wanted;
use ringway_dataplane::fabric::Policy;
use ringway_dataplane::fabric::interface::Filter;
use std::collections::BTreeMap;
use std::time::Duration;

/// Reads typed values out of checked texts and the table's defaults.
pub(super) struct Values<'a> {
    pub(super) given: &'a BTreeMap<&'static str, String>,
}

impl Values<'_> {
    /// The value in force: given, else the default, else `None`.
    ///
    /// # Panics
    /// When a default is not allowed by its own row or a field names no row: a mistake in this module, which any
    /// use of it shows at once.
    pub(super) fn value(&self, name: &str) -> Option<Value> {
        let setting = table::find(name).expect("a field of Settings has a row in the table");
        let text = self.given.get(name).map(String::as_str).or(setting.default)?;
        let value = value::read(&setting.kind, text, setting.unit == "bytes");
        Some(value.expect("given texts are checked, and defaults are within their own ranges"))
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        match self.value(name)? {
            Value::Text(text) => Some(text),
            other => mismatch(name, &other),
        }
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        match self.value(name)? {
            Value::Auto => None,
            Value::Number(number) => Some(number),
            other => mismatch(name, &other),
        }
    }

    pub(super) fn count(&self, name: &str) -> Option<u32> {
        self.number(name).map(|number| u32::try_from(number).expect("ranges of counts end below 2^32"))
    }

    pub(super) fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(self.number(name).expect("every time limit has a default"))
    }

    pub(super) fn switch(&self, name: &str) -> bool {
        match self.value(name) {
            Some(Value::Switch(on)) => on,
            other => mismatch(name, &other),
        }
    }

    pub(super) fn word(&self, name: &str) -> Option<&'static str> {
        match self.value(name)? {
            Value::Word(word) => Some(word),
            other => mismatch(name, &other),
        }
    }

    pub(super) fn policy(&self, name: &str) -> Policy {
        match self.word(name) {
            Some("require") => Policy::Require,
            Some("off") => Policy::Off,
            _ => Policy::Prefer,
        }
    }

    pub(super) fn names(&self, name: &str) -> NameList {
        match self.value(name) {
            Some(Value::Names(names)) => names,
            other => mismatch(name, &other),
        }
    }

    pub(super) fn algorithms(&self, name: &str) -> Wanted {
        match self.value(name) {
            Some(Value::Algorithms(wanted)) => wanted,
            other => mismatch(name, &other),
        }
    }

    pub(super) fn address(&self, name: &str) -> Option<HostPort> {
        match self.value(name)? {
            Value::Address(address) => Some(address),
            other => mismatch(name, &other),
        }
    }

    pub(super) fn addresses(&self, name: &str) -> Vec<HostPort> {
        match self.value(name) {
            None => Vec::new(),
            Some(Value::Addresses(addresses)) => addresses,
            Some(other) => mismatch(name, &other),
        }
    }

    pub(super) fn interfaces(&self, name: &str) -> Option<Filter> {
        match self.value(name)? {
            Value::Interfaces(filter) => Some(filter),
            other => mismatch(name, &other),
        }
    }

    pub(super) fn pin(&self, name: &str) -> Pin {
        match self.value(name) {
            Some(Value::Pin(pin)) => pin,
            other => mismatch(name, &other),
        }
    }
}

pub(super) fn mismatch<T>(name: &str, value: &dyn std::fmt::Debug) -> T {
    unreachable!("{name}: the typed field and the table's kind differ: {value:?}")
}
