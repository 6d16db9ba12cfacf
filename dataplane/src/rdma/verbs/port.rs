//! Ports of a device, and their GID tables.

use super::VerbsError;
use super::context::Context;
use super::sys;
use std::fmt;
use std::mem::{offset_of, size_of, zeroed};

/// State of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortStatus {
    /// No link.
    Down,
    /// Link, and no configuration from the subnet manager yet.
    Initializing,
    /// Configured, and not yet switched to active.
    Armed,
    /// Carries traffic.
    Active,
    /// Active, while the link recovers from an error.
    ActiveDefer,
    /// A state that this program does not know, by its number.
    Other(u32),
}

/// What a port's link speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID within a subnet.
    InfiniBand,
    /// Ethernet (RoCE): addressed by GID.
    Ethernet,
    /// Neither is said: devices of before RoCE, which are InfiniBand.
    Unspecified,
}

/// What a port is and does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortState {
    /// State of its link.
    pub status: PortStatus,
    /// What the link speaks.
    pub link_layer: LinkLayer,
    /// Largest payload of a packet that the port could carry, in bytes.
    pub max_mtu_bytes: u32,
    /// Largest payload of a packet that its link carries now, in bytes.
    pub active_mtu_bytes: u32,
    /// Its address in an InfiniBand subnet; 0 on RoCE.
    pub lid: u16,
    /// Low bits of the LID that also lead here.
    pub lid_mask_control: u8,
    /// Address of the subnet manager; 0 on RoCE.
    pub sm_lid: u16,
    /// Whether packets need a global route header even within the subnet.
    pub needs_global_route: bool,
    /// Entries of its GID table, used or not.
    pub gid_table_len: u32,
    /// Entries of its table of partition keys.
    pub pkey_table_len: u16,
    /// Most bytes of one message.
    pub max_message_bytes: u32,
    /// Lanes of the link; 0 where the device does not say.
    pub lanes: u8,
    /// Signalling rate of all lanes together, in megabits a second; 0 where the device does not say.
    pub speed_mbps: u32,
}

/// Which network a GID addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// An InfiniBand subnet.
    InfiniBand,
    /// RoCE version 1: Ethernet frames that no router forwards.
    RoceV1,
    /// RoCE version 2: UDP over IPv4 or IPv6. The GID is the IP address, IPv4 as `::ffff:a.b.c.d`.
    RoceV2,
}

/// A used entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index, which a [`GlobalRoute`](super::GlobalRoute) names.
    pub index: u32,
    /// The address.
    pub gid: [u8; 16],
    /// Of which network.
    pub kind: GidKind,
    /// The network interface that it belongs to, where there is one.
    pub interface: Option<String>,
}

pub(super) fn query(context: &Context, port: u8) -> Result<PortState, VerbsError> {
    // SAFETY: the attributes are plain numbers, for which all zeros are valid.
    let mut at: sys::ibv_port_attr = unsafe { zeroed() };
    // SAFETY: the context is open, `at` is writable for the call; the older verb fills the first part of it.
    let returned = unsafe {
        match extended_query_port(context) {
            Some(query) => query(context.raw(), port, &mut at, size_of::<sys::ibv_port_attr>()),
            None => context.sys().ibv_query_port(context.raw(), port, (&raw mut at).cast()),
        }
    };
    context.check("ibv_query_port", returned)?;
    let lanes = lanes(at.active_width);
    Ok(PortState {
        status: status(at.state),
        link_layer: match u32::from(at.link_layer) {
            sys::IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            sys::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        },
        max_mtu_bytes: mtu_bytes(at.max_mtu),
        active_mtu_bytes: mtu_bytes(at.active_mtu),
        lid: at.lid,
        lid_mask_control: at.lmc,
        sm_lid: at.sm_lid,
        needs_global_route: at.flags & GRH_REQUIRED != 0,
        gid_table_len: u32::try_from(at.gid_tbl_len).unwrap_or(0),
        pkey_table_len: at.pkey_tbl_len,
        max_message_bytes: at.max_msg_sz,
        lanes,
        speed_mbps: u32::from(lanes) * lane_mbps(at.active_speed),
    })
}

/// IBV_QPF_GRH_REQUIRED of the header.
const GRH_REQUIRED: u8 = 1;

type QueryPort =
    unsafe extern "C" fn(*mut sys::ibv_context, u8, *mut sys::ibv_port_attr, usize) -> std::ffi::c_int;

/// The device's newer way to ask for a port, if the library has it: what `verbs_get_ctx_op` of the header does.
fn extended_query_port(context: &Context) -> Option<QueryPort> {
    /// `__VERBS_ABI_IS_EXTENDED` of the header.
    const EXTENDED: usize = usize::MAX;
    let raw = context.raw();
    // SAFETY: the context is open.
    if unsafe { (*raw).abi_compat }.addr() != EXTENDED {
        return None;
    }
    let extended = raw.wrapping_byte_sub(offset_of!(sys::verbs_context, context));
    let extended = extended.cast::<sys::verbs_context>();
    // SAFETY: with that mark, the context is the last field of a `verbs_context`. That grows towards lower
    // addresses, and `sz`, just before the context, says how much of it the library made.
    let size = unsafe { (*extended).sz };
    if size < size_of::<sys::verbs_context>() - offset_of!(sys::verbs_context, query_port) {
        return None;
    }
    // SAFETY: by its size, the structure has this field.
    unsafe { (*extended).query_port }
}

fn status(state: sys::ibv_port_state) -> PortStatus {
    match state {
        sys::IBV_PORT_DOWN => PortStatus::Down,
        sys::IBV_PORT_INIT => PortStatus::Initializing,
        sys::IBV_PORT_ARMED => PortStatus::Armed,
        sys::IBV_PORT_ACTIVE => PortStatus::Active,
        sys::IBV_PORT_ACTIVE_DEFER => PortStatus::ActiveDefer,
        other => PortStatus::Other(other),
    }
}

fn mtu_bytes(code: sys::ibv_mtu) -> u32 {
    if (sys::IBV_MTU_256..=sys::IBV_MTU_4096).contains(&code) { 128 << code } else { 0 }
}

/// The header's code of a path MTU.
pub(super) fn mtu_code(bytes: u32) -> Option<sys::ibv_mtu> {
    (sys::IBV_MTU_256..=sys::IBV_MTU_4096).find(|code| mtu_bytes(*code) == bytes)
}

/// InfiniBand specification, PortInfo LinkWidthActive.
fn lanes(width: u8) -> u8 {
    match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    }
}

/// InfiniBand specification, PortInfo LinkSpeedActive and LinkSpeedExtActive, as the kernel joins them: SDR, DDR,
/// QDR, FDR10, FDR, EDR, HDR, NDR.
fn lane_mbps(speed: u8) -> u32 {
    match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    }
}

pub(super) fn gid(context: &Context, port: u8, index: u32) -> Result<[u8; 16], VerbsError> {
    const CALL: &str = "ibv_query_gid";
    let at = i32::try_from(index).map_err(|_| context.error(CALL, libc::EINVAL))?;
    let mut gid = sys::ibv_gid { raw: [0; 16] };
    // SAFETY: the context is open, `gid` is writable for the call.
    let returned = unsafe { context.sys().ibv_query_gid(context.raw(), port, at, &mut gid) };
    context.check(CALL, returned)?;
    // SAFETY: any 16 bytes are a GID.
    Ok(unsafe { gid.raw })
}

pub(super) fn pkey(context: &Context, port: u8, index: u16) -> Result<u16, VerbsError> {
    let mut pkey = 0;
    // SAFETY: the context is open, `pkey` is writable for the call.
    let returned = unsafe { context.sys().ibv_query_pkey(context.raw(), port, i32::from(index), &mut pkey) };
    context.check("ibv_query_pkey", returned)?;
    Ok(u16::from_be(pkey))
}

pub(super) fn gids(context: &Context, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
    if context.sys()._ibv_query_gid_table.is_ok() {
        gids_by_table(context, port)
    } else {
        gids_by_index(context, port)
    }
}

/// In one call, with rdma-core 32 and later.
pub(super) fn gids_by_table(context: &Context, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
    const CALL: &str = "ibv_query_gid_table";
    // The call answers for all ports of the device.
    let mut entries = 0;
    for port in 1..=context.device()?.ports {
        entries += query(context, port)?.gid_table_len as usize;
    }
    let blank = sys::ibv_gid_entry {
        gid: sys::ibv_gid { raw: [0; 16] },
        gid_index: 0,
        port_num: 0,
        gid_type: 0,
        ndev_ifindex: 0,
    };
    let mut table = vec![blank; entries];
    // SAFETY: the context is open, and the table has room for as many entries of that size as it says.
    let filled = unsafe {
        let size = size_of::<sys::ibv_gid_entry>();
        context.sys()._ibv_query_gid_table(context.raw(), table.as_mut_ptr(), table.len(), 0, size)
    };
    let filled = usize::try_from(filled).map_err(|_| context.error(CALL, filled.unsigned_abs() as i32))?;
    let mut found = Vec::new();
    for entry in table.iter().take(filled).filter(|entry| entry.port_num == u32::from(port)) {
        let kind = match entry.gid_type {
            sys::IBV_GID_TYPE_IB => GidKind::InfiniBand,
            sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            sys::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            // A type of tomorrow is no address that this program can use.
            _ => continue,
        };
        // SAFETY: any 16 bytes are a GID.
        let gid = unsafe { entry.gid.raw };
        found.push(GidEntry {
            index: entry.gid_index,
            gid,
            kind,
            interface: interface(context, port, entry.gid_index),
        });
    }
    found.sort_by_key(|entry| entry.index);
    Ok(found)
}

/// Entry by entry, with any library.
pub(super) fn gids_by_index(context: &Context, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
    let state = query(context, port)?;
    let mut found = Vec::new();
    for index in 0..state.gid_table_len {
        // The kernel refuses some unused entries and gives zeros for others.
        let Ok(gid) = gid(context, port, index) else { continue };
        if gid == [0; 16] {
            continue;
        }
        let kind = match attribute(context, port, "types", index).as_deref() {
            Some("RoCE v2") => GidKind::RoceV2,
            _ if state.link_layer == LinkLayer::Ethernet => GidKind::RoceV1,
            _ => GidKind::InfiniBand,
        };
        found.push(GidEntry { index, gid, kind, interface: interface(context, port, index) });
    }
    Ok(found)
}

fn interface(context: &Context, port: u8, index: u32) -> Option<String> {
    attribute(context, port, "ndevs", index)
}

/// What sysfs says of an entry; none where that is unused or has no such attribute.
fn attribute(context: &Context, port: u8, name: &str, index: u32) -> Option<String> {
    let file = context.sysfs().join(format!("ports/{port}/gid_attrs/{name}/{index}"));
    let text = std::fs::read_to_string(file).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

impl fmt::Display for PortStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortStatus::Down => "down",
            PortStatus::Initializing => "initializing: no subnet manager has configured it",
            PortStatus::Armed => "armed: the subnet manager has not activated it",
            PortStatus::Active => "active",
            PortStatus::ActiveDefer => "recovering",
            PortStatus::Other(number) => return write!(f, "in state {number}"),
        })
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::Unspecified => "unspecified",
        })
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        })
    }
}
