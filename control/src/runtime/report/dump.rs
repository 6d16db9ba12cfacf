//! Flight records as files: one for each death of a communicator, as many as the settings allow.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use ringway_proto::ringway::v1::RankReport;

use crate::core::status::FlightFile;

/// What the names of flight records begin with.
pub const FILE_PREFIX: &str = "ringway-flight-";
/// Flight records of one process of a job, at most.
pub const PROCESS_LIMIT: u32 = 16;
/// Longest part of a job's name in a file's name.
const JOB_CHARS: usize = 64;

/// Why there is no flight record.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// There are as many as may be.
    #[error("{dir} has {limit} of them, the limit: remove some, or raise RINGWAY_DUMP_FILES")]
    Full {
        /// The folder.
        dir: PathBuf,
        /// The limit.
        limit: u32,
    },
    /// The process has written as many as one may.
    #[error("this process has written {limit} of them, as many as one writes")]
    Enough {
        /// The limit.
        limit: u32,
    },
    /// The system refused.
    #[error(
        "cannot write {path}: {source}; set RINGWAY_DUMP_DIR to a folder with room that this user may write to"
    )]
    System {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A folder of flight records.
#[derive(Debug)]
pub struct Dumps {
    dir: PathBuf,
    limit: u32,
    own_limit: u32,
    written: AtomicU32,
}

impl Dumps {
    /// The records in `dir`, of which there may be `limit` of all processes, and `own_limit` that were written here.
    #[must_use]
    pub fn new(dir: PathBuf, limit: u32, own_limit: u32) -> Self {
        Dumps { dir, limit, own_limit, written: AtomicU32::new(0) }
    }

    /// Writes a record to a file of its own, which appears whole or not at all. Returns where it is.
    ///
    /// # Errors
    /// [`DumpError`].
    pub fn write(&self, report: RankReport) -> Result<PathBuf, DumpError> {
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        if number >= self.own_limit {
            return Err(DumpError::Enough { limit: self.own_limit });
        }
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| DumpError::System { path, source }
        };
        std::fs::create_dir_all(&self.dir).map_err(failed(&self.dir))?;
        let there = std::fs::read_dir(&self.dir).map_err(failed(&self.dir))?;
        let ours =
            there.flatten().filter(|e| e.file_name().as_encoded_bytes().starts_with(FILE_PREFIX.as_bytes()));
        if ours.count() >= self.limit as usize {
            return Err(DumpError::Full { dir: self.dir.clone(), limit: self.limit });
        }
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let job: String = report.job.chars().take(JOB_CHARS).map(plain).collect();
        let name = |n: u32| format!("{FILE_PREFIX}{job}-rank{}-{}-{n}.json", report.rank, report.pid);
        // Another process may have written some of this rank: `ringway status --dump` does.
        let free = (number..u32::MAX).find(|&n| !self.dir.join(name(n)).exists()).unwrap_or(u32::MAX);
        let name = name(free);
        let (path, part) = (self.dir.join(&name), self.dir.join(format!(".{name}.part")));
        let text = FlightFile::new(report).to_json();
        let written = std::fs::File::create(&part)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| std::fs::rename(&part, &path));
        if let Err(source) = written {
            // What was written of it is of no use.
            let _ = std::fs::remove_file(&part);
            return Err(failed(&path)(source));
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of one test, removed with it.
    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn folder(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("rw-dump-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }

    #[test]
    fn records_are_written_whole_and_no_more_than_may_be() {
        let folder = folder("limit");
        let dumps = Dumps::new(folder.0.clone(), 2, 9);
        let report = RankReport { rank: 3, job: "../a job".into(), ..Default::default() };
        let path = dumps.write(report.clone()).unwrap();
        assert_eq!(path.parent(), Some(folder.0.as_path()), "{path:?}");
        let read = FlightFile::from_json(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(read.report, report);
        dumps.write(report.clone()).unwrap();
        assert!(matches!(dumps.write(report), Err(DumpError::Full { limit: 2, .. })));
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2, "nothing is left half written");
    }

    #[test]
    fn the_record_of_another_process_is_not_overwritten() {
        let folder = folder("other");
        let write = || Dumps::new(folder.0.clone(), 9, 9).write(RankReport::default()).unwrap();
        assert_ne!(write(), write());
    }

    #[test]
    fn one_process_does_not_fill_a_disk() {
        let folder = folder("process");
        let dumps = Dumps::new(folder.0.clone(), 1000, PROCESS_LIMIT);
        let outcomes: Vec<bool> =
            (0..=PROCESS_LIMIT).map(|_| dumps.write(RankReport::default()).is_ok()).collect();
        assert_eq!(outcomes.iter().filter(|written| **written).count(), PROCESS_LIMIT as usize);
        assert!(matches!(dumps.write(RankReport::default()), Err(DumpError::Enough { .. })));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_said() {
        let dumps = Dumps::new(PathBuf::from("/proc/nothing/here"), 1, 1);
        let error = dumps.write(RankReport::default()).unwrap_err();
        assert!(error.to_string().contains("RINGWAY_DUMP_DIR"), "{error}");
    }
}
