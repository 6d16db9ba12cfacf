//! An open device, as one rail of a transport: its queues, and the datagrams by which connections begin.

use super::choice::{Rail, RdmaConfig};
use super::handshake::HELLO_BYTES;
use super::registration::Pinned;
use super::request::{Kind, WrId};
use super::verbs::{
    AddressHandle, CompletionChannel, CompletionQueue, Context, Destination, DeviceLimits, GlobalRoute,
    Library, PortState, PortStatus, ProtectionDomain, QueuePair, QueuePairKind, QueuePairSpec,
    ReceiveRequest, Route, SendOp, SendRequest, Sge, VerbsError, WorkCompletion,
};
use std::sync::Arc;

/// Hellos that may be on their way out of one device; more are dropped, and said again later.
const HELLO_SENDS: u32 = 64;
/// Hellos that may wait to be heard; more are lost, and said again later.
const HELLO_RECEIVES: u32 = 256;
/// What a datagram's receive holds before the datagram.
const ROUTE_HEADER_BYTES: usize = 40;
const SLOT_BYTES: usize = ROUTE_HEADER_BYTES + HELLO_BYTES;
/// Routers that a packet survives.
const HOP_LIMIT: u8 = 64;
/// Entries that a completion queue begins with.
const FIRST_ENTRIES: u32 = 4096;

/// A device with what all connections over it share.
pub(super) struct Device {
    pub(super) rail: Rail,
    pub(super) context: Arc<Context>,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) channel: Arc<CompletionChannel>,
    pub(super) completions: Arc<CompletionQueue>,
    pub(super) limits: DeviceLimits,
    pub(super) port: PortState,
    /// Entries of the completion queue that connections may fill.
    reserved: u32,
    queue_key: u32,
    hellos: QueuePair,
    buffer: Pinned,
    /// Send slots: the way that each is on, kept until it has left.
    leaving: Vec<Option<Arc<AddressHandle>>>,
    /// Why it is of no use any more.
    pub(super) broken: Option<String>,
    /// The queue pair of hellos has failed, and neither hears nor speaks.
    deaf: bool,
    /// Its rails have been told.
    pub(super) given_up: bool,
}

impl Device {
    /// Opens a rail's device, and listens for hellos.
    pub(super) fn open(library: &Arc<Library>, rail: Rail, queue_key: u32) -> Result<Device, VerbsError> {
        let context = Context::open(library, &rail.device)?;
        let (limits, port) = (context.device()?, context.port(rail.port)?);
        let domain = ProtectionDomain::new(&context)?;
        let channel = CompletionChannel::new(&context)?;
        let first = FIRST_ENTRIES.min(limits.max_completion_entries);
        let completions = CompletionQueue::new(&context, first, Some(&channel))?;
        let spec = QueuePairSpec {
            kind: QueuePairKind::UnreliableDatagram,
            send_queue: Arc::clone(&completions),
            receive_queue: Arc::clone(&completions),
            shared_receives: None,
            max_sends: HELLO_SENDS,
            max_receives: HELLO_RECEIVES,
            max_send_sges: 1,
            max_receive_sges: 1,
            max_inline_bytes: 0,
            signal_all: true,
        };
        let mut hellos = QueuePair::create(&domain, &spec)?;
        hellos.start_datagrams(rail.port, rail.pkey_index, queue_key, 0)?;
        let buffer =
            Pinned::new(&[Some(Arc::clone(&domain))], (HELLO_RECEIVES + HELLO_SENDS) as usize * SLOT_BYTES)?;
        let mut device = Device {
            rail,
            context,
            domain,
            channel,
            completions,
            limits,
            port,
            reserved: HELLO_SENDS + HELLO_RECEIVES,
            queue_key,
            hellos,
            buffer,
            leaving: (0..HELLO_SENDS).map(|_| None).collect(),
            broken: None,
            deaf: false,
            given_up: false,
        };
        for slot in 0..HELLO_RECEIVES {
            device.listen(slot)?;
        }
        Ok(device)
    }

    /// Number and key of the queue pair that hears hellos.
    pub(super) fn hears_at(&self) -> (u32, u32) {
        (self.hellos.number(), self.queue_key)
    }

    /// Makes sure that the completion queue holds `more` entries beside what is reserved.
    pub(super) fn reserve(&mut self, more: u32) -> Result<(), VerbsError> {
        let need = self.reserved + more;
        let have = self.completions.entries();
        if need > have {
            let most = self.limits.max_completion_entries.max(need);
            self.completions.resize(need.max(have.saturating_mul(2)).min(most))?;
        }
        self.reserved = need;
        Ok(())
    }

    /// Gives reserved entries back.
    pub(super) fn unreserve(&mut self, fewer: u32) {
        self.reserved -= fewer.min(self.reserved);
    }

    fn listen(&mut self, slot: u32) -> Result<(), VerbsError> {
        let at = slot as usize * SLOT_BYTES;
        let piece = Sge { addr: self.buffer.address(at), len: SLOT_BYTES as u32, lkey: self.buffer.lkey(0) };
        let request =
            ReceiveRequest { wr_id: WrId::of_device(Kind::HelloHeard, slot).pack(), sges: &[piece] };
        // SAFETY: a receive slot belongs to the device until its completion was polled; the buffer outlives the queue
        // pair, since fields are dropped in their order and a drop of the queue pair ends all its requests.
        let posted = unsafe { self.hellos.post_receive(&[request]) };
        posted.map_err(|e| VerbsError::Call {
            call: e.call,
            device: self.rail.device.clone(),
            errno: e.errno,
        })
    }

    /// Says a hello, unless too many are on their way: it is said again then.
    pub(super) fn say(
        &mut self,
        hello: &[u8; HELLO_BYTES],
        to: &Arc<AddressHandle>,
        (qp_num, qkey): (u32, u32),
    ) {
        let Some(slot) = self.leaving.iter().position(Option::is_none) else { return };
        let at = (HELLO_RECEIVES as usize + slot) * SLOT_BYTES;
        // SAFETY: the slot is free: no request of it is posted.
        unsafe { self.buffer.bytes_mut(at, HELLO_BYTES) }.copy_from_slice(hello);
        let piece = Sge { addr: self.buffer.address(at), len: HELLO_BYTES as u32, lkey: self.buffer.lkey(0) };
        let request = SendRequest {
            wr_id: WrId::of_device(Kind::HelloLeft, slot as u32).pack(),
            op: SendOp::Send,
            sges: &[piece],
            signaled: true,
            inline: false,
            fence: false,
            solicited: false,
            to: Some(Destination { handle: to, qp_num, qkey }),
        };
        // SAFETY: slot and handle are kept until the completion was polled: `leaving` holds them.
        match unsafe { self.hellos.post_send(&[request]) } {
            Ok(()) => self.leaving[slot] = Some(Arc::clone(to)),
            Err(e) => tracing::debug!("a hello was not sent: {e}"),
        }
    }

    /// Begins to hear again after a hello that failed, as one does while a link is down, has broken the queue pair.
    pub(super) fn mend(&mut self) {
        if !std::mem::take(&mut self.deaf) {
            return;
        }
        let again = self.hellos.to_reset().and_then(|()| {
            let (port, pkey) = (self.rail.port, self.rail.pkey_index);
            self.hellos.start_datagrams(port, pkey, self.queue_key, 0)?;
            self.leaving.fill(None);
            (0..HELLO_RECEIVES).try_for_each(|slot| self.listen(slot))
        });
        if let Err(why) = again {
            self.broken.get_or_insert(why.to_string());
        }
    }

    /// A hello has left, or did not.
    pub(super) fn left(&mut self, slot: u32, wc: &WorkCompletion) {
        if !wc.is_success() {
            tracing::debug!("a hello of {} was not sent: {}", self.rail.device, wc.status);
            self.deaf = true;
        }
        if let Some(slot) = self.leaving.get_mut(slot as usize) {
            *slot = None;
        }
    }

    /// The datagram that came into a slot; the slot listens again.
    pub(super) fn heard(&mut self, slot: u32, wc: &WorkCompletion) -> Option<[u8; HELLO_BYTES]> {
        if !wc.is_success() {
            self.deaf = true;
            return None;
        }
        let mut hello = None;
        if wc.byte_len as usize == SLOT_BYTES {
            let at = slot as usize * SLOT_BYTES + ROUTE_HEADER_BYTES;
            // SAFETY: the slot's receive has completed and is not posted again yet.
            let bytes = unsafe { self.buffer.bytes(at, HELLO_BYTES) };
            hello = bytes.first_chunk().copied();
        }
        if let Err(why) = self.listen(slot) {
            self.broken.get_or_insert(why.to_string());
        }
        hello
    }

    /// The way to a peer's port.
    pub(super) fn route(&self, config: &RdmaConfig, to: &Way) -> Route {
        Route {
            port: self.rail.port,
            destination_lid: to.lid,
            source_path_bits: 0,
            service_level: config.service_level,
            global: to.gid_index.map(|source_gid_index| GlobalRoute {
                destination_gid: to.gid,
                source_gid_index,
                hop_limit: HOP_LIMIT,
                traffic_class: config.traffic_class,
                flow_label: 0,
            }),
        }
    }

    /// Whether new connections can use it.
    pub(super) fn is_usable(&self) -> bool {
        self.broken.is_none() && self.is_active()
    }

    /// Whether the port carries data now.
    pub(super) fn is_active(&self) -> bool {
        let port = self.context.port(self.rail.port);
        port.is_ok_and(|p| matches!(p.status, PortStatus::Active | PortStatus::ActiveDefer))
    }
}

/// Where a peer's port is, as seen from one of this side's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// Its LID; 0 on Ethernet.
    pub(super) lid: u16,
    /// Its GID.
    pub(super) gid: [u8; 16],
    /// This side's GID, where packets carry a global header.
    pub(super) gid_index: Option<u8>,
}
