//! Asking a coordination service how its job is: what `ringway status` does.

use std::io;
use std::time::Duration;

use ringway_proto::ringway::v1 as wire;
use ringway_proto::ringway::v1::look_response::What;
use ringway_proto::ringway::v1::status_client::StatusClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::connect::{self, Sight};
use super::link;
use crate::core::agent::Failure;
use crate::core::status::Look;
use crate::rpc::MESSAGE_LIMIT_BYTES;

/// Time that the service gets beyond what it gives the ranks.
const MARGIN: Duration = Duration::from_secs(5);

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Ask the ranks as well, not only the service.
    pub ranks: bool,
    /// Have the ranks send their flight records.
    pub flight: bool,
    /// How long the ranks have to answer; the service gives them ten seconds at most.
    pub patience: Duration,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The system gives no runtime.
    #[error(
        "cannot ask {address}: {source}; raise the limits on open files (ulimit -n) and processes (ulimit -u)"
    )]
    System {
        /// Where the service was to be.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The address is none.
    #[error("{address:?} is no address of a coordination service: give HOST:PORT")]
    Address {
        /// What was given.
        address: String,
    },
    /// The service was not reached, or does not answer.
    #[error("no coordination service answers at {address}: {why}")]
    Unreachable {
        /// Where it was to be.
        address: String,
        /// What was seen.
        why: String,
    },
    /// The service refuses.
    #[error("the coordination service at {address} does not tell: {why}")]
    Refused {
        /// Where it is.
        address: String,
        /// Its words.
        why: String,
    },
}

/// Asks the service at `address`, and through it the ranks. Blocks for the patience and a few seconds at most.
///
/// # Errors
/// [`LookError`]. Ranks that do not answer are no error: the look names them.
pub fn look(address: &str, question: Question) -> Result<Look, LookError> {
    let address = address.to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| LookError::System { address: address.clone(), source })?;
    runtime.block_on(async {
        let sight = Sight::new();
        let channel = connect::channel(&address, &sight)
            .map_err(|_| LookError::Address { address: address.clone() })?;
        let limit = question.patience + MARGIN;
        match tokio::time::timeout(limit, ask(channel, question)).await {
            Ok(Ok(look)) => Ok(look),
            Ok(Err(status)) if status.code() == Code::Unimplemented => Err(LookError::Refused {
                address,
                why: "it is not ringway's, or of an earlier version".to_owned(),
            }),
            Ok(Err(status)) => Err(match link::failure(&status, &sight) {
                Failure::Unreachable(_) => LookError::Unreachable { address, why: sight.last().to_string() },
                Failure::Refused(refusal) => LookError::Refused { address, why: refusal.to_string() },
            }),
            Err(_) => Err(LookError::Unreachable { address, why: sight.last().to_string() }),
        }
    })
}

async fn ask(channel: Channel, question: Question) -> Result<Look, Status> {
    let mut client = StatusClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT_BYTES);
    let Question { ranks, flight, patience } = question;
    let timeout_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX).max(1);
    let request = wire::LookRequest { ranks, flight, timeout_ms };
    let mut answers = client.look(request).await?.into_inner();
    let mut look = Look::default();
    while let Some(answer) = answers.message().await? {
        match answer.what {
            Some(What::Overview(overview)) => look.overview = overview,
            Some(What::Report(report)) => look.reports.push(report),
            Some(What::Silent(silent)) => look.silent = silent.tasks,
            // A kind of answer that a later version of the service gives.
            None => {}
        }
    }
    look.reports.sort_by_key(|report| report.rank);
    Ok(look)
}
