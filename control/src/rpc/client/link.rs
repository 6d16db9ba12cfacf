//! Carries out what the agent's machine wants: calls to the coordinator, whose answers come back as events.

use std::sync::Arc;
use std::time::Duration;

use ringway_proto::ringway::v1 as wire;
use ringway_proto::ringway::v1::session_setup_client::SessionSetupClient;
use ringway_proto::tensorflow as tf;
use ringway_proto::tensorflow::coordination_service_client::CoordinationServiceClient;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::Status;

use super::alarms::{Alarm, Alarms};
use super::connect::{Seen, Sight};
use super::route::Route;
use super::surveys::Surveys;
use crate::core::agent::{Effect, Event, Failure, Outage};
use crate::core::coordination::errors::{Code, Refusal};
use crate::core::coordination::request::{Notice, Process};
use crate::rpc::convert;
use crate::rpc::credentials::SecureChannel;
use crate::rpc::driver::Outbox;

/// How far the agent has come.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// It is not registered yet.
    Starting,
    /// It is registered and hears of losses.
    Ready,
    /// It has ended. In words.
    Ended { why: String, outage: Option<Outage> },
}

/// The agent's way to the coordinator.
pub(super) struct Link {
    pub(super) process: Process,
    pub(super) address: String,
    pub(super) route: Route,
    pub(super) alarms: Arc<Alarms>,
    pub(super) surveys: Surveys,
    pub(super) stage: watch::Sender<Stage>,
    pub(super) events: mpsc::UnboundedSender<Event>,
    /// One try to register takes no longer.
    pub(super) try_limit: Duration,
    /// A heartbeat that is not answered within this time was lost.
    pub(super) beat_limit: Duration,
    /// The same where another may lead, who is looked for then; but never under a second.
    pub(super) beat_every: Duration,
    /// Asking to leave takes no longer.
    pub(super) leave_limit: Duration,
}

/// Whether a status was made on this side, since no answer came: then what was seen, in words.
pub(super) fn failure(status: &Status, sight: &Sight) -> Failure {
    if convert::elsewhere(status).is_some() {
        return Failure::Unreachable(status.message().to_owned());
    }
    let Some(source) = std::error::Error::source(status) else {
        return Failure::Refused(convert::refusal(status));
    };
    match sight.last() {
        // No use to try again: that program will not become a coordinator.
        seen @ Seen::Untrusted(_) => Failure::Refused(Refusal::new(Code::Unauthenticated, seen)),
        seen @ Seen::OtherProtocol(_) => Failure::Refused(Refusal::new(Code::Unimplemented, seen)),
        Seen::Good | Seen::Nothing => Failure::Unreachable(innermost(source)),
        seen => Failure::Unreachable(seen.brief()),
    }
}

/// The last error of a chain, which is the one that says what happened.
fn innermost(mut error: &(dyn std::error::Error + 'static)) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

impl Link {
    /// Makes a call of the coordination service, once; its outcome comes back as an event.
    fn call<F, T>(
        &self,
        limit: Duration,
        answer: fn(Result<(), Failure>) -> Event,
        call: impl FnOnce(CoordinationServiceClient<SecureChannel>) -> F,
    ) where
        F: Future<Output = Result<T, Status>> + Send + 'static,
        T: Send,
    {
        let (route, events) = (self.route.clone(), self.events.clone());
        let (moves, channel) = route.place();
        let call = call(CoordinationServiceClient::new(channel));
        tokio::spawn(async move {
            let result = match timeout(limit, call).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(status)) => {
                    route.look(moves, &status);
                    Err(failure(&status, route.sight()))
                }
                Err(_) => {
                    route.moved(moves, None);
                    Err(Failure::Unreachable(route.sight().last().brief()))
                }
            };
            // Without a driver the agent has ended.
            let _ = events.send(answer(result));
        });
    }

    fn register(&self) {
        let request = tf::RegisterTaskRequest {
            incarnation: self.process.incarnation.0,
            source_task: Some(convert::coordinated_task(&self.process.task)),
            ..tf::RegisterTaskRequest::default()
        };
        self.call(self.try_limit, Event::Registered, |mut client| async move {
            client.register_task(request).await
        });
    }

    fn beat(&self) {
        let request = tf::HeartbeatRequest {
            incarnation: self.process.incarnation.0,
            source_task: Some(convert::coordinated_task(&self.process.task)),
            ..tf::HeartbeatRequest::default()
        };
        let limit = match self.route.goes_on() {
            true => self.beat_every.max(Duration::from_secs(1)),
            false => self.beat_limit,
        };
        self.call(limit, Event::Beaten, |mut client| async move { client.heartbeat(request).await });
    }

    fn shut_down(&self) {
        let (task, incarnation) = (self.process.task.clone(), self.process.incarnation);
        let (route, events, limit) = (self.route.clone(), self.events.clone(), self.leave_limit);
        tokio::spawn(async move {
            let call = route.call(|channel| {
                let source_task = Some(convert::coordinated_task(&task));
                let mut request = tonic::Request::new(tf::ShutdownTaskRequest { source_task });
                // The request itself does not say of which life it is.
                convert::sign(&task, incarnation, request.metadata_mut());
                async move { CoordinationServiceClient::new(channel).shutdown_task(request).await }
            });
            // Good or not, the task goes.
            let _ = timeout(limit, call).await;
            // Without a driver the agent has ended.
            let _ = events.send(Event::ShutDown);
        });
    }

    fn watch(&self, since_epoch: u64) {
        let request = wire::WatchRequest { process: Some(convert::wire_process(&self.process)), since_epoch };
        let (route, events, limit) = (self.route.clone(), self.events.clone(), self.try_limit);
        let (moves, channel) = route.place();
        let mut client = SessionSetupClient::new(channel.clone());
        let surveys = self.surveys.clone();
        tokio::spawn(async move {
            let end = match timeout(limit, client.watch(request)).await {
                Ok(Ok(stream)) => {
                    let asked = |survey| surveys.answer(channel.clone(), survey);
                    tokio::select! {
                        end = follow(stream.into_inner(), &route, &events, asked) => end,
                        () = route.moved_past(moves) => {
                            Failure::Unreachable("the coordinator is elsewhere".to_owned())
                        }
                    }
                }
                Ok(Err(status)) => {
                    route.look(moves, &status);
                    failure(&status, route.sight())
                }
                Err(_) => {
                    route.moved(moves, None);
                    Failure::Unreachable(route.sight().last().brief())
                }
            };
            // Without a driver the agent has ended.
            let _ = events.send(Event::WatchEnded(end));
        });
    }

    fn end(&self, why: String, outage: Option<Outage>) {
        self.stage.send_replace(Stage::Ended { why, outage });
    }

    fn failed(&self, outage: Outage) {
        let (why, alarm) = match &outage {
            Outage::NotRegistered { .. } => ("the agent could not register".to_owned(), None),
            Outage::CoordinatorLost(detail) => {
                let detail = format!("{detail} (coordinator at {})", self.address);
                (detail.clone(), Some(self.alarms.coordinator_lost(detail)))
            }
            Outage::Dropped(refusal) => {
                let detail = format!("the coordinator has given {} up: {refusal}", self.process.task);
                (detail.clone(), Some(Alarm::Dropped { detail }))
            }
        };
        self.end(why, Some(outage));
        if let Some(alarm) = alarm {
            self.alarms.raise(alarm);
        }
    }
}

/// Hands on what a stream carries, until it ends.
async fn follow(
    mut stream: tonic::Streaming<wire::Notice>,
    route: &Route,
    events: &mpsc::UnboundedSender<Event>,
    asked: impl Fn(wire::Survey),
) -> Failure {
    loop {
        let event = match stream.message().await {
            Ok(Some(notice)) => match notice.what {
                Some(wire::notice::What::Attached(attached)) => {
                    if attached.failover_ms > 0 {
                        let failover = Duration::from_millis(attached.failover_ms);
                        route.bear(failover);
                        // Without a driver the agent has ended, as is seen below.
                        let _ = events.send(Event::Failover(failover));
                    }
                    Event::WatchOpened
                }
                Some(wire::notice::What::Closing(_)) => Event::Noticed(Notice::Closing),
                Some(wire::notice::What::Loss(loss)) => match convert::loss(loss) {
                    Ok(loss) => Event::Noticed(Notice::Loss(Arc::new(loss))),
                    Err(status) => return Failure::Refused(convert::refusal(&status)),
                },
                Some(wire::notice::What::Survey(survey)) => {
                    asked(survey);
                    continue;
                }
                // A kind of notice that a later version of the service sends.
                None => continue,
            },
            Ok(None) => return Failure::Unreachable("the service ended the stream of losses".to_owned()),
            Err(status) => return failure(&status, route.sight()),
        };
        if events.send(event).is_err() {
            return Failure::Unreachable("the agent has ended".to_owned());
        }
    }
}

impl Outbox<Effect> for Link {
    type Attachment = ();

    fn attach(&mut self, (): ()) {}

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Register => self.register(),
            Effect::Beat => self.beat(),
            Effect::OpenWatch { since_epoch } => self.watch(since_epoch),
            Effect::Ready => {
                self.stage.send_replace(Stage::Ready);
            }
            Effect::Announce(loss) => self.alarms.raise(Alarm::Lost(loss)),
            Effect::Shutdown => self.shut_down(),
            Effect::Closed => self.end("the coordination service has ended".to_owned(), None),
            Effect::Left => self.end(format!("{} has left", self.process.task), None),
            Effect::Failed(outage) => self.failed(outage),
        }
    }
}
