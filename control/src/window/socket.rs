//! The status socket: a local stream that says how the process is to whoever connects, and closes. For people
//! (`nc -U FILE`) and for `ringway status`, which finds jobs by it. Beside that of a coordination service there is one that
//! speaks gRPC, so that `ringway status` needs none of the job's credentials on its own host.
//!
//! - **K1** The folder is this user's own and nobody else's (mode 0700), and so is the socket (mode 0600).
//! - **K2** The file goes with the process. What a process left that was killed is removed by `ringway run` that started it, and
//!   by the next process that listens: a file is taken for such when no process has the number in its name, and nobody answers
//!   there.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringway_dataplane::transport::limits::own_limit;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, test_kill_process};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::Page;

/// What the names of sockets that say text end with.
pub const SUFFIX: &str = ".sock";
/// What the names of sockets that speak gRPC end with.
pub const CALL_SUFFIX: &str = ".grpc";
/// One who connects is answered within this time, or not.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Pause after the system refused to hand out a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The folder belongs to somebody else, or others may enter it.
    #[error(
        "{path} is not this user's own folder: remove it, or set RINGWAY_RUNTIME_DIR to one that is, with mode 0700"
    )]
    Folder {
        /// The folder.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot listen at {path}: {}", advice(source))]
    System {
        /// The socket's file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What the system said, and what to do about it: another folder helps against no limit of this process.
fn advice(source: &io::Error) -> String {
    own_limit(source).unwrap_or_else(|| {
        format!(
            "{source}; set RINGWAY_RUNTIME_DIR to a folder with a short name that this user may write to, or \
             RINGWAY_STATUS_SOCKET=off"
        )
    })
}

/// A socket that listens; its file goes with it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

/// A socket's file, until it is dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Socket {
    /// Listens in a folder, which is made if it is missing, after removing what processes left that are gone (K2).
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn bind(dir: &Path, name: &str, suffix: &str) -> Result<Socket, SocketError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| SocketError::System { path, source }
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed(dir))?;
        let facts = std::fs::symlink_metadata(dir).map_err(failed(dir))?;
        let own = facts.is_dir()
            && facts.uid() == rustix::process::geteuid().as_raw()
            && facts.mode().trailing_zeros() >= 6;
        if !own {
            return Err(SocketError::Folder { path: dir.to_owned() });
        }
        sweep(dir);
        let path = dir.join(format!("{name}-{}{suffix}", std::process::id()));
        // Of an earlier process with this number, or of an earlier job of this one.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(failed(&path))?;
        let file = SocketFile(path);
        // Nobody else enters the folder meanwhile (K1).
        std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(0o600)).map_err(failed(&file.0))?;
        Ok(Socket { listener, file })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file.0
    }

    /// The listener, and what removes its file.
    #[must_use]
    pub fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }

    /// Answers one after the other, for ever.
    pub async fn serve(&self, heading: &str, page: &Page) {
        loop {
            match self.listener.accept().await {
                // One who does not read in time goes without.
                Ok((stream, _)) => drop(timeout(ANSWER_LIMIT, answer(stream, heading, page)).await),
                Err(error) => {
                    tracing::debug!(%error, "the status socket cannot take a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

async fn answer(mut stream: UnixStream, heading: &str, page: &Page) -> io::Result<()> {
    stream.write_all(heading.as_bytes()).await?;
    stream.write_all(page().await.as_bytes()).await?;
    stream.shutdown().await
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The sockets of a folder that say text, by name.
///
/// # Errors
/// When the folder cannot be read.
pub fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = all(dir)?;
    found.retain(|path| path.to_str().is_some_and(|path| path.ends_with(SUFFIX)));
    Ok(found)
}

/// All sockets of a folder, by name.
fn all(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if process_of(&path).is_some() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The process number in a socket's name.
fn process_of(path: &Path) -> Option<Pid> {
    let name = path.file_name()?.to_str()?;
    let (_, pid) = name.strip_suffix(SUFFIX).or_else(|| name.strip_suffix(CALL_SUFFIX))?.rsplit_once('-')?;
    Pid::from_raw(pid.parse().ok()?)
}

/// Removes the sockets of processes that are gone (K2). What cannot be looked at stays.
pub fn sweep(dir: &Path) {
    for path in all(dir).unwrap_or_default() {
        let gone = process_of(&path).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH));
        // In another container the number may be another's: then somebody answers.
        if gone && nobody_answers(&path) {
            // Another process may have been quicker.
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Whether a connection is refused. Nobody waits for a process that is there and takes none: its number was another's, and it may be
/// stopped.
fn nobody_answers(path: &Path) -> bool {
    let tried = || {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)
    };
    tried() == Err(Errno::CONNREFUSED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::sync::Arc;

    /// A folder of one test, removed with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("rw-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn another_folder_is_advised_where_it_helps() {
        let words =
            |errno: Errno| SocketError::System { path: "/x".into(), source: errno.into() }.to_string();
        let full = words(Errno::MFILE);
        assert!(full.contains("ulimit -n") && !full.contains("RINGWAY_RUNTIME_DIR"), "{full}");
        let denied = words(Errno::ACCESS);
        assert!(denied.contains("RINGWAY_RUNTIME_DIR") && !denied.contains("ulimit"), "{denied}");
    }

    #[test]
    fn who_connects_is_told_and_the_file_goes_with_the_socket() {
        let folder = Folder::new("told");
        let runtime = runtime();
        let within = runtime.enter();
        let socket = Socket::bind(&folder.0, "rank0", SUFFIX).unwrap();
        let path = socket.path().to_owned();
        // K1
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(&folder.0).unwrap().mode() & 0o777, 0o700);
        assert_eq!(list(&folder.0).unwrap(), std::slice::from_ref(&path));
        let serving = runtime.spawn(async move {
            let page: Page = Arc::new(|| Box::pin(async { "and well\n".to_owned() }));
            socket.serve("alive\n", &page).await;
        });
        for _ in 0..2 {
            let mut said = String::new();
            std::os::unix::net::UnixStream::connect(&path).unwrap().read_to_string(&mut said).unwrap();
            assert_eq!(said, "alive\nand well\n");
        }
        serving.abort();
        drop(within);
        assert!(runtime.block_on(serving).unwrap_err().is_cancelled());
        assert!(!path.exists(), "K2");
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        // K2
        let folder = Folder::new("left");
        std::fs::DirBuilder::new().mode(0o700).create(&folder.0).unwrap();
        // No process has the largest number that a process may have (PID_MAX_LIMIT is 2^22).
        let left = folder.0.join("rank1-4194305.sock");
        drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
        let elsewhere = folder.0.join("rank2-4194306.sock");
        let listens = std::os::unix::net::UnixListener::bind(&elsewhere).unwrap();
        let other = folder.0.join("notes.txt");
        std::fs::write(&other, "mine").unwrap();
        let runtime = runtime();
        let _within = runtime.enter();
        let socket = Socket::bind(&folder.0, "rank0", SUFFIX).unwrap();
        assert!(!left.exists() && elsewhere.exists() && other.exists() && socket.path().exists());
        drop(listens);
    }

    #[test]
    fn nobody_waits_for_a_process_elsewhere_that_takes_no_connections() {
        // K2
        let folder = Folder::new("full");
        std::fs::DirBuilder::new().mode(0o700).create(&folder.0).unwrap();
        let path = folder.0.join("rank1-4194305.sock");
        let address = SocketAddrUnix::new(&path).unwrap();
        let socket = |flags| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let listens = socket(SocketFlags::CLOEXEC);
        rustix::net::bind(&listens, &address).unwrap();
        rustix::net::listen(&listens, 1).unwrap();
        let mut waiting = Vec::new();
        loop {
            waiting.push(socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK));
            if connect(waiting.last().unwrap(), &address) == Err(Errno::AGAIN) {
                break;
            }
        }
        sweep(&folder.0);
        assert!(path.exists());
        drop(listens);
        sweep(&folder.0);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_that_others_may_enter_is_refused() {
        // K1
        let folder = Folder::new("open");
        std::fs::DirBuilder::new().create(&folder.0).unwrap();
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o755)).unwrap();
        let runtime = runtime();
        let _within = runtime.enter();
        let error = Socket::bind(&folder.0, "rank0", SUFFIX).unwrap_err();
        assert!(matches!(error, SocketError::Folder { .. }), "{error}");
    }
}
