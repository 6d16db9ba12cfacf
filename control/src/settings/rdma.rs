//! The settings of RDMA, as the data plane takes them.

use ringway_dataplane::fabric::Policy;
use ringway_dataplane::rdma::RdmaConfig;
use ringway_dataplane::rdma::choice::{AddressRange, Family, HcaFilter, PINNED_LIMIT_BYTES, RoceVersion};

use super::value::{NameList, Value};
use super::{Problem, Settings, Values, mismatch};

/// RDMA's name in `RINGWAY_NET`.
const RDMA: &str = "rdma";

impl Settings {
    /// Whether RDMA is used, by `RINGWAY_RDMA` and `RINGWAY_NET`: a list of transports that leaves it out switches it
    /// off, and one that leaves nothing else requires it.
    pub fn rdma_policy(&self) -> Policy {
        match &self.net {
            net if !net.permits(RDMA) => Policy::Off,
            NameList::Only(names) if names.len() == 1 && self.rdma == Policy::Prefer => Policy::Require,
            _ => self.rdma,
        }
    }

    /// `RINGWAY_RDMA=require` beside a `RINGWAY_NET` that leaves RDMA out.
    pub(super) fn rdma_contradiction(&self) -> Option<Problem> {
        let contradict = self.rdma == Policy::Require && !self.net.permits(RDMA);
        contradict.then(|| Problem::Contradiction {
            one: "RINGWAY_RDMA=require".to_owned(),
            other: format!("RINGWAY_NET={}", self.given.get("RINGWAY_NET").map_or("auto", String::as_str)),
        })
    }
}

impl Values<'_> {
    /// A number that the table keeps below 2^8.
    fn small(&self, name: &str) -> u8 {
        let number = self.number(name).expect("a small number has a default");
        u8::try_from(number).expect("its range ends below 2^8")
    }

    fn hcas(&self, name: &str) -> Option<HcaFilter> {
        match self.value(name)? {
            Value::Hcas(filter) => Some(filter),
            other => mismatch(name, &other),
        }
    }

    fn range(&self, name: &str) -> Option<AddressRange> {
        match self.value(name)? {
            Value::Range(range) => Some(range),
            other => mismatch(name, &other),
        }
    }

    pub(super) fn rdma_config(&self) -> RdmaConfig {
        let index = self.number("RINGWAY_IB_GID_INDEX");
        RdmaConfig {
            hca: self.hcas("RINGWAY_IB_HCA"),
            gid_index: index.map(|index| u8::try_from(index).expect("its range ends below 2^8")),
            family: self.word("RINGWAY_IB_ADDR_FAMILY").map(|word| match word {
                "AF_INET6" => Family::V6,
                _ => Family::V4,
            }),
            range: self.range("RINGWAY_IB_ADDR_RANGE"),
            roce_version: self.word("RINGWAY_IB_ROCE_VERSION").map(|word| match word {
                "1" => RoceVersion::V1,
                _ => RoceVersion::V2,
            }),
            traffic_class: self.small("RINGWAY_IB_TC"),
            service_level: self.small("RINGWAY_IB_SL"),
            pkey_index: u16::from(self.small("RINGWAY_IB_PKEY")),
            timeout: self.small("RINGWAY_IB_TIMEOUT"),
            retry_count: self.small("RINGWAY_IB_RETRY_CNT"),
            pinned_limit_bytes: self.number("RINGWAY_IB_PINNED_BYTES").unwrap_or(PINNED_LIMIT_BYTES),
            ..RdmaConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(pairs: &[(&str, &str)]) -> Vec<String> {
        let error = Settings::from_pairs(pairs.iter().copied()).unwrap_err();
        error.problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rdma_is_configured_by_the_names_of_nccl() {
        let defaults = Settings::default();
        assert_eq!((defaults.rdma, &defaults.rdma_config), (Policy::Prefer, &RdmaConfig::default()));
        let settings = Settings::from_pairs([
            ("RINGWAY_RDMA", "require"),
            ("RINGWAY_IB_HCA", "=mlx5_0:1"),
            ("RINGWAY_IB_GID_INDEX", "3"),
            ("RINGWAY_IB_ADDR_FAMILY", "AF_INET6"),
            ("RINGWAY_IB_ADDR_RANGE", "fd00::/8"),
            ("RINGWAY_IB_ROCE_VERSION", "2"),
            ("RINGWAY_IB_TC", "106"),
            ("RINGWAY_IB_SL", "5"),
            ("RINGWAY_IB_PKEY", "1"),
            ("RINGWAY_IB_TIMEOUT", "20"),
            ("RINGWAY_IB_RETRY_CNT", "3"),
            ("RINGWAY_IB_PINNED_BYTES", "2G"),
        ])
        .unwrap();
        let config = &settings.rdma_config;
        assert_eq!((settings.rdma, config.gid_index, config.pkey_index), (Policy::Require, Some(3), 1));
        assert!(config.hca.as_ref().unwrap().admits("mlx5_0", 1) && config.range.is_some());
        assert_eq!((config.family, config.roce_version), (Some(Family::V6), Some(RoceVersion::V2)));
        assert_eq!((config.traffic_class, config.service_level), (106, 5));
        assert_eq!((config.timeout, config.retry_count), (20, 3));
        assert_eq!((config.pinned_limit_bytes, defaults.rdma_config.pinned_limit_bytes), (2 << 30, 16 << 30));
        let policy =
            |pairs: &[(&str, &str)]| Settings::from_pairs(pairs.iter().copied()).unwrap().rdma_policy();
        assert_eq!(policy(&[("RINGWAY_NET", "tcp")]), Policy::Off);
        assert_eq!(policy(&[("RINGWAY_NET", "^rdma")]), Policy::Off);
        assert_eq!(policy(&[("RINGWAY_NET", "rdma")]), Policy::Require);
        assert_eq!(policy(&[("RINGWAY_NET", "rdma,tcp")]), Policy::Prefer);
        let unset = Settings::from_pairs([("RINGWAY_IB_GID_INDEX", "-1")]).unwrap();
        assert_eq!(unset.rdma_config.gid_index, None);
        let found = problems(&[
            ("RINGWAY_IB_GID_INDEX", "256"),
            ("RINGWAY_IB_HCA", "^"),
            ("RINGWAY_IB_ADDR_RANGE", "10.0.0.0"),
            ("RINGWAY_IB_TIMEOUT", "0"),
            ("RINGWAY_IB_PINNED_BYTES", "4K"),
        ]);
        assert_eq!(found.len(), 5);
        let words = ["10.1.0.0/16", "auto or -1", "=mlx5_0:1", "1048576", "from 1 to 22"];
        assert!(found.iter().zip(words).all(|(said, word)| said.contains(word)), "{found:?}");
    }

    #[test]
    fn rdma_cannot_be_required_and_left_out() {
        let found = problems(&[("RINGWAY_NET", "tcp"), ("RINGWAY_RDMA", "require")]);
        let said = "RINGWAY_RDMA=require and RINGWAY_NET=tcp contradict each other: change one of them";
        assert_eq!(found, [said]);
    }
}
