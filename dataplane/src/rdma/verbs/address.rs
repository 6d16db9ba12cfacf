//! Where packets go: routes, and address handles made of them.

use super::VerbsError;
use super::context::Context;
use super::memory::ProtectionDomain;
use super::sys;
use std::fmt;
use std::mem::zeroed;
use std::ptr::NonNull;
use std::sync::Arc;

/// The way from a port to a peer's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Port of this device, counted from 1.
    pub port: u8,
    /// The peer's address in the InfiniBand subnet; 0 on RoCE.
    pub destination_lid: u16,
    /// Low bits of this port's LID to send from; 0 unless its LID mask control says otherwise.
    pub source_path_bits: u8,
    /// Service level, 0 to 15. On RoCE, its low three bits are the priority of tagged frames.
    pub service_level: u8,
    /// The global route header: always there on RoCE, and on InfiniBand between subnets.
    pub global: Option<GlobalRoute>,
}

/// The part of a route that crosses subnets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GlobalRoute {
    /// The peer's GID.
    pub destination_gid: [u8; 16],
    /// Index of this port's own GID to send from.
    pub source_gid_index: u8,
    /// Routers on the way that a packet survives.
    pub hop_limit: u8,
    /// Traffic class: on RoCE v2, the type-of-service byte of the IP header.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

impl Route {
    pub(super) fn attributes(&self) -> sys::ibv_ah_attr {
        // SAFETY: the attributes are plain numbers, for which all zeros are valid.
        let mut at: sys::ibv_ah_attr = unsafe { zeroed() };
        at.dlid = self.destination_lid;
        at.sl = self.service_level;
        at.src_path_bits = self.source_path_bits;
        at.port_num = self.port;
        if let Some(global) = &self.global {
            at.is_global = 1;
            at.grh.dgid = sys::ibv_gid { raw: global.destination_gid };
            at.grh.sgid_index = global.source_gid_index;
            at.grh.hop_limit = global.hop_limit;
            at.grh.traffic_class = global.traffic_class;
            at.grh.flow_label = global.flow_label;
        }
        at
    }
}

/// The way to a peer's port, known to the device: where datagrams go.
pub struct AddressHandle {
    raw: NonNull<sys::ibv_ah>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: every verb may be called from any thread (I5).
unsafe impl Send for AddressHandle {}
// SAFETY: as above.
unsafe impl Sync for AddressHandle {}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl AddressHandle {
    /// Makes a handle; on RoCE, the kernel resolves the peer's hardware address for it.
    ///
    /// # Errors
    /// When the peer's address is not resolved, or the route does not fit the port.
    pub fn create(domain: &Arc<ProtectionDomain>, route: &Route) -> Result<AddressHandle, VerbsError> {
        let context: &Context = domain.context();
        let mut at = route.attributes();
        // SAFETY: the domain is alive, and the attributes are complete.
        let raw = unsafe { context.sys().ibv_create_ah(domain.raw(), &mut at) };
        let raw = context.made("ibv_create_ah", raw)?;
        Ok(AddressHandle { raw, domain: Arc::clone(domain) })
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        let context = self.domain.context();
        // SAFETY: made once and taken down once (I1).
        let returned = unsafe { context.sys().ibv_destroy_ah(self.raw.as_ptr()) };
        context.taken_down("ibv_destroy_ah", returned);
    }
}
