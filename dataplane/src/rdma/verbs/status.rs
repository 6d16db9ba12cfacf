//! Work completions, and what their status means.

use super::sys;
use std::fmt;

/// How a request ended. `Display` says it in words, with the number that other tools print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CompletionStatus {
    /// Done.
    #[default]
    Success,
    /// A message did not fit its buffer, or a request was too long.
    LocalLength,
    /// The queue pair could not do what was asked.
    LocalQueuePairOperation,
    /// A local key or address was wrong.
    LocalProtection,
    /// The queue pair was in error before this request was worked on: another request's status says why.
    Flushed,
    /// A memory window could not be bound.
    MemoryWindowBind,
    /// The peer's answer made no sense.
    BadResponse,
    /// An incoming write met memory that it may not touch.
    LocalAccess,
    /// The peer could not take the request as it was.
    RemoteInvalidRequest,
    /// The peer's memory may not be touched that way: a wrong remote key or address.
    RemoteAccess,
    /// The peer failed while it worked on the request.
    RemoteOperation,
    /// The peer did not acknowledge in time, over all retries.
    RetryExceeded,
    /// The peer had no receive posted, over all retries.
    ReceiverNotReadyExceeded,
    /// The peer gave the request up.
    RemoteAborted,
    /// The device or the queue pair broke.
    Fatal,
    /// No answer came in time.
    ResponseTimeout,
    /// An error without a name.
    General,
    /// A status that this program does not know, by its number.
    Other(u32),
}

impl CompletionStatus {
    pub(super) fn of(status: sys::ibv_wc_status) -> CompletionStatus {
        use CompletionStatus as S;
        match status {
            sys::IBV_WC_SUCCESS => S::Success,
            sys::IBV_WC_LOC_LEN_ERR => S::LocalLength,
            sys::IBV_WC_LOC_QP_OP_ERR => S::LocalQueuePairOperation,
            sys::IBV_WC_LOC_PROT_ERR => S::LocalProtection,
            sys::IBV_WC_WR_FLUSH_ERR => S::Flushed,
            sys::IBV_WC_MW_BIND_ERR => S::MemoryWindowBind,
            sys::IBV_WC_BAD_RESP_ERR => S::BadResponse,
            sys::IBV_WC_LOC_ACCESS_ERR => S::LocalAccess,
            sys::IBV_WC_REM_INV_REQ_ERR => S::RemoteInvalidRequest,
            sys::IBV_WC_REM_ACCESS_ERR => S::RemoteAccess,
            sys::IBV_WC_REM_OP_ERR => S::RemoteOperation,
            sys::IBV_WC_RETRY_EXC_ERR => S::RetryExceeded,
            sys::IBV_WC_RNR_RETRY_EXC_ERR => S::ReceiverNotReadyExceeded,
            sys::IBV_WC_REM_ABORT_ERR => S::RemoteAborted,
            sys::IBV_WC_FATAL_ERR => S::Fatal,
            sys::IBV_WC_RESP_TIMEOUT_ERR => S::ResponseTimeout,
            sys::IBV_WC_GENERAL_ERR => S::General,
            other => S::Other(other),
        }
    }

    /// The number that libibverbs has for it.
    pub fn number(self) -> u32 {
        use CompletionStatus as S;
        match self {
            S::Success => sys::IBV_WC_SUCCESS,
            S::LocalLength => sys::IBV_WC_LOC_LEN_ERR,
            S::LocalQueuePairOperation => sys::IBV_WC_LOC_QP_OP_ERR,
            S::LocalProtection => sys::IBV_WC_LOC_PROT_ERR,
            S::Flushed => sys::IBV_WC_WR_FLUSH_ERR,
            S::MemoryWindowBind => sys::IBV_WC_MW_BIND_ERR,
            S::BadResponse => sys::IBV_WC_BAD_RESP_ERR,
            S::LocalAccess => sys::IBV_WC_LOC_ACCESS_ERR,
            S::RemoteInvalidRequest => sys::IBV_WC_REM_INV_REQ_ERR,
            S::RemoteAccess => sys::IBV_WC_REM_ACCESS_ERR,
            S::RemoteOperation => sys::IBV_WC_REM_OP_ERR,
            S::RetryExceeded => sys::IBV_WC_RETRY_EXC_ERR,
            S::ReceiverNotReadyExceeded => sys::IBV_WC_RNR_RETRY_EXC_ERR,
            S::RemoteAborted => sys::IBV_WC_REM_ABORT_ERR,
            S::Fatal => sys::IBV_WC_FATAL_ERR,
            S::ResponseTimeout => sys::IBV_WC_RESP_TIMEOUT_ERR,
            S::General => sys::IBV_WC_GENERAL_ERR,
            S::Other(number) => number,
        }
    }

    fn words(self) -> &'static str {
        use CompletionStatus as S;
        match self {
            S::Success => "success",
            S::LocalLength => "a message did not fit its buffer",
            S::LocalQueuePairOperation => "the queue pair could not do what was asked",
            S::LocalProtection => "a local key or address was wrong",
            S::Flushed => "flushed, as the queue pair was in error already",
            S::MemoryWindowBind => "a memory window could not be bound",
            S::BadResponse => "the peer's answer made no sense",
            S::LocalAccess => "an incoming write met memory that it may not touch",
            S::RemoteInvalidRequest => "the peer could not take the request as it was",
            S::RemoteAccess => "the peer refused access: its key or address was wrong",
            S::RemoteOperation => "the peer failed while it worked on the request",
            S::RetryExceeded => "the peer did not acknowledge in time, over all retries",
            S::ReceiverNotReadyExceeded => "the peer had no receive posted, over all retries",
            S::RemoteAborted => "the peer gave the request up",
            S::Fatal => "the device or the queue pair broke",
            S::ResponseTimeout => "no answer came in time",
            S::General => "an error that the device does not name",
            S::Other(_) => "an unknown error",
        }
    }
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {})", self.words(), self.number())
    }
}

/// Which kind of request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CompletionOpcode {
    /// A send.
    #[default]
    Send,
    /// A write.
    Write,
    /// A read.
    Read,
    /// A receive, filled by a peer's send.
    Receive,
    /// A receive, taken by a peer's write with immediate data.
    ReceiveOfWrite,
    /// One that this program does not post, by its number.
    Other(u32),
}

impl CompletionOpcode {
    fn of(opcode: sys::ibv_wc_opcode) -> CompletionOpcode {
        match opcode {
            sys::IBV_WC_SEND => CompletionOpcode::Send,
            sys::IBV_WC_RDMA_WRITE => CompletionOpcode::Write,
            sys::IBV_WC_RDMA_READ => CompletionOpcode::Read,
            sys::IBV_WC_RECV => CompletionOpcode::Receive,
            sys::IBV_WC_RECV_RDMA_WITH_IMM => CompletionOpcode::ReceiveOfWrite,
            other => CompletionOpcode::Other(other),
        }
    }
}

/// The end of one request. When `status` is not success, only `wr_id`, `status`, `vendor_error` and `qp_num` mean
/// something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WorkCompletion {
    /// The request's own number.
    pub wr_id: u64,
    /// How it ended.
    pub status: CompletionStatus,
    /// Which kind of request it was.
    pub opcode: CompletionOpcode,
    /// The device's own number for an error, for its maker.
    pub vendor_error: u32,
    /// Bytes received or read. A receive of a datagram counts its 40 bytes of route header too.
    pub byte_len: u32,
    /// Immediate data of the peer's request.
    pub imm: Option<u32>,
    /// The queue pair.
    pub qp_num: u32,
    /// The sender's queue pair, for a datagram.
    pub src_qp: u32,
    /// Whether the first 40 bytes of a datagram's buffer hold a global route header.
    pub has_route_header: bool,
}

impl WorkCompletion {
    #[inline]
    pub(super) fn of(wc: &sys::ibv_wc) -> WorkCompletion {
        let has = |flag: sys::ibv_wc_flags| wc.wc_flags & flag != 0;
        let success = wc.status == sys::IBV_WC_SUCCESS;
        // SAFETY: both members are 32-bit numbers; with this flag it is the immediate data.
        let imm = (success && has(sys::IBV_WC_WITH_IMM))
            .then(|| u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }));
        WorkCompletion {
            wr_id: wc.wr_id,
            status: CompletionStatus::of(wc.status),
            opcode: CompletionOpcode::of(wc.opcode),
            vendor_error: wc.vendor_err,
            byte_len: wc.byte_len,
            imm,
            qp_num: wc.qp_num,
            src_qp: wc.src_qp,
            has_route_header: success && has(sys::IBV_WC_GRH),
        }
    }

    /// Whether the request succeeded.
    #[inline]
    pub fn is_success(&self) -> bool {
        self.status == CompletionStatus::Success
    }
}
