//! The status service: tells what the coordinator knows, and asks the ranks when somebody asks.
//!
//! - **U1** Nothing happens while nobody asks: ranks are asked over the streams of notices that they have anyway.
//! - **U2** A survey ends at its deadline, or when its asker goes or stops reading, or when all have answered. There are at
//!   most [`SURVEYS_LIMIT`] at once, and what a rank says is held only until its asker has read what came before.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringway_proto::ringway::v1 as wire;
use ringway_proto::ringway::v1::look_response::What;
use ringway_proto::ringway::v1::status_server::{Status as StatusService, StatusServer};
use ringway_topology::{Incarnation, TaskId};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

use super::desk::{Desk, unexpected};
use crate::core::coordination::request::{Reply, Request as Ask};
use crate::core::status::{prometheus, text};
use crate::rpc::convert;
use crate::window::socket::{CALL_SUFFIX, Socket};
use crate::window::{Page, WindowConfig};

/// Surveys under way at once.
const SURVEYS_LIMIT: usize = 16;
/// Reports of a survey that wait for its asker to read them; past that, ranks wait.
const REPORTS_HELD: usize = 4;
/// An asker that takes no report for so long has stopped reading.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Calls that are open at once on one local connection.
const LOCAL_STREAMS_LIMIT: u32 = 16;
/// Tasks that each list of waits names.
const NAMES: usize = 16;
/// How long ranks have to answer, where the asker does not say.
const USUAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long ranks have to answer, at most.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The service.
#[derive(Clone)]
pub(super) struct StatusDesk {
    desk: Desk,
    incarnation: Incarnation,
    surveys: Arc<Surveys>,
}

/// The surveys under way: where their reports go.
#[derive(Default)]
struct Surveys {
    next: AtomicU64,
    open: Mutex<HashMap<u64, mpsc::Sender<wire::RankReport>>>,
}

/// A survey under way, until it is dropped.
struct Survey {
    number: u64,
    reports: mpsc::Receiver<wire::RankReport>,
    surveys: Arc<Surveys>,
}

impl Surveys {
    fn open(self: &Arc<Self>) -> Result<Survey, Status> {
        let (to, reports) = mpsc::channel(REPORTS_HELD);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= SURVEYS_LIMIT {
            let message = format!("{SURVEYS_LIMIT} others are asking the ranks, the limit: try again");
            return Err(Status::resource_exhausted(message));
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        open.insert(number, to);
        Ok(Survey { number, reports, surveys: self.clone() })
    }

    fn find(&self, number: u64) -> Option<mpsc::Sender<wire::RankReport>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }
}

impl Drop for Survey {
    fn drop(&mut self) {
        self.surveys.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

impl Survey {
    /// Hands on what comes until all have answered or the time is over, and then who has not.
    async fn hand_on(
        mut self,
        asked: Vec<TaskId>,
        until: Instant,
        to: mpsc::Sender<Result<wire::LookResponse, Status>>,
    ) {
        // The asker may have gone (U2).
        let read = |what| {
            let to = &to;
            async move { matches!(timeout(READ_LIMIT, to.send(Ok(said(what)))).await, Ok(Ok(()))) }
        };
        let mut silent: BTreeSet<TaskId> = asked.into_iter().collect();
        while !silent.is_empty() {
            let Ok(Some(report)) = timeout_at(until, self.reports.recv()).await else { break };
            // Whoever was not asked, or has answered, is not heard.
            let task = convert::named_task(report.task.as_ref());
            if task.is_ok_and(|task| silent.remove(&task)) && !read(What::Report(report)).await {
                return;
            }
        }
        let tasks = silent.iter().map(convert::task_name).collect();
        read(What::Silent(wire::Silent { tasks })).await;
    }
}

fn said(what: What) -> wire::LookResponse {
    wire::LookResponse { what: Some(what) }
}

impl StatusDesk {
    pub(super) fn new(desk: Desk, incarnation: Incarnation) -> Self {
        StatusDesk { desk, incarnation, surveys: Arc::default() }
    }

    async fn overview(&self) -> Result<wire::Overview, Status> {
        let reply = self.desk.ask(Ask::Overview { names: NAMES }).await;
        match reply.map_err(|refusal| convert::status(&refusal))? {
            Reply::Overview(overview) => {
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                Ok(convert::overview(&overview, self.incarnation, &host, std::process::id()))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// What the service's process shows of itself, made by `page` from what is known.
    fn page(&self, page: fn(&wire::Overview) -> String) -> Page {
        let desk = self.clone();
        Arc::new(move || {
            let desk = desk.clone();
            Box::pin(async move {
                match desk.overview().await {
                    Ok(overview) => page(&overview),
                    Err(status) => format!("# {}\n", status.message()),
                }
            })
        })
    }

    /// Serves programs of this user on this host, who show no more than that they may open the socket.
    pub(super) async fn serve_locally(self, window: WindowConfig) {
        let Some(dir) = &window.socket_dir else { return };
        let socket = match Socket::bind(dir, &window.name, CALL_SUFFIX) {
            Ok(socket) => socket,
            // The socket that says text has warned of the same.
            Err(error) => return tracing::debug!(%error, "no status socket for calls"),
        };
        let (listener, _file) = socket.into_parts();
        let served = tonic::transport::Server::builder()
            .max_concurrent_streams(LOCAL_STREAMS_LIMIT)
            .add_service(StatusServer::new(self))
            .serve_with_incoming(UnixListenerStream::new(listener));
        if let Err(error) = served.await {
            tracing::warn!(%error, "the status socket for calls ended");
        }
    }

    /// Text for the socket, and numbers for Prometheus.
    pub(super) fn pages(&self) -> (Page, Page) {
        (self.page(text::service), self.page(prometheus::service))
    }
}

#[tonic::async_trait]
impl StatusService for StatusDesk {
    type LookStream = Pin<Box<dyn Stream<Item = Result<wire::LookResponse, Status>> + Send>>;

    async fn look(&self, request: Request<wire::LookRequest>) -> Result<Response<Self::LookStream>, Status> {
        let wire::LookRequest { ranks, flight, timeout_ms } = request.into_inner();
        let patience = match timeout_ms {
            0 => USUAL_TIMEOUT,
            ms => Duration::from_millis(ms.into()).min(LONGEST_TIMEOUT),
        };
        let (to, responses) = mpsc::channel(REPORTS_HELD);
        // The channel has room for it.
        let _ = to.send(Ok(said(What::Overview(self.overview().await?)))).await;
        if ranks {
            // Open before anybody is asked, so that no answer comes too early.
            let survey = self.surveys.open()?;
            let until = Instant::now() + patience;
            let ask = Ask::Survey { survey: survey.number, flight };
            let asked = match self.desk.ask(ask).await.map_err(|refusal| convert::status(&refusal))? {
                Reply::Surveyed(tasks) => tasks,
                other => return Err(unexpected(&other)),
            };
            tokio::spawn(survey.hand_on(asked, until, to));
        }
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }

    async fn report(
        &self,
        request: Request<wire::ReportRequest>,
    ) -> Result<Response<wire::ReportResponse>, Status> {
        let wire::ReportRequest { survey, report } = request.into_inner();
        let report = report.ok_or_else(|| Status::invalid_argument("the report is empty"))?;
        convert::named_task(report.task.as_ref())?;
        let over = || Status::not_found(format!("nobody waits for survey {survey} any more"));
        let to = self.surveys.find(survey).ok_or_else(over)?;
        to.send(report).await.map_err(|_| over())?;
        Ok(Response::new(wire::ReportResponse {}))
    }
}
