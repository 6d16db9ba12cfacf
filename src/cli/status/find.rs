//! Finds the coordination service of a job on this host, by the first lines that status sockets say.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringway_control::rpc::client::status::Place;
use ringway_control::settings::Settings;
use ringway_control::window::{Heading, socket};

/// A process that does not say who it is within this time is stopped, or busy: others are asked.
const HEADING_LIMIT: Duration = Duration::from_millis(500);
/// All processes together are asked no longer.
const SEARCH_LIMIT: Duration = Duration::from_secs(5);

/// Why no job was found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    /// There is none.
    #[error(
        "no job of this user runs here{named} (no status socket answers in {dir}): one that was started with \
         RINGWAY_STATUS_SOCKET=off, or that runs elsewhere, is found with --coordinator HOST:PORT",
        dir = dir.display()
    )]
    None {
        /// Where sockets were looked for.
        dir: PathBuf,
        /// The job that was asked for, in words.
        named: String,
    },
    /// There are several.
    #[error("several jobs run here: {jobs}; say which, with --job ID")]
    Several {
        /// Their ids.
        jobs: String,
    },
    /// The folder cannot be read.
    #[error("cannot look for jobs in {dir}: {source}; give --coordinator HOST:PORT", dir = dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Where to ask the coordination service: as the settings say, or of the one job that runs on this host, or of the one whose
/// id begins with `job`. Several places where there are several candidates.
pub(super) fn coordinator(settings: &Settings, job: Option<&str>) -> Result<Vec<Place>, FindError> {
    if let (Some(first), None) = (&settings.coordinator, job) {
        let all = std::iter::once(first).chain(&settings.other_coordinators);
        return Ok(all.map(|address| Place::Address(address.to_string())).collect());
    }
    let dir = settings.status.runtime_dir.clone();
    let mut jobs = jobs(&dir)?;
    jobs.retain(|id, _| job.is_none_or(|job| id.starts_with(job)));
    if jobs.len() > 1 {
        return Err(FindError::Several { jobs: jobs.into_keys().collect::<Vec<_>>().join(", ") });
    }
    let named = job.map_or_else(String::new, |job| format!(" whose id begins with {job:?}"));
    jobs.into_values().next().ok_or(FindError::None { dir, named })
}

/// The jobs that answer here, each with where its coordination service is asked.
fn jobs(dir: &Path) -> Result<BTreeMap<String, Vec<Place>>, FindError> {
    let mut sockets = match socket::list(dir) {
        Ok(sockets) => sockets,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(source) => return Err(FindError::Folder { dir: dir.to_owned(), source }),
    };
    // Ranks may be stopped, which is what they are looked at for; whoever serves answers first.
    let is_rank =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"rank"));
    sockets.sort_by_key(is_rank);
    let (mut jobs, until) = (BTreeMap::<String, Vec<Place>>::new(), Instant::now() + SEARCH_LIMIT);
    for path in sockets {
        if is_rank(&path) && !jobs.is_empty() || Instant::now() >= until {
            break;
        }
        if let Some(heading) = heading(&path) {
            // Where the service runs here, this user needs none of the job's credentials.
            let calls = path.with_extension(&socket::CALL_SUFFIX[1..]);
            let places = jobs.entry(heading.job).or_default();
            if is_rank(&path) || !calls.exists() {
                places
                    .extend(heading.coordinator.split(',').map(|address| Place::Address(address.to_owned())));
            } else {
                places.push(Place::Socket(calls));
            }
        }
    }
    Ok(jobs)
}

/// The first line of a socket; `None` where nobody answers in time.
fn heading(path: &Path) -> Option<Heading> {
    let stream = UnixStream::connect(path).ok()?;
    stream.set_read_timeout(Some(HEADING_LIMIT)).ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    Heading::parse(&line)
}
