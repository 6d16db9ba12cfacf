//! Flight records: read from files, written to files, and written as one trace.

use std::io;
use std::path::{Path, PathBuf};

use ringway_control::core::status::{FlightFile, RankReport, perfetto};
use ringway_control::rpc::MESSAGE_LIMIT_BYTES;
use ringway_control::runtime::report::{DumpError, Dumps, FILE_PREFIX};
use ringway_control::settings::{Settings, read_text};

/// The longest file that is read, in bytes: a record comes in one message, and JSON takes more room than that.
const RECORD_LIMIT_BYTES: u64 = 4 * MESSAGE_LIMIT_BYTES as u64;

/// Why flight records cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordsError {
    /// One cannot be written.
    #[error("{0}")]
    Dump(#[from] DumpError),
    /// The system refused.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is none of ours.
    #[error("{path} is no flight record: {why}; remove it from the folder", path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There are none.
    #[error("{dir} has no flight records ({FILE_PREFIX}*.json): give the folder of RINGWAY_DUMP_DIR", dir = dir.display())]
    None {
        /// The folder.
        dir: PathBuf,
    },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RecordsError {
    let path = path.to_owned();
    move |source| RecordsError::System { what, path, source }
}

/// The flight records of a folder, by rank.
pub(super) fn read(dir: &Path) -> Result<Vec<RankReport>, RecordsError> {
    let mut reports = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed("read", dir))? {
        let path = entry.map_err(failed("read", dir))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !name.starts_with(FILE_PREFIX) || !name.ends_with(".json") {
            continue;
        }
        let text = read_text(&path, RECORD_LIMIT_BYTES).map_err(failed("read", &path))?;
        let file = FlightFile::from_json(&text);
        reports.push(file.map_err(|why| RecordsError::Foreign { path, why })?.report);
    }
    if reports.is_empty() {
        return Err(RecordsError::None { dir: dir.to_owned() });
    }
    reports.sort_by_key(|report| (report.rank, report.epoch_unix_us, report.now_ns));
    Ok(reports)
}

/// Writes each rank's flight record to a file; returns where they are.
pub(super) fn write_files(
    reports: &[RankReport],
    dir: &Path,
    settings: &Settings,
) -> Result<Vec<PathBuf>, RecordsError> {
    let dumps = Dumps::new(dir.to_owned(), settings.status.dump_files, u32::MAX);
    reports.iter().map(|report| Ok(dumps.write(report.clone())?)).collect()
}

/// Writes the flight records as one trace.
pub(super) fn write_trace<'a>(reports: &[RankReport], to: &'a Path) -> Result<&'a Path, RecordsError> {
    std::fs::write(to, perfetto::trace(reports)).map_err(failed("write", to))?;
    Ok(to)
}
