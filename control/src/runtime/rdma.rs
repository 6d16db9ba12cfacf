//! Whether this rank uses RDMA, and what it says where it does not.
//!
//! With `prefer`, a host that simply has no RDMA is no news; one that has devices that cannot be used is warned of,
//! once, with the reason and the remedy. With `require` both are errors. Either way peers that want RDMA hear why.

use super::pinning::Binding;
use crate::settings::Settings;
use ringway_dataplane::fabric::Policy;
use ringway_dataplane::rdma::choice::{Choice, RdmaConfig, Survey, choose};
use ringway_dataplane::rdma::survey::{self, SurveyError};

/// RDMA's name among transports.
pub(super) const RDMA: &str = "rdma";

/// RDMA is required, and this rank cannot use it.
#[derive(Debug, thiserror::Error)]
#[error("RDMA is required (RINGWAY_RDMA=require, or RINGWAY_NET=rdma) and cannot be used here: {why}")]
pub struct RdmaUnusable {
    /// What is in the way, and what to do about it.
    pub why: String,
    /// The same in short, for peers.
    pub(super) in_short: String,
}

/// What this rank does about RDMA.
#[derive(Debug)]
pub(super) enum Plan {
    /// These rails are to be opened.
    Open(Choice),
    /// It goes without.
    Without(Lack),
}

/// Why a rank goes without RDMA.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lack {
    /// What peers that want it hear.
    pub(super) why: String,
    /// Whether something is in the way that somebody might mend: not where RDMA is off, or plainly not there.
    pub(super) missed: bool,
}

/// Looks at this host, as far as the settings want RDMA, and chooses.
///
/// # Errors
/// [`RdmaUnusable`] when RDMA is required and cannot be used.
pub(super) fn plan(settings: &Settings, binding: &Binding) -> Result<(Plan, RdmaConfig), RdmaUnusable> {
    let mut config = settings.rdma_config.clone();
    let policy = settings.rdma_policy();
    if policy == Policy::Off {
        return Ok((Plan::Without(Lack { why: switched_off(settings), missed: false }), config));
    }
    let found = survey::this_host();
    if let Ok(survey) = &found
        && several_nodes(survey)
    {
        config.near_node = binding.near_node();
    }
    config.near_devices.clone_from(&binding.near_devices);
    Ok((decide(policy, found, &config)?, config))
}

/// Which setting keeps RDMA off.
fn switched_off(settings: &Settings) -> String {
    let by = if settings.rdma == Policy::Off { "RINGWAY_RDMA=off" } else { "RINGWAY_NET leaves it out" };
    format!("{by}: settle on one setting for all ranks")
}

/// Whether it matters on which NUMA node the rank runs.
fn several_nodes(survey: &Survey) -> bool {
    let mut nodes = survey.devices.iter().filter_map(|device| device.numa_node);
    nodes.next().is_some_and(|first| nodes.any(|node| node != first))
}

fn decide(
    policy: Policy,
    found: Result<Survey, SurveyError>,
    config: &RdmaConfig,
) -> Result<Plan, RdmaUnusable> {
    let (why, in_short, absent) = match found.map(|survey| choose(&survey, config)) {
        Ok(Ok(choice)) => return Ok(Plan::Open(choice)),
        Ok(Err(no)) => (no.to_string(), no.in_short(), no.is_absence()),
        Err(error) => (error.to_string(), error.to_string(), false),
    };
    without(policy, why, in_short, absent).map(Plan::Without)
}

/// Goes without RDMA for this reason, which is no news where it is plainly `absent`.
///
/// # Errors
/// [`RdmaUnusable`] when it is required.
pub(super) fn without(
    policy: Policy,
    why: String,
    in_short: String,
    absent: bool,
) -> Result<Lack, RdmaUnusable> {
    if policy == Policy::Require {
        return Err(RdmaUnusable { why, in_short });
    }
    if absent {
        tracing::debug!("RDMA is not used: {why}");
    } else {
        tracing::warn!("RDMA is not used, TCP is: {why} (RINGWAY_RDMA=off says that it is meant so)");
    }
    Ok(Lack { why: in_short, missed: !absent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_dataplane::rdma::choice::{Device, DeviceFile};

    fn in_a_container() -> Survey {
        let device = Device {
            name: "mlx5_0".to_owned(),
            node_guid: 1,
            numa_node: Some(0),
            pci: None,
            file: DeviceFile::Missing { path: "/dev/infiniband/uverbs0".to_owned() },
            known_to_library: true,
            ports: Vec::new(),
        };
        Survey { kernel: true, devices: vec![device], ..Survey::default() }
    }

    #[test]
    fn what_cannot_be_used_is_an_error_only_where_it_is_required() {
        let config = RdmaConfig::default();
        let plan = decide(Policy::Prefer, Ok(in_a_container()), &config).unwrap();
        assert!(
            matches!(plan, Plan::Without(lack) if lack.missed && lack.why.contains("/dev/infiniband is not"))
        );
        let plan = decide(Policy::Prefer, Ok(Survey::default()), &config).unwrap();
        assert!(matches!(plan, Plan::Without(lack) if !lack.missed));
        let error = decide(Policy::Require, Ok(in_a_container()), &config).unwrap_err().to_string();
        assert!(
            error.contains("RINGWAY_RDMA=require") && error.contains("--device=/dev/infiniband"),
            "{error}"
        );
        let error = decide(Policy::Require, Ok(Survey::default()), &config).unwrap_err().to_string();
        assert!(error.contains("no RDMA loaded") && error.contains("modprobe"), "{error}");
    }

    #[test]
    fn peers_hear_which_setting_keeps_it_off() {
        let why =
            |pairs: &[(&str, &str)]| switched_off(&Settings::from_pairs(pairs.iter().copied()).unwrap());
        assert!(why(&[("RINGWAY_RDMA", "off")]).starts_with("RINGWAY_RDMA=off"));
        assert!(why(&[("RINGWAY_NET", "tcp")]).starts_with("RINGWAY_NET leaves it out"));
    }

    #[test]
    fn the_node_matters_where_devices_are_on_several() {
        let mut survey = in_a_container();
        assert!(!several_nodes(&survey));
        survey.devices.push(Device { numa_node: Some(1), ..survey.devices[0].clone() });
        assert!(several_nodes(&survey));
    }
}
