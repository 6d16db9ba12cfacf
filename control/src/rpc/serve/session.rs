//! Our session setup service, on top of the coordinator.

use std::pin::Pin;
use std::time::Duration;

use ringway_proto::ringway::v1 as wire;
use ringway_proto::ringway::v1::session_setup_server::SessionSetup;
use ringway_topology::Incarnation;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use super::desk::Desk;
use crate::core::coordination::request::{Join, Notice, Reply, Request as Ask};
use crate::random;
use crate::rpc::convert;

/// The service.
pub(super) struct Session {
    desk: Desk,
    incarnation: Incarnation,
    /// How soon another goes on when this service ends, if one does.
    failover: Option<Duration>,
}

impl Session {
    pub(super) fn new(desk: Desk, incarnation: Incarnation, failover: Option<Duration>) -> Self {
        Session { desk, incarnation, failover }
    }
}

/// Random bytes that nobody can guess.
pub(super) fn fresh_secret() -> Result<[u8; 32], Status> {
    random::bytes().map_err(|error| Status::internal(format!("the system gives no random bytes: {error}")))
}

#[tonic::async_trait]
impl SessionSetup for Session {
    async fn join(
        &self,
        request: Request<wire::JoinRequest>,
    ) -> Result<Response<wire::JoinResponse>, Status> {
        let request = request.into_inner();
        let join = Join {
            group: request.group,
            process: convert::process(request.process)?,
            rank: request.rank,
            size: request.size,
            addresses: request.addresses,
            timeout: (request.timeout_ms > 0).then(|| Duration::from_millis(request.timeout_ms)),
            hosts_coordinator: request.hosts_coordinator,
            fresh_secret: fresh_secret()?,
        };
        match self.desk.ask(Ask::Join(Box::new(join))).await.map_err(|refusal| convert::status(&refusal))? {
            Reply::Group(table) => Ok(Response::new(convert::wire_group(&table))),
            other => Err(Status::internal(format!("unexpected answer to a join: {other:?}"))),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<wire::Notice, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        let process = convert::process(request.process)?;
        let notices = self.desk.watch(process, request.since_epoch).await;
        let notices = notices.map_err(|refusal| convert::status(&refusal))?;
        let attached = wire::notice::What::Attached(wire::Attached {
            incarnation: self.incarnation.0,
            failover_ms: self.failover.map_or(0, |span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        });
        let rest = notices.map(|notice| match notice {
            Notice::Loss(loss) => wire::notice::What::Loss(convert::wire_loss(&loss)),
            Notice::Survey { survey, flight } => {
                wire::notice::What::Survey(wire::Survey { id: survey, flight })
            }
            Notice::Closing => wire::notice::What::Closing(wire::Closing {}),
        });
        let all = tokio_stream::once(attached).chain(rest);
        Ok(Response::new(Box::pin(all.map(|what| Ok(wire::Notice { what: Some(what) })))))
    }

    async fn report_loss(
        &self,
        request: Request<wire::ReportLossRequest>,
    ) -> Result<Response<wire::ReportLossResponse>, Status> {
        let request = request.into_inner();
        let reporter = convert::process(request.reporter)?;
        let lost = convert::process(request.lost)?;
        let ask = Ask::ReportLoss {
            reporter: reporter.task,
            incarnation: reporter.incarnation,
            lost: lost.task,
            seen: lost.incarnation,
            detail: request.detail,
        };
        self.desk.ask(ask).await.map_err(|refusal| convert::status(&refusal))?;
        Ok(Response::new(wire::ReportLossResponse {}))
    }

    async fn blame(
        &self,
        request: Request<wire::BlameRequest>,
    ) -> Result<Response<wire::BlameResponse>, Status> {
        let request = request.into_inner();
        let reporter = convert::process(request.reporter)?;
        let cause = convert::process(request.cause)?;
        let ask =
            Ask::Blame { reporter: reporter.task, incarnation: reporter.incarnation, cause: cause.task };
        self.desk.ask(ask).await.map_err(|refusal| convert::status(&refusal))?;
        Ok(Response::new(wire::BlameResponse {}))
    }
}
