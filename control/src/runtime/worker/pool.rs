//! The threads that kernels run on: so many, and no more.
//!
//! A job that a job leaves for its own thread is run when that job returns, so that chains of jobs (a loop of function
//! calls) neither grow a stack nor wake anybody.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Most threads of one pool.
pub const THREADS_LIMIT: usize = 1024;

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// What a job left for its own thread; `None` on threads that are no pool's.
    static LEFT: RefCell<Option<VecDeque<Job>>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    closing: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is whole between any two of its statements.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        LEFT.set(Some(VecDeque::new()));
        loop {
            let mut queue = self.lock();
            let job = loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.closing {
                    return;
                }
                queue.idle += 1;
                queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            };
            drop(queue);
            run(job);
            while let Some(next) = LEFT.with_borrow_mut(|left| left.as_mut().and_then(VecDeque::pop_front)) {
                run(next);
            }
        }
    }
}

fn run(job: Job) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("a job of the executor panicked; its thread goes on");
    }
}

/// A bounded pool of threads. Dropping the last handle ends them once the queue is empty.
#[derive(Clone)]
pub struct Pool(Arc<Threads>);

struct Threads {
    shared: Arc<Shared>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pool")
    }
}

impl Pool {
    /// A pool of so many threads; 0 for as many as this process may use processors. At most [`THREADS_LIMIT`].
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new(threads: usize) -> io::Result<Pool> {
        let allowed = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads == 0 { allowed() } else { threads }.min(THREADS_LIMIT);
        let shared = Arc::<Shared>::default();
        let pool = Pool(Arc::new(Threads { shared: shared.clone(), handles: Mutex::default() }));
        for index in 0..threads {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("ringway-op-{index}"));
            let handle = thread.spawn(move || shared.work())?;
            pool.0.handles.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        }
        Ok(pool)
    }

    /// Has a job run on some thread of the pool.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.0.shared.lock();
        queue.jobs.push_back(Box::new(job));
        let wake = queue.idle > 0;
        drop(queue);
        if wake {
            self.0.shared.filled.notify_one();
        }
    }

    /// As [`Self::spawn`], but a job of a pool's thread leaves it to that thread, for when itself is over.
    pub fn spawn_next(&self, job: impl FnOnce() + Send + 'static) {
        let mut job: Option<Job> = Some(Box::new(job));
        LEFT.with_borrow_mut(|left| {
            if let Some(left) = left {
                left.extend(job.take());
            }
        });
        if let Some(job) = job {
            self.spawn(job);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.filled.notify_all();
        let handles = std::mem::take(&mut *self.handles.lock().unwrap_or_else(PoisonError::into_inner));
        for handle in handles {
            // The last handle may go in a job; that thread ends by itself. Jobs that panic are caught.
            if handle.thread().id() != std::thread::current().id() {
                let _ = handle.join();
            }
        }
    }
}
