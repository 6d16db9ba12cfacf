//! What a task asks of the coordinator.

use std::time::{Duration, Instant, SystemTime};

use ringway_proto::ringway::v1 as wire;
use ringway_proto::ringway::v1::session_setup_client::SessionSetupClient;
use ringway_proto::tensorflow as tf;
use ringway_proto::tensorflow::coordination_service_client::CoordinationServiceClient;
use ringway_topology::{Incarnation, TaskId};
use tonic::Status;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;

use super::Agent;
use super::errors::{BarrierError, JoinError, ReportError, StoreError};
use crate::core::coordination::groups::GroupTable;
use crate::core::coordination::request::Process;
use crate::core::coordination::{BARRIER_TIMEOUT_LIMIT, preemption};
use crate::rpc::credentials::SecureChannel;
use crate::rpc::{MESSAGE_LIMIT_BYTES, convert};

/// Time that a call gets beyond the wait that it asks for, so that the coordinator's own answer, which names who is
/// missing, comes first.
pub(super) const MARGIN: Duration = Duration::from_secs(2);
/// Longer waits, such as those meant to be for ever, are as long as this: clocks do not count further than some centuries.
pub(super) const LONGEST_WAIT: Duration = BARRIER_TIMEOUT_LIMIT;
/// Between two tries of a wait whose connection broke.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Says of which life of a task each call is, so that none of a life that was replaced has an effect.
#[derive(Clone)]
struct Signature(TaskId, Incarnation);

impl Interceptor for Signature {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        convert::sign(&self.0, self.1, request.metadata_mut());
        Ok(request)
    }
}

type Coordination = CoordinationServiceClient<InterceptedService<SecureChannel, Signature>>;

/// A wish to enter a group.
#[derive(Clone, Debug)]
pub struct GroupRequest {
    /// Name of the group, the same for all members.
    pub group: String,
    /// The rank to have; `None` for any.
    pub rank: Option<u32>,
    /// Number of members.
    pub size: u32,
    /// Where the data plane of this process is reached, opaque to the coordinator.
    pub addresses: Vec<u8>,
    /// How long to wait for the others.
    pub timeout: Duration,
    /// The coordinator runs in this process: when it is lost, this process is.
    pub hosts_coordinator: bool,
}

impl Agent {
    /// Enters a group and waits until all its members have. One round trip.
    ///
    /// # Errors
    /// When not all members come in time (they are named), members disagree, one is lost, or the coordinator is not
    /// reached.
    pub fn join_group(&self, request: GroupRequest) -> Result<GroupTable, JoinError> {
        let group = request.group.clone();
        let join = wire::JoinRequest {
            group: request.group,
            process: Some(convert::wire_process(&self.process)),
            rank: request.rank,
            size: request.size,
            addresses: request.addresses,
            timeout_ms: 0,
            hosts_coordinator: request.hosts_coordinator,
        };
        let timeout = request.timeout.min(LONGEST_WAIT);
        let until = Instant::now() + timeout;
        let table = self.ask_session(join, move |mut client, mut join| {
            join.timeout_ms = left_ms(until);
            async move { client.join(join).await }
        });
        let table = async move { convert::group(table.await?.into_inner()) };
        let table = self.run(timeout + MARGIN, table);
        let table =
            table.map_err(|failure| JoinError::new(&self.process.task, &group, &self.address, &failure))?;
        let host = table.members.iter().find(|member| member.hosts_coordinator);
        if let Some(host) = host.filter(|host| host.process != self.process) {
            self.alarms.hosted_by(host);
        }
        Ok(table)
    }

    /// Tells the coordinator that a task is lost: another, whose connection failed, or the agent's own, which gives up
    /// with this message.
    ///
    /// # Errors
    /// When the coordinator is not reached or does not take the report.
    pub fn report_loss(
        &self,
        lost: &TaskId,
        incarnation: Incarnation,
        detail: &str,
    ) -> Result<(), ReportError> {
        let request = self.loss_of(lost, incarnation, detail);
        let call =
            self.ask_session(request, |mut client, request| async move { client.report_loss(request).await });
        self.run(self.call_timeout, call)
            .map(drop)
            .map_err(|failure| ReportError::new(&self.process.task, &self.address, &failure))
    }

    /// Tells the coordinator that this task fails because of another. Returns at once: the word goes before any later call
    /// of this agent, and is of use to whoever started both tasks, if it hosts the service.
    pub fn blame(&self, cause: &Process) {
        let request = wire::BlameRequest {
            reporter: Some(convert::wire_process(&self.process)),
            cause: Some(convert::wire_process(cause)),
        };
        let call =
            self.ask_session(request, |mut client, request| async move { client.blame(request).await });
        self.tell("blames another", call);
    }

    /// As [`Agent::report_loss`], without waiting for the answer: the word goes before any later call of this agent.
    pub fn tell_loss(&self, lost: &TaskId, incarnation: Incarnation, detail: &str) {
        let request = self.loss_of(lost, incarnation, detail);
        let call =
            self.ask_session(request, |mut client, request| async move { client.report_loss(request).await });
        self.tell("saw another lost", call);
    }

    fn loss_of(&self, lost: &TaskId, incarnation: Incarnation, detail: &str) -> wire::ReportLossRequest {
        let lost = wire::Process {
            job: lost.job().to_owned(),
            task: lost.index(),
            incarnation: incarnation.0,
            host: self.process.host.to_text(),
            pid: 0,
        };
        wire::ReportLossRequest {
            reporter: Some(convert::wire_process(&self.process)),
            lost: Some(lost),
            detail: detail.to_owned(),
        }
    }

    /// Makes a call on the agent's thread that nobody waits for.
    fn tell<T: Send + 'static>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) {
        let limit = self.call_timeout;
        self.runtime.spawn(async move {
            if let Ok(Err(status)) = tokio::time::timeout(limit, call).await {
                tracing::debug!(%status, "the coordination service does not take that this task {what}");
            }
        });
    }

    /// Writes a value under a key. One that is there is kept, as an error, unless `overwrite`.
    ///
    /// # Errors
    /// When the key exists, the store is full, or the coordinator is not reached.
    pub fn kv_set(&self, key: &str, value: &[u8], overwrite: bool) -> Result<(), StoreError> {
        let kv = Some(tf::KeyValueEntry { key: key.to_owned(), value: value.to_owned() });
        let request = tf::InsertKeyValueRequest { kv, allow_overwrite: overwrite };
        let number = self.route.number();
        let call = self.ask(request, move |mut client, request| {
            let request = number.request(request);
            async move { client.insert_key_value(request).await }
        });
        self.store(key, self.call_timeout, call).map(drop)
    }

    /// Reads the value of a key, waiting until somebody has written it, for `timeout` at most.
    ///
    /// # Errors
    /// When nobody writes it in time, or the coordinator is not reached.
    pub fn kv_get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let request = tf::GetKeyValueRequest { key: key.to_owned() };
        let call =
            self.ask(request, |mut client, request| async move { client.get_key_value(request).await });
        let answer = self.store(key, timeout, call)?;
        Ok(answer.into_inner().kv.unwrap_or_default().value)
    }

    /// Reads the value of a key that is there.
    ///
    /// # Errors
    /// When it is not there, or the coordinator is not reached.
    pub fn kv_try_get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        let request = tf::TryGetKeyValueRequest { key: key.to_owned() };
        let call =
            self.ask(request, |mut client, request| async move { client.try_get_key_value(request).await });
        let answer = self.store(key, self.call_timeout, call)?;
        Ok(answer.into_inner().kv.unwrap_or_default().value)
    }

    /// Reads all keys under a directory, in order.
    ///
    /// # Errors
    /// When they are too much for one answer, or the coordinator is not reached.
    pub fn kv_list(&self, directory: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let request = tf::GetKeyValueDirRequest { directory_key: directory.to_owned() };
        let call =
            self.ask(request, |mut client, request| async move { client.get_key_value_dir(request).await });
        let answer = self.store(directory, self.call_timeout, call)?;
        Ok(answer.into_inner().kv.into_iter().map(|entry| (entry.key, entry.value)).collect())
    }

    /// Adds to a decimal value and gives the sum; a missing one counts as 0.
    ///
    /// # Errors
    /// When the value is no number, the sum does not fit, or the coordinator is not reached.
    pub fn kv_add(&self, key: &str, increment: i64) -> Result<i64, StoreError> {
        let request = tf::IncrementKeyValueRequest { key: key.to_owned(), increment };
        let number = self.route.number();
        let call = self.ask(request, move |mut client, request| {
            let request = number.request(request);
            async move { client.increment_key_value(request).await }
        });
        let value = self.store(key, self.call_timeout, call)?.into_inner().kv.unwrap_or_default().value;
        let sum = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
        sum.ok_or_else(|| StoreError::Refused {
            key: key.to_owned(),
            detail: "the coordinator answered with something that is no number".to_owned(),
        })
    }

    /// Removes a key and everything under it.
    ///
    /// # Errors
    /// When the coordinator is not reached.
    pub fn kv_delete(&self, key: &str) -> Result<(), StoreError> {
        let request = tf::DeleteKeyValueRequest { key: key.to_owned(), is_directory: true };
        let number = self.route.number();
        let call = self.ask(request, move |mut client, request| {
            let request = number.request(request);
            async move { client.delete_key_value(request).await }
        });
        self.store(key, self.call_timeout, call).map(drop)
    }

    /// Tells all tasks that wait for such a word that this one will be taken away in `grace`. The first such word stands.
    ///
    /// # Errors
    /// When the coordinator is not reached.
    pub fn announce_preemption(&self, grace: Duration) -> Result<(), StoreError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let end = now.saturating_add(grace).as_secs();
        let when = preemption::time_text(i64::try_from(end).unwrap_or(i64::MAX));
        for key in [preemption::NOTICE_KEY, preemption::TENSORFLOW_KEY] {
            match self.kv_set(key, when.as_bytes(), false) {
                Ok(()) | Err(StoreError::Exists { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Calls `listener` once with the time at which a task, or the service, will be taken away, when that is announced: by
    /// [`Agent::announce_preemption`], by `ringway serve` on SIGTERM, or by JAX's tasks. `None`: they did not say when.
    ///
    /// It is called on the agent's thread and must be quick; it must not call the agent.
    pub fn on_preemption(&self, listener: impl FnOnce(Option<SystemTime>) + Send + 'static) {
        self.on_key(preemption::NOTICE_KEY, move |value| {
            let text = String::from_utf8(value).unwrap_or_default();
            let seconds = preemption::parse_time(&text).and_then(|seconds| u64::try_from(seconds).ok());
            listener(seconds.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)));
        });
    }

    /// Calls `listener` once with the value of a key, when it is written; at once, if it is there.
    ///
    /// It is called on the agent's thread and must be quick; it must not call the agent.
    pub fn on_key(&self, key: &str, listener: impl FnOnce(Vec<u8>) + Send + 'static) {
        let (route, signature) = (self.route.clone(), self.signature());
        let request = tf::GetKeyValueRequest { key: key.to_owned() };
        let ask = move |channel| {
            let (mut client, request) = (coordination(channel, signature.clone()), request.clone());
            async move { client.get_key_value(request).await }
        };
        let mut stage = self.stage.clone();
        self.runtime.spawn(async move {
            let answer = tokio::select! {
                answer = async {
                    loop {
                        match route.call(&ask).await {
                            Ok(answer) => return answer.into_inner(),
                            // The connection broke: the agent finds out whether the coordinator is still there.
                            Err(status) if std::error::Error::source(&status).is_some() => {
                                tokio::time::sleep(ASK_AGAIN).await;
                            }
                            Err(status) => {
                                tracing::debug!(%status, "no word of a key will come");
                                std::future::pending::<()>().await;
                            }
                        }
                    }
                } => answer,
                _ = super::ended(&mut stage) => return,
            };
            listener(answer.kv.unwrap_or_default().value);
        });
    }

    /// Waits until each of the tasks has called the barrier of this name; no tasks means all of the cluster. A name is
    /// good for one barrier.
    ///
    /// # Errors
    /// When tasks are late (they are named), one fails, they name different tasks, or the coordinator is not reached.
    pub fn barrier(&self, name: &str, tasks: &[TaskId], timeout: Duration) -> Result<(), BarrierError> {
        let request = tf::BarrierRequest {
            barrier_id: name.to_owned(),
            barrier_timeout_in_ms: 0,
            tasks: tasks.iter().map(convert::coordinated_task).collect(),
            source_task: Some(convert::coordinated_task(&self.process.task)),
            counter: 0,
        };
        let timeout = timeout.min(LONGEST_WAIT);
        let until = Instant::now() + timeout;
        let call = self.ask(request, move |mut client, mut request| {
            request.barrier_timeout_in_ms = i64::try_from(left_ms(until)).unwrap_or(i64::MAX);
            async move { client.barrier(request).await }
        });
        self.run(timeout + MARGIN, call)
            .map(drop)
            .map_err(|failure| BarrierError::new(&self.process.task, name, &self.address, &failure))
    }

    fn store<T: Send + 'static>(
        &self,
        key: &str,
        limit: Duration,
        call: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run(limit, call).map_err(|failure| StoreError::new(key, &self.address, &failure))
    }

    fn signature(&self) -> Signature {
        Signature(self.process.task.clone(), self.process.incarnation)
    }

    /// Asks the coordination service, wherever it is and goes.
    fn ask<M, T, F>(
        &self,
        message: M,
        call: impl Fn(Coordination, M) -> F + Send + Sync + 'static,
    ) -> impl Future<Output = Result<T, Status>> + Send + 'static
    where
        M: Clone + Send + Sync + 'static,
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let signature = self.signature();
        let route = self.route.clone();
        async move {
            let call = |channel| call(coordination(channel, signature.clone()), message.clone());
            route.call(call).await
        }
    }

    /// The same for session setup.
    fn ask_session<M, T, F>(
        &self,
        message: M,
        call: impl Fn(SessionSetupClient<SecureChannel>, M) -> F + Send + Sync + 'static,
    ) -> impl Future<Output = Result<T, Status>> + Send + 'static
    where
        M: Clone + Send + Sync + 'static,
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let route = self.route.clone();
        async move {
            let call = |channel| {
                let client = SessionSetupClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT_BYTES);
                call(client, message.clone())
            };
            route.call(call).await
        }
    }
}

fn coordination(channel: SecureChannel, signature: Signature) -> Coordination {
    CoordinationServiceClient::with_interceptor(channel, signature)
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
        .max_encoding_message_size(MESSAGE_LIMIT_BYTES)
}

/// Milliseconds until then, at least 1: a wait that is asked for again is as long as what is left of it.
pub(super) fn left_ms(until: Instant) -> u64 {
    let left = until.saturating_duration_since(Instant::now()).as_millis();
    u64::try_from(left).unwrap_or(u64::MAX).max(1)
}
