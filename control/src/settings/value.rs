//! The types that settings have, and how each is read from text. Pure: text in, value or what is wrong out.

use std::fmt;

use ringway_collectives::schedule::Wanted;
use ringway_dataplane::fabric::interface::Filter;
use ringway_dataplane::rdma::choice::{AddressRange, HcaFilter};

use super::kind::{Kind, MAX_TOKEN_CHARS, MIN_TOKEN_CHARS};

/// A value read by the [`Kind`] of its setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Number(u64),
    Auto,
    Switch(bool),
    Word(&'static str),
    Names(NameList),
    Algorithms(Wanted),
    Address(HostPort),
    Addresses(Vec<HostPort>),
    Interfaces(Filter),
    Hcas(HcaFilter),
    Range(AddressRange),
    Pin(Pin),
}

/// A `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// A host name or an address; an IPv6 address without its brackets.
    pub host: String,
    /// The port, never 0 when it was read from text.
    pub port: u16,
}

impl HostPort {
    /// Reads `host:port` or `[ipv6]:port`.
    ///
    /// # Errors
    /// `None` when the host is empty or holds white space, an IPv6 address has no brackets, or the port is not
    /// 1 to 65535.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").filter(|(host, _)| host.contains(':'))?,
            None => text.rsplit_once(':').filter(|(host, _)| !host.contains([':', '[', ']']))?,
        };
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let sound =
            !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/');
        sound.then(|| HostPort { host: host.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A choice among named things: all of them, some in order of preference, or all but some.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum NameList {
    /// No restriction.
    #[default]
    Auto,
    /// Only these, the best first.
    Only(Vec<&'static str>),
    /// All but these.
    Except(Vec<&'static str>),
}

impl NameList {
    /// Whether `name` may be used.
    pub fn permits(&self, name: &str) -> bool {
        match self {
            NameList::Auto => true,
            NameList::Only(names) => names.contains(&name),
            NameList::Except(names) => !names.contains(&name),
        }
    }
}

/// A secret: compared and passed on, never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret text.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The secret itself, to be sent or compared, never logged.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Which IP family may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

/// How sockets are driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoDriver {
    /// io_uring where the kernel allows it, else epoll.
    Auto,
    /// io_uring, or an error.
    Uring,
    /// epoll.
    Epoll,
}

/// TCP congestion control of data connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CongestionControl {
    /// One fit for loopback within a host, the system's elsewhere.
    Auto,
    /// Never changed.
    System,
    /// The kernel's name of one.
    Named(String),
}

/// Who runs the coordination service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorBy {
    /// Rank 0, inside its own process.
    Rank0,
    /// Something that is not a rank: `ringway run`, `ringway serve`.
    Outside,
}

/// Which processors a rank's threads run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// Ranks that `ringway run` started are spread over the machine while each has a core of its own; others stay
    /// where their launcher and the system put them.
    Auto,
    /// Local ranks are spread over the machine.
    Spread,
    /// Threads are left where the system puts them.
    Off,
    /// These processors, in ascending order, each once.
    Cpus(Vec<u32>),
}

/// Largest processor number that a pin list may name: the kernel's own limit is 8,192.
const MAX_CPU: u32 = 8191;

/// Reads `text` as a value of `kind`; `None` when it is not one. `bytes` allows the suffixes K, M and G.
pub(super) fn read(kind: &Kind, text: &str, bytes: bool) -> Option<Value> {
    match kind {
        Kind::Text => (!text.is_empty()).then(|| Value::Text(text.to_owned())),
        Kind::Token => {
            let long = (MIN_TOKEN_CHARS..=MAX_TOKEN_CHARS).contains(&text.len());
            let sound = long && text.bytes().all(|byte| byte.is_ascii_graphic());
            sound.then(|| Value::Text(text.to_owned()))
        }
        Kind::Number { min, max } => number(text, *min, *max, bytes).map(Value::Number),
        Kind::AutoOrNumber { .. } if text == "auto" => Some(Value::Auto),
        Kind::AutoOrNumber { min, max } => number(text, *min, *max, bytes).map(Value::Number),
        Kind::Index { .. } if matches!(text, "auto" | "-1") => Some(Value::Auto),
        Kind::Index { max } => number(text, 0, *max, false).map(Value::Number),
        Kind::Switch => switch(text).map(Value::Switch),
        Kind::OneOf(words) => word(text, words).map(Value::Word),
        Kind::SomeOf(words) => names(text, words).map(Value::Names),
        Kind::Interfaces => text.parse().ok().map(Value::Interfaces),
        Kind::Algorithms => text.parse().ok().map(Value::Algorithms),
        Kind::Hcas => text.parse().ok().map(Value::Hcas),
        Kind::AddressRange => text.parse().ok().map(Value::Range),
        Kind::HostPort => HostPort::parse(text).map(Value::Address),
        Kind::HostPorts => {
            let addresses = text.split(',').map(|address| HostPort::parse(address.trim()));
            addresses.collect::<Option<_>>().map(Value::Addresses)
        }
        Kind::Cpus => pin(text).map(Value::Pin),
    }
}

/// Reads a count of bytes: a number that may end in K, M or G (powers of 1,024), with or without `B` or `iB`.
pub fn byte_count(text: &str) -> Option<u64> {
    number(text.trim(), 0, u64::MAX, true)
}

fn number(text: &str, min: u64, max: u64, bytes: bool) -> Option<u64> {
    let (digits, shift) = if bytes { split_size(text) } else { (text, 0) };
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    (min..=max).contains(&number).then_some(number)
}

/// Splits `64K`, `64KiB` or `64k` into digits and the power of two that the suffix stands for.
fn split_size(text: &str) -> (&str, u32) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[end..].to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "" | "b" => 0,
        _ => return (text, 0),
    };
    (&text[..end], shift)
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "on" | "1" | "true" | "yes" => Some(true),
        "off" | "0" | "false" | "no" => Some(false),
        _ => None,
    }
}

/// The word that `text` is, in upper or lower case: NCCL's users write both Ring and ring.
fn word(text: &str, words: &[&'static str]) -> Option<&'static str> {
    words.iter().find(|word| word.eq_ignore_ascii_case(text)).copied()
}

fn names(text: &str, words: &[&'static str]) -> Option<NameList> {
    if text == "auto" {
        return Some(NameList::Auto);
    }
    let (list, except) = match text.strip_prefix('^') {
        Some(list) => (list, true),
        None => (text, false),
    };
    let mut found = Vec::new();
    for name in list.split(',') {
        let word = word(name, words)?;
        if !found.contains(&word) {
            found.push(word);
        }
    }
    if except && found.len() == words.len() {
        return None;
    }
    Some(if except { NameList::Except(found) } else { NameList::Only(found) })
}

fn pin(text: &str) -> Option<Pin> {
    match text {
        "auto" => return Some(Pin::Auto),
        "spread" => return Some(Pin::Spread),
        "off" => return Some(Pin::Off),
        _ => {}
    }
    let cpu = |digits: &str| digits.parse::<u32>().ok().filter(|cpu| *cpu <= MAX_CPU);
    let mut cpus = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((from, to)) => {
                let (from, to) = (cpu(from)?, cpu(to)?);
                if from > to {
                    return None;
                }
                cpus.extend(from..=to);
            }
            None => cpus.push(cpu(part)?),
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(Pin::Cpus(cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_suffixes_only_for_bytes() {
        assert_eq!(number("64K", 0, 1 << 20, true), Some(65_536));
        assert_eq!(number("64KiB", 0, 1 << 20, true), Some(65_536));
        assert_eq!(number("1m", 0, 1 << 20, true), Some(1 << 20));
        assert_eq!(number("64K", 0, 1 << 20, false), None);
        assert_eq!(number("2M", 0, 1 << 20, true), None, "over the range");
        assert_eq!(number("99999999999999999999G", 0, u64::MAX, true), None, "overflow is no number");
        assert_eq!(number("", 0, 9, true), None);
        assert_eq!(number("-1", 0, 9, false), None);
        assert_eq!(number("+1", 0, 9, false), None);
        assert_eq!(number("1x", 0, 9, true), None);
    }

    #[test]
    fn addresses() {
        let parsed = |text| HostPort::parse(text).map(|a| (a.host, a.port));
        assert_eq!(parsed("node1:29400"), Some(("node1".into(), 29400)));
        assert_eq!(parsed("[fd00::1]:1"), Some(("fd00::1".into(), 1)));
        for bad in [
            "",
            "node1",
            "node1:",
            ":1",
            "node1:0",
            "node1:65536",
            "fd00::1:29400",
            "[::1]",
            "a b:1",
            "[x]:1",
        ] {
            assert_eq!(parsed(bad), None, "{bad:?}");
        }
        assert_eq!(HostPort::parse("[fd00::1]:1").unwrap().to_string(), "[fd00::1]:1");
        assert_eq!(HostPort::parse("a:1").unwrap().to_string(), "a:1");
    }

    #[test]
    fn name_lists_follow_nccl() {
        let words = &["ring", "tree"];
        assert_eq!(names("auto", words), Some(NameList::Auto));
        assert_eq!(names("tree,ring", words), Some(NameList::Only(vec!["tree", "ring"])));
        assert_eq!(names("^tree", words), Some(NameList::Except(vec!["tree"])));
        assert_eq!(names("^tree,ring", words), None, "nothing would be left");
        assert_eq!(names("Tree", words), Some(NameList::Only(vec!["tree"])));
        assert_eq!(names("", words), None);
        assert_eq!(names("rings", words), None);
        assert!(names("^tree", words).unwrap().permits("ring"));
        assert!(!names("^tree", words).unwrap().permits("tree"));
    }

    #[test]
    fn pins() {
        assert_eq!(pin("0-2,8,1"), Some(Pin::Cpus(vec![0, 1, 2, 8])));
        let words = [("auto", Pin::Auto), ("spread", Pin::Spread), ("off", Pin::Off)];
        words.into_iter().for_each(|(word, meant)| assert_eq!(pin(word), Some(meant)));
        for bad in ["", "3-1", "a", "0-", "9999", "1,,2"] {
            assert_eq!(pin(bad), None, "{bad}");
        }
    }

    #[test]
    fn secrets_do_not_print() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(..)");
    }
}
