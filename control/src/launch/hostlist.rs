//! Slurm's compressed host lists: `gpu[001-003,007],login` stands for gpu001, gpu002, gpu003, gpu007 and login.

/// The most hosts that a list may stand for; a larger one is refused instead of filling memory.
const MAX_HOSTS: usize = 65_536;

/// Why a host list could not be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostlistError {
    /// Brackets do not match.
    #[error("brackets do not match at byte {at}")]
    Brackets {
        /// Where, in bytes from the start.
        at: usize,
    },
    /// A range inside brackets is not `number` or `first-last`.
    #[error("{range:?} is not a number or a rising range of numbers")]
    Range {
        /// The range as given.
        range: String,
    },
    /// There is an empty name.
    #[error("a name is empty")]
    Empty,
    /// It stands for too many hosts.
    #[error("it stands for more than {MAX_HOSTS} hosts")]
    TooMany,
}

/// Expands a host list, keeping its order. Several bracket groups in one name multiply, the last one fastest;
/// leading zeros are kept.
///
/// # Errors
/// When brackets do not match, a range is not one, a name is empty, or there are more than 65,536 hosts.
pub fn expand(list: &str) -> Result<Vec<String>, HostlistError> {
    let mut hosts = Vec::new();
    for name in split_outside_brackets(list)? {
        let expanded = expand_name(name, MAX_HOSTS - hosts.len())?;
        hosts.extend(expanded);
    }
    Ok(hosts)
}

/// Splits at the commas that are outside of brackets.
fn split_outside_brackets(list: &str) -> Result<Vec<&str>, HostlistError> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, byte) in list.bytes().enumerate() {
        match (byte, inside) {
            (b'[', false) => inside = true,
            (b']', true) => inside = false,
            (b'[', true) | (b']', false) => return Err(HostlistError::Brackets { at }),
            (b',', false) => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(HostlistError::Brackets { at: list.len() });
    }
    parts.push(&list[start..]);
    if parts.iter().any(|part| part.is_empty()) {
        return Err(HostlistError::Empty);
    }
    Ok(parts)
}

fn expand_name(name: &str, limit: usize) -> Result<Vec<String>, HostlistError> {
    let mut heads = vec![String::new()];
    let mut rest = name;
    while let Some((literal, tail)) = rest.split_once('[') {
        let (ranges, after) = tail.split_once(']').ok_or(HostlistError::Brackets { at: name.len() })?;
        let numbers = expand_ranges(ranges, limit)?;
        if heads.len().saturating_mul(numbers.len()) > limit {
            return Err(HostlistError::TooMany);
        }
        heads = heads
            .iter()
            .flat_map(|head| numbers.iter().map(move |number| format!("{head}{literal}{number}")))
            .collect();
        rest = after;
    }
    if heads.len() > limit {
        return Err(HostlistError::TooMany);
    }
    for head in &mut heads {
        head.push_str(rest);
    }
    Ok(heads)
}

fn expand_ranges(ranges: &str, limit: usize) -> Result<Vec<String>, HostlistError> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let bad = || HostlistError::Range { range: range.to_owned() };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(first) || !digits(last) {
            return Err(bad());
        }
        let (from, to): (u64, u64) = (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
        if from > to {
            return Err(bad());
        }
        if to - from >= (limit - numbers.len().min(limit)) as u64 {
            return Err(HostlistError::TooMany);
        }
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_expand_in_order() {
        let expanded = |list| expand(list).unwrap().join(" ");
        assert_eq!(expanded("login"), "login");
        assert_eq!(expanded("gpu[001-003,007],login"), "gpu001 gpu002 gpu003 gpu007 login");
        assert_eq!(expanded("r[1-2]n[8-10]-ib"), "r1n8-ib r1n9-ib r1n10-ib r2n8-ib r2n9-ib r2n10-ib");
        assert_eq!(expanded("a,b[3],c"), "a b3 c");
        assert_eq!(expanded("n[099-101]"), "n099 n100 n101");
    }

    #[test]
    fn broken_lists_are_refused() {
        assert_eq!(expand(""), Err(HostlistError::Empty));
        assert_eq!(expand("a,,b"), Err(HostlistError::Empty));
        assert_eq!(expand("a[1"), Err(HostlistError::Brackets { at: 3 }));
        assert_eq!(expand("a]1"), Err(HostlistError::Brackets { at: 1 }));
        assert_eq!(expand("a[[1]]"), Err(HostlistError::Brackets { at: 2 }));
        for range in ["", "3-1", "x", "1-", "-2", "1-2-3", "99999999999999999999999"] {
            assert_eq!(expand(&format!("a[{range}]")), Err(HostlistError::Range { range: range.into() }));
        }
        assert_eq!(expand("a[0-99999999]"), Err(HostlistError::TooMany));
        assert_eq!(expand("a[0-299]b[0-299]"), Err(HostlistError::TooMany));
        assert_eq!(expand("a[0-65535],b"), Err(HostlistError::TooMany));
        assert_eq!(expand("a[0-65535]").unwrap().len(), MAX_HOSTS);
    }
}
