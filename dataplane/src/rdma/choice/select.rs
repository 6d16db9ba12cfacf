//! The rails of this side: which ports and which of their GIDs, and why (R3, R5).
//!
//! Ports that are named by `RINGWAY_IB_HCA`, or all. Of those that work, the fastest are used together, the ones near
//! the rank's accelerator or NUMA node before others: one message is striped over them, so a slower one would hold the others up. A
//! port's link-local GIDs count only where it has no other that may be used.

use std::cmp::Reverse;
use std::fmt;

use super::MAX_RAILS;
use super::config::RdmaConfig;
use super::gid::{is_link_local, objection, preference};
use super::model::{Device, Gid, LinkLayer, LockedMemory, Mtu, Port, Survey};
use super::obstacle::Obstacle;
use super::offer::MAX_GIDS;

/// One port that this side uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rail {
    /// The device.
    pub device: String,
    /// The device's node GUID.
    pub node_guid: u64,
    /// The NUMA node next to the device.
    pub numa_node: Option<u32>,
    /// The file by which the device is opened.
    pub path: String,
    /// The port's number.
    pub port: u8,
    /// What the port speaks.
    pub link_layer: LinkLayer,
    /// The port's LID; 0 on Ethernet.
    pub lid: u16,
    /// Upper half of the port's first GID: the subnet of an InfiniBand port.
    pub subnet_prefix: u64,
    /// GIDs that may be used, best first, never none.
    pub gids: Vec<Gid>,
    /// The MTU, as far as the kernel's files tell; the device itself knows.
    pub mtu: Option<Mtu>,
    /// Speed in megabits per second; 0 when not told.
    pub rate_mbps: u32,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// The partition key.
    pub pkey: u16,
}

impl fmt::Display for Rail {
    /// `rxe0:1, GID 1, RoCE v2 10.77.0.1 on sr0` or `mlx5_0:1, LID 7`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}, ", self.device, self.port)?;
        match self.link_layer {
            LinkLayer::InfiniBand => write!(f, "InfiniBand, LID {}", self.lid),
            LinkLayer::Ethernet => write!(f, "{}", self.gids[0]),
        }
    }
}

/// What was decided about one port, or about a device that has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The device.
    pub device: String,
    /// The port; 0 for the device as a whole.
    pub port: u8,
    /// Whether it is used.
    pub picked: bool,
    /// Why, or why not.
    pub why: String,
    /// What is in its way, if anything is.
    pub obstacle: Option<Obstacle>,
}

/// The rails of this side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// One to [`MAX_RAILS`], best first.
    pub rails: Vec<Rail>,
    /// One per port.
    pub verdicts: Vec<Verdict>,
}

/// This side cannot use RDMA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NoRail {
    /// At least one, the most telling first.
    pub obstacles: Vec<Obstacle>,
    /// One per port that was looked at.
    pub verdicts: Vec<Verdict>,
}

impl NoRail {
    fn of(obstacle: Obstacle) -> NoRail {
        NoRail { obstacles: vec![obstacle], verdicts: Vec::new() }
    }

    /// The most telling obstacle alone with its remedy, for a peer that asks.
    pub fn in_short(&self) -> String {
        self.obstacles.first().map_or(String::new(), |first| format!("{first}: {}", first.remedy()))
    }

    /// Whether this host simply has no RDMA, as most hosts do.
    pub fn is_absence(&self) -> bool {
        self.obstacles.iter().all(Obstacle::is_absence)
    }
}

/// Most obstacles that one line lists.
const LISTED_OBSTACLES: usize = 3;

impl fmt::Display for NoRail {
    /// One line: the obstacles, and what to do about each kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.obstacles[..self.obstacles.len().min(LISTED_OBSTACLES)];
        for (i, obstacle) in shown.iter().enumerate() {
            write!(f, "{}{obstacle}", if i == 0 { "" } else { "; " })?;
            let remedy = obstacle.remedy();
            if shown.get(i + 1).is_none_or(|next| next.remedy() != remedy) {
                write!(f, ": {remedy}")?;
            }
        }
        match self.obstacles.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, "; and {more} more, which ringway doctor lists"),
        }
    }
}

/// Chooses the rails of this side.
///
/// # Errors
/// [`NoRail`] with what is in the way when no port can be used.
pub fn choose(survey: &Survey, config: &RdmaConfig) -> Result<Choice, NoRail> {
    if let Some(obstacle) = of_host(survey, config) {
        return Err(NoRail::of(obstacle));
    }
    let (mut rails, mut verdicts) = (Vec::new(), Vec::new());
    for device in &survey.devices {
        for port in &device.ports {
            let (picked, why, obstacle) = match rail(device, port, config) {
                _ if config.hca.as_ref().is_some_and(|hca| !hca.admits(&device.name, port.number)) => {
                    (false, "RINGWAY_IB_HCA leaves it out".to_owned(), None)
                }
                Ok(rail) => {
                    rails.push(rail);
                    (true, String::new(), None)
                }
                Err(obstacle) => (false, obstacle.to_string(), Some(obstacle)),
            };
            let (device, port) = (device.name.clone(), port.number);
            verdicts.push(Verdict { device, port, picked, why, obstacle });
        }
        if device.ports.is_empty() {
            let obstacle = Obstacle::NoPort { device: device.name.clone() };
            let (device, why) = (device.name.clone(), obstacle.to_string());
            verdicts.push(Verdict { device, port: 0, picked: false, why, obstacle: Some(obstacle) });
        }
    }
    if rails.is_empty() {
        let mut obstacles: Vec<Obstacle> = verdicts.iter().filter_map(|v| v.obstacle.clone()).collect();
        obstacles.dedup();
        if obstacles.is_empty() {
            obstacles.push(filtered_away(survey, config));
        }
        return Err(NoRail { obstacles, verdicts });
    }
    narrow(&mut rails, &mut verdicts, config);
    Ok(Choice { rails, verdicts })
}

/// What is in the way whatever the port.
fn of_host(survey: &Survey, config: &RdmaConfig) -> Option<Obstacle> {
    if !survey.kernel {
        return Some(Obstacle::NoKernelSupport);
    }
    if survey.devices.is_empty() {
        return Some(Obstacle::NoDevice);
    }
    if !survey.device_folder {
        let devices = survey.devices.iter().map(|device| device.name.clone()).collect();
        return Some(Obstacle::NoDeviceFolder { devices });
    }
    if let Some(why) = &survey.library_missing {
        return Some(Obstacle::NoLibrary { why: why.clone() });
    }
    match survey.locked_memory {
        LockedMemory::Bytes(limit_bytes) if limit_bytes < config.min_locked_bytes => {
            Some(Obstacle::LockedMemoryLow { limit_bytes, needed_bytes: config.min_locked_bytes })
        }
        _ => None,
    }
}

fn filtered_away(survey: &Survey, config: &RdmaConfig) -> Obstacle {
    let ports = |device: &Device| {
        let name = device.name.clone();
        device.ports.iter().map(move |port| format!("{name}:{}", port.number)).collect::<Vec<_>>()
    };
    Obstacle::FilterLeavesNothing {
        filter: config.hca.as_ref().map(ToString::to_string).unwrap_or_default(),
        found: survey.devices.iter().flat_map(ports).collect(),
    }
}

/// A port as a rail, or the first thing in its way.
fn rail(device: &Device, port: &Port, config: &RdmaConfig) -> Result<Rail, Obstacle> {
    let name = format!("{}:{}", device.name, port.number);
    if let Some(obstacle) = Obstacle::of_file(&device.name, &device.file) {
        return Err(obstacle);
    }
    if !device.known_to_library {
        return Err(Obstacle::NoProvider { device: device.name.clone() });
    }
    if let Some(obstacle) = Obstacle::of_state(&name, port) {
        return Err(obstacle);
    }
    let gids = usable_gids(&name, port, config)?;
    let pkey = port.pkeys.iter().find(|(index, _)| *index == config.pkey_index);
    let Some((pkey_index, pkey)) = pkey.copied() else {
        let found = port.pkeys.iter().map(|(index, key)| format!("{index}: {key:#06x}")).collect();
        return Err(Obstacle::NoPkey { port: name, index: config.pkey_index, found });
    };
    let first = port.gids.iter().find(|gid| gid.index == 0).unwrap_or(&gids[0]);
    Ok(Rail {
        device: device.name.clone(),
        node_guid: device.node_guid,
        numa_node: device.numa_node,
        path: device.file.path().to_owned(),
        port: port.number,
        link_layer: port.link_layer,
        lid: port.lid,
        subnet_prefix: (u128::from_be_bytes(first.bytes) >> 64) as u64,
        gids,
        mtu: port.active_mtu,
        rate_mbps: port.rate_mbps,
        pkey_index,
        pkey,
    })
}

/// The GIDs of a port that may be used, best first.
fn usable_gids(name: &str, port: &Port, config: &RdmaConfig) -> Result<Vec<Gid>, Obstacle> {
    /// So that many addresses of one kind do not crowd out those of another that the peer has.
    const OF_A_KIND: usize = 4;
    let port_name = name.to_owned();
    if port.gids.is_empty() {
        return Err(Obstacle::NoGid { port: port_name });
    }
    let fixed = config.gid_index.filter(|_| port.link_layer == LinkLayer::Ethernet);
    if let Some(index) = fixed {
        let found = port.gids.iter().map(ToString::to_string).collect();
        let gid = port.gids.iter().find(|gid| gid.index == index);
        let gid = gid.ok_or(Obstacle::NoSuchGidIndex { port: port_name.clone(), index, found })?;
        return match gid.netdev_here {
            true => Ok(vec![gid.clone()]),
            false => Err(Obstacle::NoUsableGid { port: port_name, gids: refused(port, config) }),
        };
    }
    let mut usable: Vec<Gid> =
        port.gids.iter().filter(|gid| objection(gid, config).is_none()).cloned().collect();
    usable.sort_by_key(preference);
    // A link-local GID stands for nobody's intention, and between two hosts nothing tells whether it leads anywhere.
    if usable.iter().any(|gid| !is_link_local(&gid.bytes)) {
        usable.retain(|gid| !is_link_local(&gid.bytes));
    }
    let kind = |gid: &Gid| {
        let (version, local, family, _) = preference(gid);
        (version, local, family)
    };
    let all = usable.clone();
    usable.retain(|gid| {
        let before = all.iter().take_while(|other| other.index != gid.index);
        before.filter(|other| kind(other) == kind(gid)).count() < OF_A_KIND
    });
    usable.truncate(MAX_GIDS);
    if usable.is_empty() {
        return Err(Obstacle::NoUsableGid { port: port_name, gids: refused(port, config) });
    }
    Ok(usable)
}

fn refused(port: &Port, config: &RdmaConfig) -> Vec<String> {
    let why = |gid: &Gid| objection(gid, config).map(|why| format!("{gid}: {why}"));
    port.gids.iter().filter_map(why).collect()
}

/// Keeps the rails that are used together, best first, and tells the verdicts.
fn narrow(rails: &mut Vec<Rail>, verdicts: &mut [Verdict], config: &RdmaConfig) {
    let named = config.hca.as_ref().is_some_and(|hca| !hca.excludes());
    let is_far = |rail: &Rail| match (config.near_node, rail.numa_node) {
        _ if !config.near_devices.is_empty() => !config.near_devices.contains(&rail.device),
        (Some(rank), Some(device)) => rank != device,
        _ => false,
    };
    rails.sort_by_key(|r| (r.link_layer, Reverse(r.rate_mbps), is_far(r), r.device.clone(), r.port));
    // InfiniBand sorts first; it is taken first only where it is as fast.
    let fastest = rails.iter().map(|r| r.rate_mbps).max().unwrap_or(0);
    rails.sort_by_key(|r| r.rate_mbps != fastest);
    let best = rails[0].clone();
    let mut kept = 0;
    rails.retain(|rail| {
        let out = if rail.link_layer != best.link_layer {
            Some(format!("{} is used, and rails speak one of both", best.link_layer))
        } else if !named && rail.rate_mbps != best.rate_mbps {
            Some(format!("{}:{} is faster", best.device, best.port))
        } else if !named && is_far(rail) != is_far(&best) {
            Some(format!("{}:{} is nearer to the rank", best.device, best.port))
        } else if kept == MAX_RAILS {
            Some(format!("{MAX_RAILS} ports are used already"))
        } else {
            None
        };
        kept += usize::from(out.is_none());
        let verdict = verdicts.iter_mut().find(|v| v.device == rail.device && v.port == rail.port);
        if let Some(verdict) = verdict {
            verdict.picked = out.is_none();
            verdict.why = out.clone().unwrap_or_else(|| praise(rail, named, is_far(rail), config));
        }
        out.is_none()
    });
}

fn praise(rail: &Rail, named: bool, far: bool, config: &RdmaConfig) -> String {
    let why = match &config.hca {
        Some(hca) if named => format!("RINGWAY_IB_HCA={hca} names it"),
        _ if far => "the fastest, though none is near the rank".to_owned(),
        _ if !config.near_devices.is_empty() => "the fastest next to the rank's accelerator".to_owned(),
        _ if config.near_node.is_some() && rail.numa_node.is_some() => "the fastest near the rank".to_owned(),
        _ => "the fastest that works".to_owned(),
    };
    match rail.link_layer {
        LinkLayer::InfiniBand => format!("used: {why}; by LID {}", rail.lid),
        LinkLayer::Ethernet => match config.gid_index {
            Some(_) => format!("used: {why}; {} (RINGWAY_IB_GID_INDEX asks for it)", rail.gids[0]),
            None => format!("used: {why}; {}", rail.gids[0]),
        },
    }
}
