//! Asking a coordination service how its job is: what `ringway status` does.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use ringway_proto::ringway::v1 as wire;
use ringway_proto::ringway::v1::look_response::What;
use ringway_proto::ringway::v1::status_client::StatusClient;
use tokio::net::UnixStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use super::connect::{self, Sight};
use super::link;
use crate::core::agent::Failure;
use crate::core::status::Look;
use crate::rpc::credentials::{Credentials, SecureChannel};
use crate::rpc::{MESSAGE_LIMIT_BYTES, convert};

/// Time that the service gets beyond what it gives the ranks.
const MARGIN: Duration = Duration::from_secs(5);

/// Where a coordination service is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At its port: "host:port".
    Address(String),
    /// At a socket of this host, which asks for nothing but the right to open it.
    Socket(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Address(address) => f.write_str(address),
            Place::Socket(path) => path.display().fmt(f),
        }
    }
}

impl Place {
    /// A channel there. Must be made within a runtime.
    fn channel(
        &self,
        sight: &Sight,
        credentials: &Credentials,
    ) -> Result<SecureChannel, tonic::transport::Error> {
        match self {
            Place::Address(address) => connect::channel(address, sight, credentials),
            Place::Socket(path) => {
                let path = path.clone();
                let connector = tower::service_fn(move |_| {
                    let path = path.clone();
                    async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
                });
                let channel = Endpoint::from_static("http://status").connect_with_connector_lazy(connector);
                Ok(Credentials::default().on(channel))
            }
        }
    }

    /// Why nobody answers there.
    fn unreachable(&self, why: String, sight: &Sight) -> LookError {
        let why = match self {
            Place::Address(_) => sight.last().to_string(),
            Place::Socket(_) => why,
        };
        LookError::Unreachable { address: self.to_string(), why }
    }
}

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

/// Asks the service at `place`, which is shown `credentials` where it is an address, and through it the ranks. Blocks for the patience and a few seconds at most.
///
/// # Errors
/// [`LookError`]. Ranks that do not answer are no error: the look names them.
pub fn look(place: &Place, question: Question, credentials: &Credentials) -> Result<Look, LookError> {
    let address = place.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| LookError::System { address: address.clone(), source })?;
    runtime.block_on(async {
        let sight = Sight::new();
        let channel = place
            .channel(&sight, credentials)
            .map_err(|_| LookError::Address { address: address.clone() })?;
        let limit = question.patience + MARGIN;
        match tokio::time::timeout(limit, ask(channel, question)).await {
            Ok(Ok(look)) => Ok(look),
            Ok(Err(status)) if status.code() == Code::Unimplemented => Err(LookError::Refused {
                address,
                why: "it is not ringway's, or of an earlier version".to_owned(),
            }),
            // A candidate that does not lead says who does.
            Ok(Err(status)) if convert::elsewhere(&status).is_some() => {
                Err(LookError::Refused { address, why: status.message().to_owned() })
            }
            Ok(Err(status)) => Err(match link::failure(&status, &sight) {
                Failure::Unreachable(why) => place.unreachable(why, &sight),
                Failure::Refused(refusal) => LookError::Refused { address, why: refusal.to_string() },
            }),
            Err(_) => Err(place.unreachable("it takes connections and does not answer".to_owned(), &sight)),
        }
    })
}

async fn ask(channel: SecureChannel, question: Question) -> Result<Look, Status> {
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
