//! An NCCL communicator: made without blocking, polled, aborted.

use super::device::Context;
use super::error::{CudaError, NcclError};
use super::library::{IN_PROGRESS, Library, SUCCESS, UniqueId};
use super::stream::Stream;
use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// `NCCL_CONFIG_INITIALIZER` of the header: what says that the structure was filled in, and what leaves a field to NCCL.
const MAGIC: u32 = 0xcafe_beef;
const UNDEFINED: c_int = c_int::MIN;
/// The version of the header whose structure it is.
const CONFIG_VERSION: u32 = 22_600;

/// What the driver or NCCL answered instead of doing its work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("{0}")]
    Cuda(#[from] CudaError),
    #[error("{error}: {}", .error.remedy())]
    Nccl {
        #[from]
        error: NcclError,
    },
}

/// One thing for NCCL to do. Addresses are those of the GPU, counts are of NCCL's type `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    AllReduce {
        from: u64,
        to: u64,
        count: usize,
        kind: u32,
        op: u32,
    },
    Reduce {
        from: u64,
        to: u64,
        count: usize,
        kind: u32,
        op: u32,
        root: u32,
    },
    Broadcast {
        from: u64,
        to: u64,
        count: usize,
        kind: u32,
        root: u32,
    },
    ReduceScatter {
        from: u64,
        to: u64,
        count: usize,
        kind: u32,
        op: u32,
    },
    AllGather {
        from: u64,
        to: u64,
        count: usize,
        kind: u32,
    },
    Send {
        from: u64,
        count: usize,
        kind: u32,
        peer: u32,
    },
    Receive {
        to: u64,
        count: usize,
        kind: u32,
        peer: u32,
    },
    /// Within the GPU, before everything else of its call.
    Copy {
        from: u64,
        to: u64,
        bytes: usize,
    },
}

/// A communicator. Dropping it aborts it.
pub(super) struct Comm {
    /// Null once it is gone.
    raw: ncclComm_t,
    library: Arc<Library>,
    context: Arc<Context>,
}

// SAFETY: NCCL's communicators are used by any thread, by one at a time.
unsafe impl Send for Comm {}

impl Comm {
    /// Begins to make one; [`Comm::is_settled`] tells when it is there.
    pub(super) fn begin(
        library: &Arc<Library>,
        context: &Arc<Context>,
        id: UniqueId,
        (rank, size): (u32, u32),
    ) -> Result<Comm, Fault> {
        const CALL: &str = "ncclCommInitRankConfig";
        context.enter()?;
        let mut comm =
            Comm { raw: std::ptr::null_mut(), library: Arc::clone(library), context: Arc::clone(context) };
        let mut config = ncclConfig_t {
            size: size_of::<ncclConfig_t>(),
            magic: MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
            cgaClusterSize: UNDEFINED,
            minCTAs: UNDEFINED,
            maxCTAs: UNDEFINED,
            netName: std::ptr::null(),
            splitShare: UNDEFINED,
            trafficClass: UNDEFINED,
        };
        // SAFETY: both are writable; NCCL copies what it keeps of the configuration. A rank and a size fit (2^31 ranks are
        // more than any group has).
        let result = unsafe {
            (library.functions.ncclCommInitRankConfig)(
                &mut comm.raw,
                size as c_int,
                id.0,
                rank as c_int,
                &mut config,
            )
        };
        library.check(CALL, result, std::ptr::null_mut())?;
        Ok(comm)
    }

    /// Whether nothing of what was asked of it goes on in the background, so that it may be asked for more.
    pub(super) fn is_settled(&self) -> Result<bool, Fault> {
        const CALL: &str = "ncclCommGetAsyncError";
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive, and `state` is writable and of the size of NCCL's enum.
        let result = unsafe { (self.library.functions.ncclCommGetAsyncError)(self.raw, &mut state) };
        self.library.check(CALL, result, self.raw)?;
        match state {
            SUCCESS => Ok(true),
            IN_PROGRESS => Ok(false),
            error => Err(self.library.error("NCCL in the background", error, self.raw).into()),
        }
    }

    /// Gives NCCL operations to do as one, behind what is in `stream`.
    ///
    /// # Safety
    /// The addresses are of memory of the communicator's GPU, of these lengths, which stays and is used by nobody else
    /// until the stream has come past the operations.
    pub(super) unsafe fn enqueue(&mut self, operations: &[Operation], stream: &Stream) -> Result<(), Fault> {
        let driver = self.context.enter()?;
        for operation in operations {
            if let Operation::Copy { from, to, bytes } = *operation {
                // SAFETY: the caller promises it.
                let copied =
                    unsafe { (driver.functions.cuMemcpyDtoDAsync_v2)(to, from, bytes, stream.raw()) };
                driver.check("cuMemcpyDtoDAsync", copied)?;
            }
        }
        let rest = || operations.iter().filter(|operation| !matches!(operation, Operation::Copy { .. }));
        // SAFETY: the caller promises it.
        let one = |operation| unsafe { self.one(operation, stream) };
        if rest().count() < 2 {
            return rest().try_for_each(one).map_err(Fault::from);
        }
        let functions = &self.library.functions;
        // SAFETY: a group is begun and ended by this thread.
        let begun = unsafe { (functions.ncclGroupStart)() };
        self.library.check("ncclGroupStart", begun, self.raw)?;
        let all = rest().try_for_each(one);
        // Also after an error, as the thread would stay in the group.
        // SAFETY: the group was begun above.
        let ended = unsafe { (functions.ncclGroupEnd)() };
        all.and(self.library.check("ncclGroupEnd", ended, self.raw)).map_err(Fault::from)
    }

    /// # Safety
    /// As [`Comm::enqueue`].
    unsafe fn one(&self, operation: &Operation, stream: &Stream) -> Result<(), NcclError> {
        let f = &self.library.functions;
        let (comm, stream) = (self.raw, stream.raw());
        let read = |address: u64| address as *const c_void;
        let write = |address: u64| address as *mut c_void;
        // SAFETY: the caller promises it of the memory; the communicator and the stream are alive.
        let (call, result) = unsafe {
            match *operation {
                Operation::AllReduce { from, to, count, kind, op } => {
                    ("ncclAllReduce", (f.ncclAllReduce)(read(from), write(to), count, kind, op, comm, stream))
                }
                Operation::Reduce { from, to, count, kind, op, root } => {
                    let root = root as c_int;
                    ("ncclReduce", (f.ncclReduce)(read(from), write(to), count, kind, op, root, comm, stream))
                }
                Operation::Broadcast { from, to, count, kind, root } => {
                    let root = root as c_int;
                    (
                        "ncclBroadcast",
                        (f.ncclBroadcast)(read(from), write(to), count, kind, root, comm, stream),
                    )
                }
                Operation::ReduceScatter { from, to, count, kind, op } => {
                    let result = (f.ncclReduceScatter)(read(from), write(to), count, kind, op, comm, stream);
                    ("ncclReduceScatter", result)
                }
                Operation::AllGather { from, to, count, kind } => {
                    ("ncclAllGather", (f.ncclAllGather)(read(from), write(to), count, kind, comm, stream))
                }
                Operation::Send { from, count, kind, peer } => {
                    ("ncclSend", (f.ncclSend)(read(from), count, kind, peer as c_int, comm, stream))
                }
                Operation::Receive { to, count, kind, peer } => {
                    ("ncclRecv", (f.ncclRecv)(write(to), count, kind, peer as c_int, comm, stream))
                }
                Operation::Copy { .. } => return Ok(()),
            }
        };
        self.library.check(call, result, comm)
    }

    /// Begins to end it in order; [`Comm::is_settled`] tells when [`Comm::destroy`] may be called.
    pub(super) fn finalize(&self) -> Result<(), Fault> {
        self.context.enter()?;
        // SAFETY: the communicator is alive, and settled.
        let result = unsafe { (self.library.functions.ncclCommFinalize)(self.raw) };
        Ok(self.library.check("ncclCommFinalize", result, self.raw)?)
    }

    /// Frees what is left of one that was finalized.
    pub(super) fn destroy(mut self) -> Result<(), Fault> {
        self.context.enter()?;
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        // SAFETY: the communicator is alive, and not touched again.
        let result = unsafe { (self.library.functions.ncclCommDestroy)(raw) };
        Ok(self.library.check("ncclCommDestroy", result, std::ptr::null_mut())?)
    }
}

impl Drop for Comm {
    /// Has the GPU give up what is under way, and frees it. It takes as long as the GPU takes.
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        let entered = self.context.enter().map(drop);
        // SAFETY: the communicator is alive, and not touched again.
        let result = unsafe { (self.library.functions.ncclCommAbort)(self.raw) };
        let aborted = self.library.check("ncclCommAbort", result, std::ptr::null_mut());
        if let Err(error) = entered.map_err(Fault::from).and(aborted.map_err(Fault::from)) {
            tracing::debug!(%error, "at the end of a communicator");
        }
    }
}
