//! Tells agents that run servers of their own, as TensorFlow's do, of errors of other tasks.

use std::collections::HashMap;
use std::time::Duration;

use ringway_proto::tensorflow::ReportErrorToTaskRequest;
use ringway_proto::tensorflow::coordination_service_client::CoordinationServiceClient;
use ringway_topology::TaskId;
use tonic::transport::Endpoint;

use crate::core::coordination::errors::Refusal;
use crate::rpc::convert;
use crate::rpc::credentials::Credentials;

/// An agent that cannot be told within this time is not told: its own heartbeats will say the rest.
const PUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The agents to tell.
pub(super) struct Pusher {
    agents: HashMap<TaskId, String>,
    credentials: Credentials,
}

impl Pusher {
    /// Agents, each at its "host:port".
    pub(super) fn new(agents: &[(TaskId, String)], credentials: Credentials) -> Self {
        Pusher { agents: agents.iter().cloned().collect(), credentials }
    }

    /// Tells the agent of a task of an error, if it has a server.
    pub(super) fn push(&self, to: &TaskId, error: &Refusal) {
        let Some(address) = self.agents.get(to).cloned() else { return };
        let request = ReportErrorToTaskRequest {
            error_code: error.code.number(),
            error_message: error.message.to_string(),
            error_payload: Some(convert::error_payload(error)),
            ..ReportErrorToTaskRequest::default()
        };
        let (task, credentials) = (to.clone(), self.credentials.clone());
        tokio::spawn(async move {
            if let Err(error) = tell(&address, &credentials, request).await {
                tracing::warn!(%task, %address, %error, "cannot tell an agent of the failure of another");
            }
        });
    }
}

async fn tell(
    address: &str,
    credentials: &Credentials,
    request: ReportErrorToTaskRequest,
) -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?.timeout(PUSH_TIMEOUT);
    let channel = endpoint.connect_with_connector(credentials.connector(address, PUSH_TIMEOUT)).await?;
    CoordinationServiceClient::new(credentials.on(channel)).report_error_to_task(request).await?;
    Ok(())
}
