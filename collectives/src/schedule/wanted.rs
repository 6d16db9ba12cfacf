//! Which algorithms may run which collective, as a user asks for it, in the grammar of NCCL's `NCCL_ALGO`.

#![forbid(unsafe_code)]

use super::algorithm::{Algorithm, Collective, NameError};
use std::fmt;
use std::str::FromStr;

/// How many collectives there are.
const COLLECTIVES: usize = Collective::ALL.len();
/// One bit for each algorithm.
const EVERY: u32 = (1 << Algorithm::ALL.len()) - 1;

/// The algorithms that may be used, by collective.
///
/// Read from text: `ring,tree` (those, for every collective), `^ring` (all but those), `allreduce:tree;broadcast:^chain`
/// (by collective, others as they like), `^leaders;allreduce:ring` (by collective, behind what holds for the others);
/// `auto` for any. Names in any case, with or without hyphens and underscores. Where a list for every collective has
/// no algorithm that a collective could be run by, that one is run by any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wanted([u32; COLLECTIVES]);

/// Why a text does not say which algorithms are wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WantedError {
    /// A name that nothing has.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A part between semicolons is empty.
    #[error("a part of it is empty: give algorithms, or collective:algorithms, with ; between")]
    Empty,
    /// No algorithm that is asked for exists for the collective.
    #[error("{collective} has none of the algorithms asked for: it has {has}")]
    None {
        /// The collective.
        collective: Collective,
        /// What it has, with commas between.
        has: String,
    },
    /// Two parts are for one collective.
    #[error("{0} is given twice")]
    Twice(String),
}

impl Wanted {
    /// Any algorithm for every collective.
    pub const ANY: Wanted = Wanted([EVERY; COLLECTIVES]);

    /// This algorithm, for every collective that has it.
    pub const fn only(algorithm: Algorithm) -> Wanted {
        Wanted([1 << algorithm as u32; COLLECTIVES])
    }

    /// Whether nothing is ruled out for a collective.
    pub const fn is_any(&self, collective: Collective) -> bool {
        self.0[collective as usize] == EVERY
    }

    /// Whether a collective may be run by an algorithm.
    pub const fn permits(&self, collective: Collective, algorithm: Algorithm) -> bool {
        self.0[collective as usize] & (1 << algorithm as u32) != 0
    }
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted::ANY
    }
}

impl From<Algorithm> for Wanted {
    fn from(algorithm: Algorithm) -> Wanted {
        Wanted::only(algorithm)
    }
}

/// The algorithms of a list.
fn list(text: &str) -> Result<u32, WantedError> {
    if text.trim().eq_ignore_ascii_case("auto") {
        return Ok(EVERY);
    }
    let (names, except) = match text.trim().strip_prefix('^') {
        Some(names) => (names, true),
        None => (text, false),
    };
    let mut bits = 0;
    for name in names.split(',') {
        let algorithm: Algorithm = name.trim().parse()?;
        bits |= 1 << algorithm as u32;
    }
    Ok(if except { EVERY & !bits } else { bits })
}

fn listed(bits: u32) -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(move |a| bits & (1 << *a as u32) != 0)
}

/// Names with commas between.
fn names(algorithms: impl Iterator<Item = Algorithm>) -> String {
    algorithms.map(|a| a.name().to_ascii_lowercase()).collect::<Vec<_>>().join(",")
}

impl FromStr for Wanted {
    type Err = WantedError;

    fn from_str(text: &str) -> Result<Wanted, WantedError> {
        let (mut all, mut by_collective) = (None, [None; COLLECTIVES]);
        for part in text.split(';') {
            if part.trim().is_empty() {
                return Err(WantedError::Empty);
            }
            let (place, name, algorithms) = match part.split_once(':') {
                None => (&mut all, "the list for every collective".to_owned(), part),
                Some((collective, algorithms)) => {
                    let collective: Collective = collective.trim().parse()?;
                    (&mut by_collective[collective as usize], collective.to_string(), algorithms)
                }
            };
            if place.replace(list(algorithms)?).is_some() {
                return Err(WantedError::Twice(name));
            }
        }
        let mut wanted = Wanted::ANY;
        for collective in Collective::ALL {
            let own = by_collective[collective as usize];
            let bits = own.or(all).unwrap_or(EVERY);
            let exists = collective.algorithms().iter().any(|a| bits & (1 << *a as u32) != 0);
            if own.is_some() && !exists {
                let has = names(collective.algorithms().iter().copied());
                return Err(WantedError::None { collective, has });
            }
            wanted.0[collective as usize] = bits;
        }
        Ok(wanted)
    }
}

impl fmt::Display for Wanted {
    /// As text that is read back as the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = |bits: &u32| self.0.iter().filter(|other| *other == bits).count();
        let common = self.0.iter().copied().max_by_key(|bits| (most(bits), *bits)).unwrap_or(EVERY);
        let text = |bits: u32| if bits == EVERY { "auto".to_owned() } else { names(listed(bits)) };
        f.write_str(&text(common))?;
        for collective in Collective::ALL {
            let bits = self.0[collective as usize];
            if bits != common {
                write!(f, ";{collective}:{}", text(bits))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permitted(text: &str, collective: Collective) -> String {
        let wanted: Wanted = text.parse().unwrap();
        assert_eq!(wanted.to_string().parse(), Ok(wanted), "{text}: {wanted}");
        names(collective.algorithms().iter().copied().filter(|a| wanted.permits(collective, *a)))
    }

    #[test]
    fn the_grammar_is_that_of_nccl() {
        use Collective::{AllReduce, Broadcast, ReduceScatter};
        assert_eq!(permitted("Ring,TREE", AllReduce), "ring,tree");
        assert_eq!(permitted("ring", ReduceScatter), "ring");
        assert_eq!(permitted("^ring", ReduceScatter), "halving,direct,chain,exchange");
        assert_eq!(permitted("allreduce:tree;broadcast:chain", AllReduce), "tree");
        assert_eq!(permitted("allreduce:tree;broadcast:chain", Broadcast), "chain");
        assert_eq!(
            permitted("allreduce:tree;broadcast:chain", ReduceScatter),
            "ring,halving,direct,chain,exchange"
        );
        assert_eq!(permitted("^ring ; all_reduce: ^tree", ReduceScatter), "halving,direct,chain,exchange");
        assert!(permitted("^ring;all_reduce:^tree", AllReduce).starts_with("ring,doubling"));
        assert_eq!(permitted("auto;all-reduce:double_tree", AllReduce), "doubletree");
        assert_eq!("auto".parse(), Ok(Wanted::ANY));
    }

    #[test]
    fn what_means_nothing_is_told() {
        let told = |text: &str| text.parse::<Wanted>().unwrap_err().to_string();
        assert!(told("rings").contains("unknown algorithm"));
        assert!(told("allreduces:ring").contains("unknown collective"));
        assert!(told("ring;").contains("empty"));
        assert!(told("").contains("empty"));
        assert!(told("ring;tree").contains("twice"));
        assert!(told("allreduce:ring;all_reduce:tree").contains("all_reduce is given twice"));
        let none = told("broadcast:ring");
        assert!(none.contains("broadcast has none") && none.contains("chain"), "{none}");
    }
}
