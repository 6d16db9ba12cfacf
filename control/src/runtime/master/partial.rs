//! Runs in several parts, at their workers.

use std::sync::Arc;

use ringway_proto::tensorflow as tf;
use tokio::sync::Mutex;

use super::session::{Registered, Session};
use super::steps::{CleanUp, Fetched, Run, Share, StepOptions, step_id};
use crate::core::master::{MasterError, PartialRun, Signature};

/// Runs in parts that one session has under way.
pub(super) const PARTIAL_LIMIT: usize = 1024;

/// One of them. Its end has the workers forget its step.
pub(super) struct Partial {
    registered: Arc<Registered>,
    step: i64,
    progress: Mutex<(PartialRun, CleanUp)>,
}

impl Partial {
    /// Sets a run up. Its handle.
    pub(super) async fn set_up(session: &Arc<Session>, signature: Signature) -> Result<String, MasterError> {
        let needs = session.program().needs(&signature)?;
        let registered = session.prepare(&signature).await?;
        let step = step_id();
        let run = PartialRun::new(signature, needs);
        let clean_up = CleanUp::new(session, step, &registered);
        session.add_partial(Partial { registered, step, progress: Mutex::new((run, clean_up)) })
    }

    /// Runs the next part. Parts of one run wait for each other.
    pub(super) async fn next(
        session: &Arc<Session>,
        handle: &str,
        feeds: Vec<tf::NamedTensorProto>,
        fetches: &[String],
        options: &StepOptions,
    ) -> Result<(Fetched, bool), MasterError> {
        let partial = session.partial(handle)?;
        let mut progress = partial.progress.lock().await;
        let (run, clean_up) = &mut *progress;
        let names = feeds.iter().map(|feed| feed.name.as_str());
        let share = run.next(names, fetches.iter().map(String::as_str))?;
        let mut values = vec![None; partial.registered.plan.signature.feeds.len()];
        for (at, feed) in share.feeds.iter().zip(feeds) {
            values[*at] = feed.tensor;
        }
        let run = Run {
            session,
            registered: &partial.registered,
            step: partial.step,
            options,
            share: Share::Part { feeds: &share.feeds, fetches: &share.fetches, last: share.last },
        };
        let result = run.run(values, clean_up).await;
        if run.is_last() || result.is_err() {
            session.remove_partial(handle);
        }
        // By place so far; the caller wants them in the order in which it asked.
        let mut asked: Vec<usize> = share.fetches.clone();
        asked.sort_unstable();
        result.map(|mut fetched| {
            let order: Vec<usize> =
                share.fetches.iter().filter_map(|at| asked.iter().position(|known| known == at)).collect();
            let mut tensors: Vec<Option<tf::TensorProto>> = fetched.tensors.into_iter().map(Some).collect();
            fetched.tensors = order.into_iter().filter_map(|at| tensors[at].take()).collect();
            (fetched, share.last)
        })
    }
}
