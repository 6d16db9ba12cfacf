//! Queue pairs: the ends of connections, and of datagrams.

use super::address::Route;
use super::completion::CompletionQueue;
use super::context::Context;
use super::error::{PostError, VerbsError, last_errno};
use super::memory::{Access, ProtectionDomain};
use super::port::mtu_code;
use super::posting::{self, ReceiveRequest, SendRequest};
use super::shared_receive::SharedReceiveQueue;
use super::sys;
use std::fmt;
use std::mem::zeroed;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Inline sizes below this are not worth another try.
const LEAST_INLINE_BYTES: u32 = 16;

/// What a queue pair speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuePairKind {
    /// Reliable connection: one peer, in order, acknowledged.
    ReliableConnection,
    /// Unreliable datagrams of up to one packet, to any peer.
    UnreliableDatagram,
}

/// What a queue pair is made of.
#[derive(Clone, Debug)]
pub struct QueuePairSpec {
    /// What it speaks.
    pub kind: QueuePairKind,
    /// Where its sends end.
    pub send_queue: Arc<CompletionQueue>,
    /// Where its receives end; may be the same.
    pub receive_queue: Arc<CompletionQueue>,
    /// Where its receives come from, instead of a queue of its own.
    pub shared_receives: Option<Arc<SharedReceiveQueue>>,
    /// Most sends at a time.
    pub max_sends: u32,
    /// Most receives at a time. Not looked at with shared receives.
    pub max_receives: u32,
    /// Most pieces of a send.
    pub max_send_sges: u32,
    /// Most pieces of a receive. Not looked at with shared receives.
    pub max_receive_sges: u32,
    /// Most inline bytes. A device that refuses is asked for less, down to none: see [`QueuePair::capacity`].
    pub max_inline_bytes: u32,
    /// Whether every send gives a completion, asked for or not.
    pub signal_all: bool,
}

/// What the device granted: at least what was asked, but for inline bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairCapacity {
    /// Most sends at a time.
    pub max_sends: u32,
    /// Most receives at a time; 0 with shared receives.
    pub max_receives: u32,
    /// Most pieces of a send.
    pub max_send_sges: u32,
    /// Most pieces of a receive; 0 with shared receives.
    pub max_receive_sges: u32,
    /// Most inline bytes of a send.
    pub max_inline_bytes: u32,
}

/// What a reliable connection needs to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToReceive {
    /// The way to the peer.
    pub route: Route,
    /// The peer's queue pair.
    pub destination_qp: u32,
    /// Bytes of a packet: 256, 512, 1024, 2048 or 4096, and no more than the port of either side carries.
    pub path_mtu_bytes: u32,
    /// Number of the first packet that the peer sends, 24 bits.
    pub receive_psn: u32,
    /// Code of the least time that the peer waits when no receive is posted here: 12 is 0.64 ms, 0 is 655 ms.
    pub min_rnr_timer: u8,
    /// Most reads and atomics of the peer that are served at a time.
    pub max_reads_served: u8,
}

/// What a reliable connection needs to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToSend {
    /// Number of the first packet, 24 bits: the peer's `receive_psn`.
    pub send_psn: u32,
    /// A packet counts as lost after 4.096 us times 2 to this power without an answer; 0 waits for ever.
    pub timeout: u8,
    /// How often a lost packet is sent again, 0 to 7. Soft-RoCE takes 7 as without end, and so never notices a peer
    /// that is gone.
    pub retry_count: u8,
    /// How often it is sent again when the peer has no receive posted, 0 to 6; 7 is without end.
    pub rnr_retry: u8,
    /// Most reads and atomics under way at a time.
    pub max_reads_issued: u8,
}

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuePairState {
    /// Made.
    Reset,
    /// Takes receives.
    Initialized,
    /// Receives.
    ReadyToReceive,
    /// Receives and sends.
    ReadyToSend,
    /// Stops sending.
    SendQueueDraining,
    /// A send failed; still receives.
    SendQueueError,
    /// All requests end flushed.
    Error,
    /// A state that this program does not know, by its number.
    Other(u32),
}

impl QueuePairState {
    fn of(state: sys::ibv_qp_state) -> QueuePairState {
        match state {
            sys::IBV_QPS_RESET => QueuePairState::Reset,
            sys::IBV_QPS_INIT => QueuePairState::Initialized,
            sys::IBV_QPS_RTR => QueuePairState::ReadyToReceive,
            sys::IBV_QPS_RTS => QueuePairState::ReadyToSend,
            sys::IBV_QPS_SQD => QueuePairState::SendQueueDraining,
            sys::IBV_QPS_SQE => QueuePairState::SendQueueError,
            sys::IBV_QPS_ERR => QueuePairState::Error,
            other => QueuePairState::Other(other),
        }
    }
}

/// One end of a connection, or of datagrams.
pub struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    number: u32,
    kind: QueuePairKind,
    capacity: QueuePairCapacity,
    domain: Arc<ProtectionDomain>,
    _send_queue: Arc<CompletionQueue>,
    _receive_queue: Arc<CompletionQueue>,
    shared_receives: Option<Arc<SharedReceiveQueue>>,
}

// SAFETY: every verb may be called from any thread (I5); a queue pair has no tie to the thread that made it.
unsafe impl Send for QueuePair {}
// SAFETY: what `&self` can do is to read numbers that do not change and to ask the kernel for the state.
unsafe impl Sync for QueuePair {}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("QueuePair");
        f.field("number", &self.number).field("kind", &self.kind).field("capacity", &self.capacity);
        f.finish_non_exhaustive()
    }
}

impl QueuePair {
    /// Makes a queue pair in the reset state.
    ///
    /// # Errors
    /// When the device has no more of them or none so large, or its parts are of different contexts (I4).
    pub fn create(domain: &Arc<ProtectionDomain>, spec: &QueuePairSpec) -> Result<QueuePair, VerbsError> {
        const CALL: &str = "ibv_create_qp";
        let context = domain.context();
        let shared = spec.shared_receives.as_ref();
        let same = |other: &Arc<Context>| Arc::ptr_eq(other, context);
        if !same(spec.send_queue.context())
            || !same(spec.receive_queue.context())
            || shared.is_some_and(|shared| !same(shared.context()))
        {
            return Err(context.refuse(CALL, "its queues and its domain belong to different contexts"));
        }
        let mut inline_bytes = spec.max_inline_bytes;
        let (raw, granted) = loop {
            let mut at = init_attributes(spec, inline_bytes);
            // SAFETY: domain and queues are alive, of one context, and the attributes are complete.
            let raw = unsafe { context.sys().ibv_create_qp(domain.raw(), &mut at) };
            if let Some(raw) = NonNull::new(raw) {
                break (raw, at.cap);
            }
            let errno = last_errno();
            // Devices do not say how many inline bytes they have.
            if !matches!(errno, libc::EINVAL | libc::ENOMEM) || inline_bytes == 0 {
                return Err(context.error(CALL, errno));
            }
            inline_bytes = if inline_bytes / 2 < LEAST_INLINE_BYTES { 0 } else { inline_bytes / 2 };
        };
        // SAFETY: the queue pair was made just now.
        let number = unsafe { raw.as_ref().qp_num };
        let own = |n: u32| if shared.is_some() { 0 } else { n };
        let capacity = QueuePairCapacity {
            max_sends: granted.max_send_wr,
            max_receives: own(granted.max_recv_wr),
            max_send_sges: granted.max_send_sge,
            max_receive_sges: own(granted.max_recv_sge),
            max_inline_bytes: granted.max_inline_data,
        };
        Ok(QueuePair {
            raw,
            number,
            kind: spec.kind,
            capacity,
            domain: Arc::clone(domain),
            _send_queue: Arc::clone(&spec.send_queue),
            _receive_queue: Arc::clone(&spec.receive_queue),
            shared_receives: spec.shared_receives.clone(),
        })
    }

    /// Its number, by which peers address it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What it speaks.
    pub fn kind(&self) -> QueuePairKind {
        self.kind
    }

    /// What the device granted.
    pub fn capacity(&self) -> QueuePairCapacity {
        self.capacity
    }

    /// Binds a reliable connection to a port, with what peers may do through it. Receives may be posted from then
    /// on.
    ///
    /// # Errors
    /// When the state or the values do not allow it.
    pub fn to_init(&mut self, port: u8, pkey_index: u16, access: Access) -> Result<(), VerbsError> {
        let mut at = attributes(sys::IBV_QPS_INIT);
        at.port_num = port;
        at.pkey_index = pkey_index;
        // Ordering is a matter of regions.
        at.qp_access_flags = access.without(Access::RELAXED_ORDERING).bits();
        let mask = sys::IBV_QP_PORT | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp to init", &mut at, mask)
    }

    /// Connects to the peer's queue pair and receives.
    ///
    /// # Errors
    /// When the peer's address is not resolved, or the state or the values do not allow it.
    pub fn to_rtr(&mut self, to: &ReadyToReceive) -> Result<(), VerbsError> {
        const CALL: &str = "ibv_modify_qp to ready to receive";
        let mut at = attributes(sys::IBV_QPS_RTR);
        at.path_mtu = mtu_code(to.path_mtu_bytes).ok_or_else(|| {
            let reason =
                format!("a path MTU of {} bytes is none of 256, 512, 1024, 2048, 4096", to.path_mtu_bytes);
            self.context().refuse(CALL, reason)
        })?;
        at.ah_attr = to.route.attributes();
        at.dest_qp_num = to.destination_qp;
        at.rq_psn = to.receive_psn;
        at.min_rnr_timer = to.min_rnr_timer;
        at.max_dest_rd_atomic = to.max_reads_served;
        let mask = sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        self.modify(CALL, &mut at, mask)
    }

    /// Sends too.
    ///
    /// # Errors
    /// When the state or the values do not allow it.
    pub fn to_rts(&mut self, to: &ReadyToSend) -> Result<(), VerbsError> {
        let mut at = attributes(sys::IBV_QPS_RTS);
        at.sq_psn = to.send_psn;
        at.timeout = to.timeout;
        at.retry_cnt = to.retry_count;
        at.rnr_retry = to.rnr_retry;
        at.max_rd_atomic = to.max_reads_issued;
        let mask = sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp to ready to send", &mut at, mask)
    }

    /// Takes a datagram queue pair from reset to sending and receiving on a port. Datagrams with another key are
    /// dropped.
    ///
    /// # Errors
    /// When the state or the values do not allow it.
    pub fn start_datagrams(
        &mut self,
        port: u8,
        pkey_index: u16,
        qkey: u32,
        send_psn: u32,
    ) -> Result<(), VerbsError> {
        let mut at = attributes(sys::IBV_QPS_INIT);
        at.port_num = port;
        at.pkey_index = pkey_index;
        at.qkey = qkey;
        let mask = sys::IBV_QP_PORT | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_QKEY;
        self.modify("ibv_modify_qp to init", &mut at, mask)?;
        self.modify("ibv_modify_qp to ready to receive", &mut attributes(sys::IBV_QPS_RTR), 0)?;
        let mut at = attributes(sys::IBV_QPS_RTS);
        at.sq_psn = send_psn;
        self.modify("ibv_modify_qp to ready to send", &mut at, sys::IBV_QP_SQ_PSN)
    }

    /// Ends it: all requests that it still has, and all that are posted later, end flushed.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn to_error(&mut self) -> Result<(), VerbsError> {
        self.modify("ibv_modify_qp to error", &mut attributes(sys::IBV_QPS_ERR), 0)
    }

    /// Takes it back to the beginning: all requests are forgotten, without completions.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn to_reset(&mut self) -> Result<(), VerbsError> {
        self.modify("ibv_modify_qp to reset", &mut attributes(sys::IBV_QPS_RESET), 0)
    }

    /// The state that the device has it in.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn query_state(&self) -> Result<QueuePairState, VerbsError> {
        let mut at = attributes(sys::IBV_QPS_RESET);
        // SAFETY: the attributes are numbers and null pointers, for which all zeros are valid.
        let mut init: sys::ibv_qp_init_attr = unsafe { zeroed() };
        let mask = sys::IBV_QP_STATE as i32;
        // SAFETY: the queue pair is alive (I1), both structures are writable for the call.
        let returned = unsafe { self.context().sys().ibv_query_qp(self.raw(), &mut at, mask, &mut init) };
        self.context().check("ibv_query_qp", returned)?;
        Ok(QueuePairState::of(at.qp_state))
    }

    /// Adds requests to the send queue, in order. Allocates nothing.
    ///
    /// # Safety
    /// Until the completion of a request, or of a later one of this queue, has been polled, or the queue pair has
    /// been dropped: the memory of its pieces stays mapped and is written by nobody, nor read where the request
    /// reads into it; and its address handle lives. Inline bytes are free when the call returns.
    ///
    /// # Errors
    /// When the queue is full, a request does not fit it or the state, or a datagram goes nowhere; says how many were
    /// accepted.
    pub unsafe fn post_send(&mut self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        if self.kind == QueuePairKind::UnreliableDatagram {
            let whole = |request: &SendRequest<'_>| request.to.is_some();
            if !requests.iter().all(whole) {
                return Err(PostError { call: "ibv_post_send", accepted: 0, errno: libc::EDESTADDRREQ });
            }
        }
        let post = self.context().ops().post_send.expect("every device has it");
        // SAFETY: the queue pair is alive (I1) and of that context; the memory is the caller's promise.
        unsafe { posting::send(post, self.raw(), requests) }
    }

    /// Adds one request to the send queue of a connected queue pair. Allocates nothing.
    ///
    /// # Safety
    /// As [`Self::post_send`].
    ///
    /// # Errors
    /// As [`Self::post_send`]; a datagram queue pair takes none.
    #[inline(always)]
    pub unsafe fn post_one(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        if self.kind == QueuePairKind::UnreliableDatagram {
            return Err(PostError { call: "ibv_post_send", accepted: 0, errno: libc::EDESTADDRREQ });
        }
        let post = self.context().ops().post_send.expect("every device has it");
        // SAFETY: the queue pair is alive (I1) and of that context; the memory is the caller's promise.
        unsafe { posting::send_one(post, self.raw(), request) }
    }

    /// Adds requests to the receive queue, in order. Allocates nothing.
    ///
    /// # Safety
    /// The memory of each stays mapped, and is neither read nor written by anybody else, until its completion has
    /// been polled or the queue pair has been dropped.
    ///
    /// # Errors
    /// When the queue is full, a request does not fit it or the state, or the queue pair takes shared receives; says
    /// how many were accepted.
    pub unsafe fn post_receive(&mut self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        if self.shared_receives.is_some() {
            return Err(PostError { call: "ibv_post_recv", accepted: 0, errno: libc::EINVAL });
        }
        let post = self.context().ops().post_recv.expect("every device has it");
        // SAFETY: the queue pair is alive (I1) and of that context; the memory is the caller's promise.
        unsafe {
            posting::receive("ibv_post_recv", requests, |first, refused| post(self.raw(), first, refused))
        }
    }

    fn modify(
        &mut self,
        call: &'static str,
        at: &mut sys::ibv_qp_attr,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<(), VerbsError> {
        let mask = (mask | sys::IBV_QP_STATE) as i32;
        // SAFETY: the queue pair is alive (I1), and the mask names fields that are set.
        let returned = unsafe { self.context().sys().ibv_modify_qp(self.raw(), at, mask) };
        self.context().check(call, returned)
    }

    fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made once and taken down once (I1), before the queues and the domain that it holds (I2).
        let returned = unsafe { self.context().sys().ibv_destroy_qp(self.raw()) };
        self.context().taken_down("ibv_destroy_qp", returned);
    }
}

fn init_attributes(spec: &QueuePairSpec, inline_bytes: u32) -> sys::ibv_qp_init_attr {
    let shared = spec.shared_receives.as_ref();
    let own = |n: u32| if shared.is_some() { 0 } else { n };
    sys::ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: spec.send_queue.raw(),
        recv_cq: spec.receive_queue.raw(),
        srq: shared.map_or(ptr::null_mut(), |shared| shared.raw()),
        cap: sys::ibv_qp_cap {
            max_send_wr: spec.max_sends,
            max_recv_wr: own(spec.max_receives),
            max_send_sge: spec.max_send_sges,
            max_recv_sge: own(spec.max_receive_sges),
            max_inline_data: inline_bytes,
        },
        qp_type: match spec.kind {
            QueuePairKind::ReliableConnection => sys::IBV_QPT_RC,
            QueuePairKind::UnreliableDatagram => sys::IBV_QPT_UD,
        },
        sq_sig_all: i32::from(spec.signal_all),
    }
}

fn attributes(state: sys::ibv_qp_state) -> sys::ibv_qp_attr {
    // SAFETY: the attributes are plain numbers and arrays of them, for which all zeros are valid.
    let mut at: sys::ibv_qp_attr = unsafe { zeroed() };
    at.qp_state = state;
    at
}
