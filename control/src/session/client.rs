//! A session with a master.

use std::future::Future;
use std::time::Duration;

use ringway_proto::tensorflow as tf;
use ringway_proto::tensorflow::error::Code;
use ringway_proto::tensorflow::master_service_client::MasterServiceClient;
use tokio::runtime::Runtime;
use tonic::transport::Endpoint;
use tonic::{Response, Status};

use super::build::{Op, Output};
use super::error::SessionError;
use crate::rpc::TENSOR_MESSAGE_LIMIT_BYTES;
use crate::rpc::credentials::{Credentials, SecureChannel};
use crate::tensor::Tensor;

/// How a session behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long the master may take to answer at first.
    pub connect_timeout: Duration,
    /// How long a step may take. The master ends it then, and says which task was late.
    pub step_timeout: Duration,
    /// What the master is shown, and must show. [`Credentials::from_settings`] takes what is in the environment.
    pub credentials: Credentials,
    /// The session's settings, as TensorFlow's clients give them.
    pub config: tf::ConfigProto,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            connect_timeout: Duration::from_secs(10),
            step_timeout: Duration::from_secs(600),
            credentials: Credentials::default(),
            config: tf::ConfigProto::default(),
        }
    }
}

impl Options {
    /// These, with the task `leader` (such as `/job:worker/replica:0/task:0`) deciding who takes part in the collective
    /// operations of the graph. TensorFlow's masters need one; ours take the first task of the cluster by default.
    #[must_use]
    pub fn collectives_led_by(mut self, leader: &str) -> Options {
        let experimental = self.config.experimental.get_or_insert_default();
        experimental.collective_group_leader = leader.to_owned();
        self
    }
}

/// The master has so much longer than a step to say that the step took too long.
const ANSWER_GRACE: Duration = Duration::from_secs(5);

/// A graph at a master, and the steps that are run of it. One step at a time; several sessions run side by side.
///
/// Dropping a session leaves it to the master, which ends it by its lease; [`Session::close`] ends it at once.
#[derive(Debug)]
pub struct Session {
    /// Until it is dropped.
    runtime: Option<Runtime>,
    master: MasterServiceClient<SecureChannel>,
    target: String,
    handle: String,
    version: i64,
    options: Options,
}

impl Session {
    /// Begins a session over `graph` with the master at `target`, `grpc://HOST:PORT`.
    ///
    /// # Errors
    /// [`SessionError`], when the target is none, the master is not reached or refuses the graph.
    pub fn connect(target: &str, graph: tf::GraphDef, options: Options) -> Result<Session, SessionError> {
        outside_of_runtimes()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(SessionError::Runtime)?;
        let bad = || SessionError::Target { target: target.to_owned() };
        let address = target.strip_prefix("grpc://").unwrap_or(target);
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| bad())?;
        let connector = options.credentials.connector(address, options.connect_timeout);
        let channel = runtime
            .block_on(endpoint.connect_with_connector(connector))
            .map_err(|why| SessionError::Connect { target: target.to_owned(), why: reason(&why) })?;
        let master = MasterServiceClient::new(options.credentials.on(channel))
            .max_decoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES);
        let target = target.to_owned();
        let mut session =
            Session { runtime: Some(runtime), master, target, handle: String::new(), version: 0, options };
        let request = tf::CreateSessionRequest {
            graph_def: Some(graph),
            config: Some(session.options.config.clone()),
            ..Default::default()
        };
        let mut master = session.master.clone();
        let limit = session.options.connect_timeout.max(session.options.step_timeout);
        let answer =
            session.call("CreateSession", limit, async move { master.create_session(request).await })?;
        session.handle = answer.session_handle;
        session.version = answer.graph_version;
        Ok(session)
    }

    /// Adds to the graph.
    ///
    /// # Errors
    /// [`SessionError::Status`] when the master refuses it.
    pub fn extend(&mut self, graph: tf::GraphDef) -> Result<(), SessionError> {
        let request = tf::ExtendSessionRequest {
            session_handle: self.handle.clone(),
            graph_def: Some(graph),
            current_graph_version: self.version,
        };
        let mut master = self.master.clone();
        let limit = self.options.step_timeout;
        let answer =
            self.call("ExtendSession", limit, async move { master.extend_session(request).await })?;
        self.version = answer.new_graph_version;
        Ok(())
    }

    /// One step: with `feeds` in place of what these outputs would be, runs `targets`, and returns `fetches` in order.
    ///
    /// # Errors
    /// [`SessionError::Status`] names the task and the node at fault. The session can be used again.
    pub fn run(
        &mut self,
        feeds: &[(&Output, &Tensor)],
        fetches: &[&Output],
        targets: &[&Op],
    ) -> Result<Vec<Tensor>, SessionError> {
        let named = |(output, tensor): &(&Output, &Tensor)| tf::NamedTensorProto {
            name: output.name(),
            tensor: Some(tensor.to_proto()),
        };
        let timeout_in_ms = i64::try_from(self.options.step_timeout.as_millis()).unwrap_or(i64::MAX);
        // One key per session: its steps are in one order on every task.
        let collective = self.options.config.experimental.as_ref();
        let collective =
            collective.is_some_and(|experimental| !experimental.collective_group_leader.is_empty());
        let experimental = collective
            .then(|| tf::run_options::Experimental { collective_graph_key: 1, ..Default::default() });
        let request = tf::RunStepRequest {
            session_handle: self.handle.clone(),
            feed: feeds.iter().map(named).collect(),
            fetch: fetches.iter().map(|output| output.name()).collect(),
            target: targets.iter().map(|op| op.name().to_owned()).collect(),
            options: Some(tf::RunOptions { timeout_in_ms, experimental, ..Default::default() }),
            store_errors_in_response_body: true,
            ..Default::default()
        };
        let mut master = self.master.clone();
        let limit = self.options.step_timeout + ANSWER_GRACE;
        let answer = self.call("RunStep", limit, async move { master.run_step(request).await })?;
        let code = answer.status_code();
        if code != Code::Ok {
            return Err(self.failed("RunStep", code, answer.status_error_message));
        }
        fetches.iter().map(|output| self.fetched(output, &answer.tensor)).collect()
    }

    fn fetched(&self, output: &Output, tensors: &[tf::NamedTensorProto]) -> Result<Tensor, SessionError> {
        let name = output.name();
        let found =
            tensors.iter().find(|tensor| tensor.name == name).and_then(|tensor| tensor.tensor.as_ref());
        let missing = || SessionError::Answer {
            target: self.target.clone(),
            call: "RunStep",
            problem: format!("no value for {name}"),
        };
        Ok(Tensor::from_proto(found.ok_or_else(missing)?)?)
    }

    /// Names of all devices of the cluster.
    ///
    /// # Errors
    /// [`SessionError::Status`].
    pub fn devices(&mut self) -> Result<Vec<String>, SessionError> {
        let request = tf::ListDevicesRequest { session_handle: self.handle.clone() };
        let mut master = self.master.clone();
        let limit = self.options.step_timeout;
        let answer = self.call("ListDevices", limit, async move { master.list_devices(request).await })?;
        let all = answer.local_device.into_iter().chain(answer.remote_device);
        Ok(all.map(|device| device.name).collect())
    }

    /// Ends the session. Variables stay with their tasks.
    ///
    /// # Errors
    /// [`SessionError::Status`].
    pub fn close(self) -> Result<(), SessionError> {
        let request = tf::CloseSessionRequest { session_handle: self.handle.clone() };
        let mut master = self.master.clone();
        let limit = self.options.step_timeout;
        self.call("CloseSession", limit, async move { master.close_session(request).await })?;
        Ok(())
    }

    fn call<T>(
        &self,
        call: &'static str,
        limit: Duration,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, SessionError> {
        outside_of_runtimes()?;
        let Some(runtime) = &self.runtime else {
            unreachable!("a session has its runtime until it is dropped")
        };
        let answered = runtime.block_on(async { tokio::time::timeout(limit, answer).await });
        match answered {
            Err(_) => Err(SessionError::Timeout { target: self.target.clone(), call, limit }),
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            // A status with a source is this side's: the master said nothing.
            Ok(Err(status)) if std::error::Error::source(&status).is_some() => {
                let lost = format!(
                    "the connection to the master was lost ({}): its process ended, or its host cannot be reached; \
                     sessions end with their master, begin another one",
                    reason(&status)
                );
                Err(self.failed(call, Code::Unavailable, lost))
            }
            Ok(Err(status)) => {
                let code = Code::try_from(status.code() as i32).unwrap_or(Code::Unknown);
                Err(self.failed(call, code, status.message().to_owned()))
            }
        }
    }

    fn failed(&self, call: &'static str, code: Code, message: String) -> SessionError {
        SessionError::Status { target: self.target.clone(), call, code, message }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The last owner may be a task of another runtime, where waiting is not allowed.
            runtime.shutdown_background();
        }
    }
}

fn outside_of_runtimes() -> Result<(), SessionError> {
    match tokio::runtime::Handle::try_current() {
        Ok(_) => Err(SessionError::Asynchronous),
        Err(_) => Ok(()),
    }
}

/// The innermost reason, which is what a user can act on.
fn reason(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_blocking_call_within_a_runtime_is_an_error_that_says_what_to_do() {
        let connect = || Session::connect("grpc://127.0.0.1:1", tf::GraphDef::default(), Options::default());
        let error = connect().unwrap_err();
        assert!(matches!(error, SessionError::Asynchronous), "{error}");
        assert!(format!("{error:?}").contains("spawn_blocking"));
        let elsewhere = tokio::task::spawn_blocking(move || connect().unwrap_err().to_string());
        elsewhere.await.unwrap();
    }
}
