//! The program under test as a process: started, read line by line, sent signals, waited for.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A test that waits longer has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// A launcher under test, its output read line by line in the background.
pub(crate) struct Run {
    pub(crate) child: Child,
    pub(crate) stdout: Receiver<String>,
    pub(crate) stderr: Receiver<String>,
}

/// The lines of a pipe, as they come; disconnected at its end.
pub(crate) fn lines(pipe: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Has processes that are started from here begin with their interrupts as the system has them, though this one was told to
/// ignore its own, as shells and nohup tell what they run in the background: what is caught is reset when a program begins, what is
/// ignored stays so.
fn pass_interrupts_on() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    for signal in [Signal::INT, Signal::QUIT, Signal::HUP] {
        if mask & 1 << (signal.as_raw() - 1) != 0 {
            // Nobody looks at the flag: here it stays ignored.
            signal_hook::flag::register(signal.as_raw(), Arc::default()).expect("the signal may be caught");
        }
    }
}

/// A program in an environment without settings that would change what is tested.
pub(crate) fn command(program: &str) -> Command {
    static ONCE: Once = Once::new();
    ONCE.call_once(pass_interrupts_on);
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RINGWAY_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The program under test.
pub(crate) fn ringway(arguments: &[&str]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_ringway"));
    command.args(arguments);
    command
}

/// `ringway run` of a shell script with options.
pub(crate) fn script(options: &[&str], script: &str) -> Run {
    let mut command = ringway(&["run"]);
    command.args(options).args(["--", "sh", "-c", script]);
    Run::start(command)
}

impl Run {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the program starts");
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Run { child, stdout, stderr }
    }

    /// The next line of standard output.
    pub(crate) fn line(&self) -> String {
        self.stdout.recv_timeout(LIMIT).expect("a line of output in time")
    }

    /// The next line of standard error.
    pub(crate) fn error_line(&self) -> String {
        self.stderr.recv_timeout(LIMIT).expect("a line of standard error in time")
    }

    /// The next `n` lines of standard output, sorted.
    pub(crate) fn sorted_lines(&self, n: usize) -> Vec<String> {
        let mut lines: Vec<String> = (0..n).map(|_| self.line()).collect();
        lines.sort();
        lines
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the launcher is there");
    }

    /// Waits for the end of both streams, hence of every process that holds them, and of the launcher.
    pub(crate) fn end(mut self) -> End {
        let rest = |from: &Receiver<String>| {
            let mut lines = Vec::new();
            loop {
                match from.recv_timeout(LIMIT) {
                    Ok(line) => lines.push(line),
                    Err(RecvTimeoutError::Disconnected) => return lines,
                    Err(RecvTimeoutError::Timeout) => {
                        panic!("a process still holds the output; so far {lines:?}")
                    }
                }
            }
        };
        let (stdout, stderr) = (rest(&self.stdout), rest(&self.stderr));
        End { status: self.child.wait().expect("it can be waited for"), stdout, stderr: stderr.join("\n") }
    }
}

/// A test that fails leaves nothing running: the launcher's end is that of its ranks.
impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a launcher ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<String>,
    pub(crate) stderr: String,
}

impl End {
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by itself: {self:?}"))
    }
}

/// The program of an example, built if this test was run alone.
pub(crate) fn example(name: &'static str) -> &'static str {
    static BUILT: Mutex<BTreeMap<&str, &str>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    built.entry(name).or_insert_with(|| {
        let beside = PathBuf::from(env!("CARGO_BIN_EXE_ringway")).with_file_name("examples").join(name);
        if !beside.exists() {
            let built = Command::new(env!("CARGO"))
                .args(["build", "--example", name])
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .status();
            assert!(built.expect("cargo runs").success());
        }
        beside.to_str().expect("a plain path").to_owned().leak()
    })
}

/// A folder of one test, removed with it.
pub(crate) struct Folder {
    path: std::path::PathBuf,
}

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path =
            std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder { path }
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.path.join(name)
    }

    /// Writes a file, and returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.path.join(name).to_str().expect("a plain path").to_owned();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The path of a file that may not be there yet.
    pub(crate) fn path_of(&self, name: &str) -> String {
        self.path.join(name).to_str().expect("a plain path").to_owned()
    }

    /// Makes a fifo, and returns its path.
    pub(crate) fn fifo(&self, name: &str) -> String {
        let path = self.path.join(name).to_str().expect("a plain path").to_owned();
        let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo is there");
        assert!(made.success());
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
