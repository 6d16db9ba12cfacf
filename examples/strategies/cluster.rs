//! A cluster to train on: one that is there, or tasks of its own on this host.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ringway::session::{GraphBuilder, Options, Session};

#[path = "../../tests/ports/mod.rs"]
mod ports;

use ports::free_ports;

/// How long a task may take to answer after its start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The tasks of a cluster: by job, their addresses in order.
pub(crate) struct Cluster {
    addresses: BTreeMap<String, Vec<String>>,
    program: PathBuf,
    /// Tasks of our own.
    children: BTreeMap<(String, usize), Child>,
}

impl Cluster {
    /// One whose tasks run already, as `ringway serve` describes it: `{"JOB": ["HOST:PORT", …]}`.
    pub(crate) fn outside(description: &str) -> Result<Cluster, Box<dyn Error>> {
        let addresses = serde_json::from_str(description)?;
        Ok(Cluster { addresses, program: PathBuf::new(), children: BTreeMap::new() })
    }

    /// One task of `ringway serve` for each of so many tasks of each job, on this host, ended with this value.
    pub(crate) fn start(jobs: &[(&str, usize)]) -> Result<Cluster, Box<dyn Error>> {
        let program = program()?;
        let mut addresses = BTreeMap::new();
        for (job, count) in jobs {
            let here = (0..*count).map(|_| format!("127.0.0.1:{}", free_ports(1)));
            addresses.insert((*job).to_owned(), here.collect());
        }
        let mut cluster = Cluster { addresses, program, children: BTreeMap::new() };
        for (job, count) in jobs {
            (0..*count).try_for_each(|task| cluster.start_task(job, task))?;
        }
        Ok(cluster)
    }

    /// Starts a task of our own, and waits until it answers.
    pub(crate) fn start_task(&mut self, job: &str, task: usize) -> Result<(), Box<dyn Error>> {
        let description = serde_json::to_string(&self.addresses)?;
        let child = Command::new(&self.program)
            .args(["serve", "--cluster", &description, "--job", job, "--task", &task.to_string()])
            .spawn()?;
        self.children.insert((job.to_owned(), task), child);
        Ok(())
    }

    /// Waits until every task answers.
    pub(crate) fn wait(&self) -> Result<(), Box<dyn Error>> {
        let began = Instant::now();
        for target in self.addresses.keys().flat_map(|job| self.targets(job)) {
            while let Err(error) =
                Session::connect(&target, GraphBuilder::new().finish()?, Options::default())
            {
                if began.elapsed() > START_LIMIT {
                    return Err(format!("the cluster did not come up: {error}").into());
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// Ends a task of our own as a crash would.
    pub(crate) fn kill(&mut self, job: &str, task: usize) -> Result<(), Box<dyn Error>> {
        if let Some(mut child) = self.children.remove(&(job.to_owned(), task)) {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Where the masters of a job's tasks are.
    pub(crate) fn targets(&self, job: &str) -> Vec<String> {
        let addresses = self.addresses.get(job).into_iter().flatten();
        addresses.map(|address| format!("grpc://{address}")).collect()
    }

    /// How many tasks a job has.
    pub(crate) fn count(&self, job: &str) -> usize {
        self.addresses.get(job).map_or(0, Vec::len)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.children.values_mut() {
            // One that has ended already is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The `ringway` program that was built with this example.
fn program() -> Result<PathBuf, Box<dyn Error>> {
    let me = std::env::current_exe()?;
    let beside = me.parent().and_then(Path::parent).map(|folder| folder.join("ringway"));
    beside.filter(|program| program.exists()).ok_or_else(|| {
        "the ringway program is not beside the examples: run `cargo build` with the same profile first".into()
    })
}
