//! Between errors of nodes, of the rendezvous, and statuses of gRPC. Their codes are numbered alike.

use ringway_dataplane::rendezvous::{RendezvousError, Why};
use ringway_proto::tensorflow::error::Code;
use tonic::Status;

use crate::kernels::OpError;

/// As a status.
pub(super) fn status(error: &OpError) -> Status {
    Status::new(tonic::Code::from_i32(error.code as i32), error.message.clone())
}

/// From a status.
pub(super) fn op_error(status: &Status) -> OpError {
    let code = Code::try_from(status.code() as i32).unwrap_or(Code::Unknown);
    OpError::new(code, status.message())
}

/// The reason of an abort, as the rendezvous keeps it and tells other tasks.
pub(super) fn why(error: &OpError) -> Why {
    Why::new(error.code as u32, &error.message)
}

/// Why a value did not come.
pub(super) fn rendezvous_error(error: &RendezvousError) -> OpError {
    if let RendezvousError::Aborted { why, .. } = error {
        let code = i32::try_from(why.code).ok().and_then(|code| Code::try_from(code).ok());
        return OpError::new(code.unwrap_or(Code::Aborted), &*why.message);
    }
    let code = match error {
        RendezvousError::Aborted { .. } | RendezvousError::Over { .. } => Code::Aborted,
        RendezvousError::Cancelled { .. } | RendezvousError::Closed { .. } => Code::Cancelled,
        RendezvousError::Full { .. } | RendezvousError::Memory { .. } => Code::ResourceExhausted,
        RendezvousError::Twice { .. } => Code::Aborted,
        RendezvousError::Lost { .. } | RendezvousError::Unknown { .. } => Code::Unavailable,
        _ => Code::Internal,
    };
    OpError::new(code, error.to_string())
}
