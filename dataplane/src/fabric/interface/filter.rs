//! The grammar of `RINGWAY_SOCKET_IFNAME`, which is NCCL's.
//!
//! ```text
//! filter = [ "^" ] [ "=" ] name *( "," name )
//! ```
//! Names are prefixes, or whole names after `=`. `^` turns the list into one of interfaces to leave out: `eth` is every
//! interface whose name begins so, `=eth0` that one alone, `^docker,lo` all but these, `^=lo` all but `lo`.

use std::fmt;
use std::str::FromStr;

/// A list of interfaces to use, or to leave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    exclude: bool,
    exact: bool,
    names: Vec<String>,
}

/// Text that is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` names no interface ({why}): write e.g. eth, =eth0, ^docker,lo or ^=lo")]
pub struct BadFilter {
    /// What was given.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Longest name that Linux gives an interface, in bytes.
const MAX_NAME_BYTES: usize = 15;

impl Filter {
    /// Whether the list is one of interfaces to leave out.
    pub fn excludes(&self) -> bool {
        self.exclude
    }

    /// Whether the filter lets an interface of this name through.
    pub fn admits(&self, name: &str) -> bool {
        let listed = self.names.iter().any(|n| if self.exact { n == name } else { name.starts_with(n) });
        listed != self.exclude
    }
}

impl FromStr for Filter {
    type Err = BadFilter;

    fn from_str(text: &str) -> Result<Filter, BadFilter> {
        let bad = |why| BadFilter { text: text.to_owned(), why };
        let rest = text.trim();
        let (exclude, rest) = rest.strip_prefix('^').map_or((false, rest), |r| (true, r));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |r| (true, r));
        let names: Vec<String> =
            rest.split(',').map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).collect();
        if names.is_empty() {
            return Err(bad("the list is empty"));
        }
        if names.iter().any(|n| n.len() > MAX_NAME_BYTES) {
            return Err(bad("a name is over 15 bytes"));
        }
        if names.iter().any(|n| n.contains(['^', '=', '/']) || n.contains(char::is_whitespace)) {
            return Err(bad("`^` and `=` stand once, in front of the list"));
        }
        Ok(Filter { exclude, exact, names })
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.exclude { "^" } else { "" })?;
        f.write_str(if self.exact { "=" } else { "" })?;
        f.write_str(&self.names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admits_as_nccl_does() {
        let cases = [
            ("eth", "eth0", true),
            ("eth", "veth0", false),
            ("eth0", "eth01", true),
            ("=eth0", "eth0", true),
            ("=eth0", "eth01", false),
            ("eth,ib", "ib3", true),
            ("^docker,lo", "lo", false),
            ("^docker,lo", "docker0", false),
            ("^docker,lo", "ens5", true),
            ("^=lo", "lo", false),
            ("^=lo", "lo0", true),
            (" eth0 , ib0 ", "ib0", true),
        ];
        for (text, name, admitted) in cases {
            let filter: Filter = text.parse().unwrap();
            assert_eq!(filter.admits(name), admitted, "{text} {name}");
            assert_eq!(filter.to_string().parse::<Filter>().unwrap(), filter);
        }
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for text in ["", "^", "=", "^=", ",", "=^lo", "eth0 eth1", "a,^b", "a-name-of-16-byte", "../etc"] {
            let bad = text.parse::<Filter>().unwrap_err();
            assert!(bad.to_string().contains("write e.g."), "{bad}");
        }
    }
}
