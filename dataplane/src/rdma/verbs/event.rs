//! Asynchronous events: what a device tells without being asked.

use super::sys;
use std::fmt;

/// What happened. The words of each are its `Display`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncEventKind {
    /// A completion queue overflowed or broke.
    CompletionQueueError,
    /// A queue pair broke while its device worked on it.
    QueuePairFatal,
    /// A queue pair got a request that the protocol does not allow.
    QueuePairRequestError,
    /// A queue pair got a request for memory that it may not touch.
    QueuePairAccessError,
    /// A message came in before the queue pair was ready to send.
    Established,
    /// A send queue has been drained.
    SendQueueDrained,
    /// A connection moved to its alternate path.
    PathMigrated,
    /// A connection could not move to its alternate path.
    PathMigrationFailed,
    /// The device broke.
    DeviceFatal,
    /// A port came up.
    PortActive,
    /// A port went down.
    PortError,
    /// A port's LID changed.
    LidChange,
    /// A port's table of partition keys changed.
    PkeyChange,
    /// A port's subnet manager changed.
    SubnetManagerChange,
    /// A shared receive queue broke.
    SharedReceiveError,
    /// A shared receive queue has fewer receives than its limit.
    SharedReceiveLimit,
    /// A queue pair in error takes no more from its shared receive queue.
    LastReceive,
    /// The subnet manager asks clients to register again.
    ClientReregister,
    /// A port's table of GIDs changed.
    GidChange,
    /// An event that this program does not know, by its number.
    Other(u32),
}

/// What it happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncSubject {
    /// The device as a whole.
    Device,
    /// A port, counted from 1.
    Port(u8),
    /// The queue pair of that number.
    QueuePair(u32),
    /// The completion queue of that [handle](super::CompletionQueue::handle).
    CompletionQueue(u32),
    /// The shared receive queue of that [handle](super::SharedReceiveQueue::handle).
    SharedReceiveQueue(u32),
}

/// One event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventKind,
    /// To what.
    pub subject: AsyncSubject,
}

impl AsyncEvent {
    /// # Safety
    /// `event` was read from the library and has not been acknowledged: the object that it names is alive.
    pub(super) unsafe fn of(event: &sys::ibv_async_event) -> AsyncEvent {
        use AsyncEventKind as Kind;
        let element = &event.element;
        // SAFETY: the type of an event says which member of the element the library wrote, and the object that it
        // points to lives until the event is acknowledged (the caller's promise).
        let (queue_pair, port, completion, shared) = unsafe {
            (
                || AsyncSubject::QueuePair((*element.qp).qp_num),
                || AsyncSubject::Port(element.port_num as u8),
                || AsyncSubject::CompletionQueue((*element.cq).handle),
                || AsyncSubject::SharedReceiveQueue((*element.srq).handle),
            )
        };
        let (kind, subject) = match event.event_type {
            sys::IBV_EVENT_CQ_ERR => (Kind::CompletionQueueError, completion()),
            sys::IBV_EVENT_QP_FATAL => (Kind::QueuePairFatal, queue_pair()),
            sys::IBV_EVENT_QP_REQ_ERR => (Kind::QueuePairRequestError, queue_pair()),
            sys::IBV_EVENT_QP_ACCESS_ERR => (Kind::QueuePairAccessError, queue_pair()),
            sys::IBV_EVENT_COMM_EST => (Kind::Established, queue_pair()),
            sys::IBV_EVENT_SQ_DRAINED => (Kind::SendQueueDrained, queue_pair()),
            sys::IBV_EVENT_PATH_MIG => (Kind::PathMigrated, queue_pair()),
            sys::IBV_EVENT_PATH_MIG_ERR => (Kind::PathMigrationFailed, queue_pair()),
            sys::IBV_EVENT_QP_LAST_WQE_REACHED => (Kind::LastReceive, queue_pair()),
            sys::IBV_EVENT_DEVICE_FATAL => (Kind::DeviceFatal, AsyncSubject::Device),
            sys::IBV_EVENT_PORT_ACTIVE => (Kind::PortActive, port()),
            sys::IBV_EVENT_PORT_ERR => (Kind::PortError, port()),
            sys::IBV_EVENT_LID_CHANGE => (Kind::LidChange, port()),
            sys::IBV_EVENT_PKEY_CHANGE => (Kind::PkeyChange, port()),
            sys::IBV_EVENT_SM_CHANGE => (Kind::SubnetManagerChange, port()),
            sys::IBV_EVENT_CLIENT_REREGISTER => (Kind::ClientReregister, port()),
            sys::IBV_EVENT_GID_CHANGE => (Kind::GidChange, port()),
            sys::IBV_EVENT_SRQ_ERR => (Kind::SharedReceiveError, shared()),
            sys::IBV_EVENT_SRQ_LIMIT_REACHED => (Kind::SharedReceiveLimit, shared()),
            other => (Kind::Other(other), AsyncSubject::Device),
        };
        AsyncEvent { kind, subject }
    }
}

impl fmt::Display for AsyncEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use AsyncEventKind as Kind;
        f.write_str(match self {
            Kind::CompletionQueueError => "completion queue overflowed or broke",
            Kind::QueuePairFatal => "queue pair broke",
            Kind::QueuePairRequestError => "queue pair got an invalid request",
            Kind::QueuePairAccessError => "queue pair got a request for memory it may not touch",
            Kind::Established => "first message arrived",
            Kind::SendQueueDrained => "send queue drained",
            Kind::PathMigrated => "moved to the alternate path",
            Kind::PathMigrationFailed => "could not move to the alternate path",
            Kind::DeviceFatal => "device broke",
            Kind::PortActive => "port came up",
            Kind::PortError => "port went down",
            Kind::LidChange => "LID changed",
            Kind::PkeyChange => "partition keys changed",
            Kind::SubnetManagerChange => "subnet manager changed",
            Kind::SharedReceiveError => "shared receive queue broke",
            Kind::SharedReceiveLimit => "shared receive queue runs low",
            Kind::LastReceive => "last receive of a queue pair in error",
            Kind::ClientReregister => "subnet manager asks for a new registration",
            Kind::GidChange => "GID table changed",
            Kind::Other(number) => return write!(f, "event {number}"),
        })
    }
}

impl fmt::Display for AsyncSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AsyncSubject::Device => f.write_str("device"),
            AsyncSubject::Port(port) => write!(f, "port {port}"),
            AsyncSubject::QueuePair(number) => write!(f, "queue pair {number:#x}"),
            AsyncSubject::CompletionQueue(handle) => write!(f, "completion queue {handle}"),
            AsyncSubject::SharedReceiveQueue(handle) => write!(f, "shared receive queue {handle}"),
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.kind)
    }
}
