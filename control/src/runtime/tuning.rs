//! What `ringway tune` has measured, as the process with number 0 tells it to all ranks of its group.

use crate::settings::{Settings, read_text};
use ringway_collectives::schedule::{TUNING_LIMIT_BYTES, Tuning, TuningError};

/// Why the file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum TuningFileError {
    /// It cannot be read.
    #[error("RINGWAY_TUNING_FILE={path}: {source}; rank 0 reads it")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It says what cannot be.
    #[error("RINGWAY_TUNING_FILE={path}: {source}")]
    Content {
        /// The file.
        path: String,
        /// Which line, and what is wrong with it.
        source: TuningError,
    },
}

/// What the process with this number tells the others: what is in the file that the settings name, if it is the first.
///
/// # Errors
/// [`TuningFileError`].
pub(super) fn told_by(number: u32, settings: &Settings) -> Result<Option<Tuning>, TuningFileError> {
    let Some(path) = settings.tuning_file.as_ref().filter(|_| number == 0) else { return Ok(None) };
    let text = read_text(path, TUNING_LIMIT_BYTES as u64)
        .map_err(|source| TuningFileError::Read { path: path.clone(), source })?;
    let tuning = text.parse().map_err(|source| TuningFileError::Content { path: path.clone(), source })?;
    Ok(Some(tuning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_reads_the_file_and_a_broken_one_is_told_by_its_line() {
        let path = std::env::temp_dir().join(format!("ringway-tuning-{}.txt", std::process::id()));
        let settings = Settings::from_pairs([("RINGWAY_TUNING_FILE", path.to_str().unwrap())]).unwrap();
        std::fs::write(&path, Tuning::default().to_string()).unwrap();
        assert_eq!(told_by(0, &settings).unwrap(), Some(Tuning::default()));
        assert_eq!(told_by(1, &settings).unwrap(), None);
        assert_eq!(told_by(0, &Settings::default()).unwrap(), None);
        std::fs::write(&path, "ringway-tuning 2\n\nbest nothing\n").unwrap();
        let told = told_by(0, &settings).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(told.contains(path.to_str().unwrap()) && told.contains("line 3"), "{told}");
        let told = told_by(0, &settings).unwrap_err().to_string();
        assert!(told.contains("rank 0 reads it"), "{told}");
    }
}
