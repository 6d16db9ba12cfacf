//! What the settings want of RDMA.

use super::filter::HcaFilter;
use super::gid::{AddressRange, Family};
use super::model::RoceVersion;

/// How RDMA is to be used. Defaults are those of the settings' table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaConfig {
    /// Which devices and ports; `None` leaves it to the choice.
    pub hca: Option<HcaFilter>,
    /// The one GID to use on every Ethernet port; `None` chooses by kind, family and subnet.
    pub gid_index: Option<u8>,
    /// Only GIDs of this family; `None` takes both, IPv4 first.
    pub family: Option<Family>,
    /// Only GIDs in this range of addresses.
    pub range: Option<AddressRange>,
    /// Only this version of RoCE; `None` takes both, version 2 first.
    pub roce_version: Option<RoceVersion>,
    /// Traffic class of RoCE packets and of InfiniBand's global header.
    pub traffic_class: u8,
    /// InfiniBand's service level, 0 to 15.
    pub service_level: u8,
    /// Index into the port's table of partition keys, as in NCCL.
    pub pkey_index: u16,
    /// Time before a packet without acknowledgement is sent again: 4.096 us times two to this power, 1 to 22.
    pub timeout: u8,
    /// How often it is sent again before the connection counts as broken, 0 to 7.
    pub retry_count: u8,
    /// Bytes of lent memory that are pinned at a time, counted once per device.
    pub pinned_limit_bytes: u64,
    /// NUMA node on which the rank runs: ports near it come first.
    pub near_node: Option<u32>,
    /// Devices next to the rank's accelerator: they come first, whatever the node. Empty where it has none.
    pub near_devices: Vec<String>,
    /// Memory that must be lockable for RDMA to be of use, in bytes.
    pub min_locked_bytes: u64,
}

/// Locked memory below which RDMA is not tried: queues and staging of a few peers.
pub const MIN_LOCKED_BYTES: u64 = 1 << 20;

/// The default of [`RdmaConfig::pinned_limit_bytes`].
pub const PINNED_LIMIT_BYTES: u64 = 16 << 30;

/// The default of [`RdmaConfig::timeout`]: 0.27 s a try, so that with 7 retries a dead path is given up after 2 to
/// 9 s (a device may wait up to four times longer), before the heartbeat limit of 10 s, and a link that
/// flaps for a second costs no connection.
pub const DEFAULT_TIMEOUT: u8 = 16;

/// The default of [`RdmaConfig::retry_count`].
pub const DEFAULT_RETRY_COUNT: u8 = 7;

impl Default for RdmaConfig {
    fn default() -> Self {
        RdmaConfig {
            hca: None,
            gid_index: None,
            family: None,
            range: None,
            roce_version: None,
            traffic_class: 0,
            service_level: 0,
            pkey_index: 0,
            timeout: DEFAULT_TIMEOUT,
            retry_count: DEFAULT_RETRY_COUNT,
            pinned_limit_bytes: PINNED_LIMIT_BYTES,
            near_node: None,
            near_devices: Vec::new(),
            min_locked_bytes: MIN_LOCKED_BYTES,
        }
    }
}
