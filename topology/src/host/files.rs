//! Reading the small text files of /sys and /proc, below a root that a test can replace.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::DiscoverError;

/// No attribute of /sys is over a page of 64 KiB.
const ATTRIBUTE_LIMIT_BYTES: u64 = 64 << 10;

/// A file system tree that holds `sys` and `proc`.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(super) fn new(root: &Path) -> Self {
        Tree { root: root.to_owned() }
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The content without surrounding white space; an error when the file is missing.
    pub(super) fn required(&self, path: &str) -> Result<String, DiscoverError> {
        read_limited(&self.path(path), ATTRIBUTE_LIMIT_BYTES).map(|text| text.trim().to_owned())
    }

    /// The content without surrounding white space, or none when there is no such file.
    pub(super) fn optional(&self, path: &str) -> Result<Option<String>, DiscoverError> {
        match self.required(path) {
            Ok(text) => Ok(Some(text)),
            Err(DiscoverError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The content of a file that drivers may refuse to give (a link's speed while it is down), or none.
    pub(super) fn attribute(&self, path: &str) -> Option<String> {
        self.required(path).ok()
    }

    /// The content read as a value.
    pub(super) fn parsed<T: FromStr<Err: ToString>>(&self, path: &str) -> Result<T, DiscoverError> {
        let text = self.required(path)?;
        text.parse().map_err(|error: T::Err| self.malformed(path, &error.to_string()))
    }

    /// The content read as a value, or none when there is no such file.
    pub(super) fn optional_parsed<T: FromStr<Err: ToString>>(
        &self,
        path: &str,
    ) -> Result<Option<T>, DiscoverError> {
        let Some(text) = self.optional(path)? else { return Ok(None) };
        text.parse().map(Some).map_err(|error: T::Err| self.malformed(path, &error.to_string()))
    }

    pub(super) fn malformed(&self, path: &str, reason: &str) -> DiscoverError {
        DiscoverError::Malformed { path: self.path(path), reason: reason.to_owned() }
    }

    /// The names in a directory, sorted; none when there is no such directory.
    pub(super) fn names(&self, path: &str) -> Result<Vec<String>, DiscoverError> {
        let full = self.path(path);
        let failed = |source: io::Error| DiscoverError::File { path: full.clone(), source };
        let entries = match fs::read_dir(&full) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// What a symbolic link says, or none when it is none.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.path(path)).ok().map(|target| target.to_string_lossy().into_owned())
    }
}

/// A text file's content, read to its end or to the limit, whatever size the file claims.
pub(super) fn read_limited(path: &Path, limit_bytes: u64) -> Result<String, DiscoverError> {
    let failed = |source: io::Error| DiscoverError::File { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(limit_bytes + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit_bytes {
        return Err(DiscoverError::TooLarge { path: path.to_owned(), limit_bytes });
    }
    String::from_utf8(bytes)
        .map_err(|_| DiscoverError::Malformed { path: path.to_owned(), reason: "not UTF-8 text".into() })
}
