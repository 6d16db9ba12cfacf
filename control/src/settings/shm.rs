//! The setting of shared memory.

use ringway_dataplane::fabric::Policy;

use super::value::NameList;
use super::{Problem, Settings};

/// Shared memory's name in `RINGWAY_NET`.
const SHM: &str = "shm";

impl Settings {
    /// Whether shared memory is used between processes of a host, by `RINGWAY_SHM` and `RINGWAY_NET`: a list of
    /// transports that leaves it out switches it off, and one that leaves nothing else requires it.
    pub fn shm_policy(&self) -> Policy {
        match &self.net {
            net if !net.permits(SHM) => Policy::Off,
            NameList::Only(names) if names.len() == 1 && self.shm == Policy::Prefer => Policy::Require,
            _ => self.shm,
        }
    }

    /// `RINGWAY_SHM=require` beside a `RINGWAY_NET` that leaves it out.
    pub(super) fn shm_contradiction(&self) -> Option<Problem> {
        let contradict = self.shm == Policy::Require && !self.net.permits(SHM);
        contradict.then(|| Problem::Contradiction {
            one: "RINGWAY_SHM=require".to_owned(),
            other: format!("RINGWAY_NET={}", self.given.get("RINGWAY_NET").map_or("auto", String::as_str)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_preferred_and_follows_the_list_of_transports() {
        let policy = |pairs: &[(&str, &str)]| {
            Settings::from_pairs(pairs.iter().copied()).map(|settings| settings.shm_policy())
        };
        assert_eq!(policy(&[]), Ok(Policy::Prefer));
        assert_eq!(policy(&[("RINGWAY_SHM", "off")]), Ok(Policy::Off));
        assert_eq!(policy(&[("RINGWAY_NET", "tcp")]), Ok(Policy::Off));
        assert_eq!(policy(&[("RINGWAY_NET", "^shm")]), Ok(Policy::Off));
        assert_eq!(policy(&[("RINGWAY_NET", "shm")]), Ok(Policy::Require));
        assert_eq!(policy(&[("RINGWAY_NET", "shm,tcp")]), Ok(Policy::Prefer));
        let error = policy(&[("RINGWAY_SHM", "require"), ("RINGWAY_NET", "tcp")]).unwrap_err().to_string();
        assert!(error.contains("RINGWAY_SHM=require and RINGWAY_NET=tcp contradict"), "{error}");
    }
}
