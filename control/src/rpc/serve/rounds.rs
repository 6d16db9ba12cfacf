//! The service by which members of an elastic group meet again, on top of the coordinator.

use std::time::Duration;

use ringway_proto::ringway::rounds::v1 as wire;
use ringway_proto::ringway::rounds::v1::rounds_server::{Rounds, RoundsServer};
use tonic::codec::CompressionEncoding;
use tonic::{Request, Response, Status};

use super::desk::Desk;
use super::session::fresh_secret;
use crate::core::coordination::request::{Regroup, Reply, Request as Ask};
use crate::core::coordination::rounds::RoundLimits;
use crate::rpc::{MESSAGE_LIMIT_BYTES, convert};

/// The service.
pub(super) struct RoundsDesk {
    desk: Desk,
}

/// The service over this desk.
pub(super) fn service(desk: Desk) -> RoundsServer<RoundsDesk> {
    RoundsServer::new(RoundsDesk { desk })
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
        .max_encoding_message_size(MESSAGE_LIMIT_BYTES)
        .accept_compressed(CompressionEncoding::Gzip)
}

#[tonic::async_trait]
impl Rounds for RoundsDesk {
    async fn regroup(
        &self,
        request: Request<wire::RegroupRequest>,
    ) -> Result<Response<wire::RegroupResponse>, Status> {
        let request = request.into_inner();
        let wish = Regroup {
            group: request.group,
            process: convert::process(request.process)?,
            after: request.after,
            limits: RoundLimits { least: request.least, most: request.most },
            enough: request.enough,
            last_call: Duration::from_millis(request.last_call_ms),
            newcomers: request.newcomers,
            addresses: request.addresses,
            timeout: (request.timeout_ms > 0).then(|| Duration::from_millis(request.timeout_ms)),
            hosts_coordinator: request.hosts_coordinator,
            fresh_secret: fresh_secret()?,
        };
        match self
            .desk
            .ask(Ask::Regroup(Box::new(wish)))
            .await
            .map_err(|refusal| convert::status(&refusal))?
        {
            Reply::Round(table) => Ok(Response::new(convert::wire_round(&table))),
            other => Err(Status::internal(format!("unexpected answer to a regrouping: {other:?}"))),
        }
    }
}
