//! A store in one file of this machine, for a service that is started again when it has died.
//!
//! Changes are appended (`record`); when the file has grown to twice what it is worth, a new one with only what
//! counts is written beside it and takes its place. Where that fails, the old one goes on. One thread writes, so that the
//! service goes on while a disk is slow.
//!
//! - F1. Whoever is told that a change is remembered finds it after the process has died; with [`Sync::Every`], also after
//!   the machine has.
//! - F2. One process has the file at a time: a lock on `FILE.lock` says so, and goes with the process.
//! - F3. At every instant the file at the path is whole, but for a last record.
//! - F4. A write that failed ends the store: what it left behind is not known, so nothing is written after it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read as _, Seek, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::sync::{mpsc, oneshot};

use super::record::{MARK, Next, RECORD_LIMIT_BYTES, Reader, frame};
use super::{Claim, Entry, Lease, Store, StoreError, Term, Value, Write, latest, size};

/// A file below this size is never written anew.
const COMPACT_FROM_BYTES: u64 = 4 << 20;
/// Changes are put together into records of about this size.
const RECORD_BYTES: usize = 1 << 20;
/// The only candidate leads for as long as it lives.
const ENDLESS: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The only term.
const ONLY: Term = Term { revision: 1, lease: Lease(1) };

/// When what was written is made to reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Before anybody is told that it is remembered: it survives the machine's death.
    Every,
    /// When the system likes: it survives the process's death.
    System,
}

/// A state file that is open.
#[derive(Clone)]
pub struct FileStore {
    to: mpsc::Sender<Job>,
    /// Handed out once, to the term that begins with it.
    entries: Arc<Mutex<Option<Vec<Entry>>>>,
    path: Arc<PathBuf>,
}

/// Commits that wait for the thread; past that, whoever commits waits.
const JOBS_LIMIT: usize = 16;

struct Job {
    batches: Vec<Vec<Write>>,
    done: oneshot::Sender<Result<(), StoreError>>,
}

/// The file, and what it is worth.
struct Log {
    path: PathBuf,
    sync: Sync,
    file: File,
    /// Held for its lock.
    _lock: File,
    bytes: u64,
    /// Below this size it is not written anew.
    compact_from: u64,
    live: BTreeMap<String, Value>,
    live_bytes: u64,
}

impl FileStore {
    /// Opens a state file, or makes one.
    ///
    /// # Errors
    /// When it cannot be read or written, another process has it, it is none, or it is damaged. A last record that was not
    /// written whole is no damage: nobody was told that it is remembered.
    pub fn open(path: &Path, sync: Sync) -> Result<FileStore, StoreError> {
        let mut log = Log::open(path, sync)?;
        let entries = log.live.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let (to, mut jobs) = mpsc::channel::<Job>(JOBS_LIMIT);
        let write = move || {
            let mut broken = false;
            while let Some(Job { batches, done }) = jobs.blocking_recv() {
                let result = if broken { Err(StoreError::Closed) } else { log.append(batches) };
                broken |= result.is_err();
                // Whoever asked may have ended meanwhile.
                let _ = done.send(result);
            }
        };
        let thread = std::thread::Builder::new().name("ringway-state".to_owned()).spawn(write);
        thread.map_err(|source| StoreError::File {
            path: path.to_owned(),
            what: "start a thread for",
            source,
        })?;
        Ok(FileStore { to, entries: Arc::new(Mutex::new(Some(entries))), path: Arc::new(path.to_owned()) })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl std::fmt::Debug for FileStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Store for FileStore {
    async fn grant(&self) -> Result<(Lease, Duration), StoreError> {
        Ok((ONLY.lease, ENDLESS))
    }

    async fn renew(&self, _: Lease) -> Result<Option<Duration>, StoreError> {
        Ok(Some(ENDLESS))
    }

    async fn revoke(&self, _: Lease) -> Result<(), StoreError> {
        Ok(())
    }

    async fn claim(&self, _: Lease, _: &str) -> Result<Claim, StoreError> {
        Ok(Claim::Won { revision: ONLY.revision })
    }

    async fn changed(&self, _: i64) -> Result<(), StoreError> {
        std::future::pending().await
    }

    async fn load(&self) -> Result<Vec<Entry>, StoreError> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(StoreError::Closed)
    }

    async fn commit(&self, _: Term, batches: Vec<Vec<Write>>) -> Result<(), StoreError> {
        let (done, outcome) = oneshot::channel();
        self.to.send(Job { batches, done }).await.map_err(|_| StoreError::Closed)?;
        outcome.await.unwrap_or(Err(StoreError::Closed))
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Puts batches together into records, of which none is cut.
fn records(batches: Vec<Vec<Write>>) -> Vec<Vec<Write>> {
    let (mut all, mut open, mut bytes) = (Vec::new(), Vec::new(), 0);
    for batch in batches {
        let more: usize = batch.iter().map(size).sum();
        if !open.is_empty() && bytes + more > RECORD_BYTES {
            all.push(latest(std::mem::take(&mut open)));
            bytes = 0;
        }
        bytes += more;
        open.extend(batch);
    }
    all.push(latest(open));
    all
}

/// Makes what was renamed or made in the folder of `path` reach the disk.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// The state holds secrets of groups: it is for the service's own user.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options
}

impl Log {
    fn open(path: &Path, sync: Sync) -> Result<Log, StoreError> {
        let fault = |what| move |source| StoreError::File { path: path.to_owned(), what, source };
        let lock = private().open(beside(path, ".lock")).map_err(fault("lock"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StoreError::InUse { path: path.to_owned() }),
            Err(error) => return Err(fault("lock")(error.into())),
        }
        let mut file = private().open(path).map_err(fault("open"))?;
        let mut length = file.metadata().map_err(fault("open"))?.len();
        if length < MARK.len() as u64 {
            let mut begun = Vec::new();
            file.read_to_end(&mut begun).map_err(fault("read"))?;
            // Another kind of file is left as it is.
            if MARK.starts_with(&begun) {
                length = 0;
            }
        }
        if length == 0 {
            let made = file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&MARK));
            made.and_then(|()| file.sync_all()).map_err(fault("write"))?;
            sync_folder(path).map_err(fault("write"))?;
        }
        let length = if length == 0 { MARK.len() as u64 } else { length };
        file.seek(SeekFrom::Start(0)).map_err(fault("read"))?;
        let mut log = Log {
            path: path.to_owned(),
            sync,
            file: file.try_clone().map_err(fault("open"))?,
            _lock: lock,
            bytes: length,
            compact_from: COMPACT_FROM_BYTES,
            live: BTreeMap::new(),
            live_bytes: 0,
        };
        let reader = Reader::open(BufReader::new(file), length).map_err(fault("read"))?;
        let Some(mut reader) = reader else { return Err(StoreError::Foreign { path: path.to_owned() }) };
        loop {
            match reader.next().map_err(fault("read"))? {
                Next::Batch(writes) => writes.into_iter().for_each(|write| log.keep(write)),
                Next::End => break,
                Next::Torn { at } => {
                    tracing::warn!(
                        "the state file {} ends in a record that was not written whole, at byte {at} of {length}: it is \
                         cut off there",
                        path.display()
                    );
                    log.file.set_len(at).and_then(|()| log.file.sync_all()).map_err(fault("cut"))?;
                    log.bytes = at;
                    break;
                }
                Next::Damaged { at, why } => {
                    return Err(StoreError::Damaged { path: path.to_owned(), at, why });
                }
            }
        }
        if sync == Sync::Every {
            // F1: the last process may have died between writing and syncing, and what is read here is told.
            log.file.sync_data().map_err(fault("write"))?;
        }
        log.file.seek(SeekFrom::Start(log.bytes)).map_err(fault("read"))?;
        Ok(log)
    }

    fn fault(&self, what: &'static str) -> impl FnOnce(io::Error) -> StoreError + use<> {
        let path = self.path.clone();
        move |source| StoreError::File { path, what, source }
    }

    fn keep(&mut self, write: Write) {
        let worth = |key: &String, value: &Value| (key.len() + value.len()) as u64;
        let before = match write.value {
            Some(value) => {
                self.live_bytes += worth(&write.key, &value);
                self.live.insert(write.key.clone(), value)
            }
            None => self.live.remove(&write.key),
        };
        self.live_bytes -= before.map_or(0, |before| worth(&write.key, &before));
    }

    /// F1
    fn append(&mut self, batches: Vec<Vec<Write>>) -> Result<(), StoreError> {
        let (records, mut bytes) = (records(batches), Vec::new());
        for writes in &records {
            if !frame(writes, &mut bytes) {
                let largest = writes.iter().max_by_key(|write| size(write));
                return Err(StoreError::TooLarge {
                    key: largest.map_or_else(String::new, |write| write.key.clone()),
                    bytes: largest.map_or(0, size),
                    limit_bytes: RECORD_LIMIT_BYTES,
                });
            }
        }
        self.file.write_all(&bytes).map_err(self.fault("write"))?;
        if self.sync == Sync::Every {
            self.file.sync_data().map_err(self.fault("write"))?;
        }
        self.bytes += bytes.len() as u64;
        records.into_iter().flatten().for_each(|write| self.keep(write));
        if self.bytes > self.compact_from && self.bytes > 2 * self.live_bytes + COMPACT_FROM_BYTES {
            self.compact()?;
        }
        Ok(())
    }

    /// F3: only what counts, in a new file that takes the place of this one.
    fn compact(&mut self) -> Result<(), StoreError> {
        let new = beside(&self.path, ".new");
        let made = self.snapshot(&new).and_then(|made| std::fs::rename(&new, &self.path).map(|()| made));
        let (file, bytes) = match made {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!(
                    "the state file {} cannot be written anew ({error}) and goes on as it is, with {} bytes",
                    self.path.display(),
                    self.bytes
                );
                // It takes room, and the disk may be full; there may be none.
                let _ = std::fs::remove_file(&new);
                self.compact_from = self.bytes + COMPACT_FROM_BYTES;
                return Ok(());
            }
        };
        // Without it, what is written from now on would go with the new file.
        sync_folder(&self.path).map_err(self.fault("replace"))?;
        tracing::debug!("the state file {} went from {} to {bytes} bytes", self.path.display(), self.bytes);
        (self.file, self.bytes, self.compact_from) = (file, bytes, COMPACT_FROM_BYTES);
        Ok(())
    }

    fn snapshot(&self, new: &Path) -> io::Result<(File, u64)> {
        let mut file = private().truncate(true).open(new)?;
        let mut bytes = MARK.len() as u64;
        file.write_all(&MARK)?;
        let (mut record, mut writes, mut open) = (Vec::new(), Vec::new(), 0);
        let mut live = self.live.iter().peekable();
        while let Some((key, value)) = live.next() {
            open += key.len() + value.len();
            writes.push(Write { key: key.clone(), value: Some(value.clone()) });
            if open >= RECORD_BYTES || live.peek().is_none() {
                record.clear();
                if !frame(&writes, &mut record) {
                    return Err(io::Error::new(io::ErrorKind::FileTooLarge, "a value is over the limit"));
                }
                file.write_all(&record)?;
                bytes += record.len() as u64;
                (writes, open) = (Vec::new(), 0);
            }
        }
        file.sync_all()?;
        Ok((file, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, bytes: usize) -> Write {
        Write { key: key.to_owned(), value: Some(Value::new(vec![0; bytes])) }
    }

    /// What many callers wrote at once may be more than one record takes.
    #[test]
    fn batches_are_put_together_and_not_cut() {
        let cut = |batches| -> Vec<usize> { records(batches).iter().map(Vec::len).collect() };
        assert_eq!(cut(vec![vec![put("a", 1), put("b", 1)], vec![put("b", 2)], vec![put("c", 1)]]), [3]);
        let large = |key: &str| vec![put(key, RECORD_BYTES), put("same", 1)];
        assert_eq!(cut(vec![large("a"), large("b"), vec![], vec![put("c", 1)]]), [2, 2, 1]);
    }
}
