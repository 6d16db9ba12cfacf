//! What can go wrong with a verb, and what to do about it.

use std::fmt;
use std::io;

/// A verb that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// There is no such device.
    #[error("no RDMA device is named {device:?}: {}", Known(.known))]
    NoSuchDevice {
        /// The name asked for.
        device: String,
        /// The devices that are there.
        known: Vec<String>,
    },
    /// The device file may not be opened by this process.
    #[error(
        "{path} of {device} may not be opened ({}): give this user read and write access to it, or in a container \
         pass it in with --device={path}", Words(*.errno)
    )]
    OpenDenied {
        /// The device.
        device: String,
        /// Its device file.
        path: String,
        /// EPERM or EACCES.
        errno: i32,
    },
    /// The kernel knows the device, and its device file is not here.
    #[error(
        "the kernel has the device {device}, but {path} is not here: in a container, pass it in with \
         --device={path}; on a host, `modprobe ib_uverbs` makes it"
    )]
    NoDeviceFile {
        /// The device.
        device: String,
        /// Where its device file belongs.
        path: String,
    },
    /// The kernel and this process have the device, and libibverbs has no driver for it.
    #[error(
        "libibverbs has no driver for {device}: install ibverbs-providers (Debian, Ubuntu), libibverbs (Fedora, RHEL) \
         or rdma-core (Arch), of one version with the library"
    )]
    NoDriver {
        /// The device.
        device: String,
    },
    /// Memory could not be pinned for the device.
    #[error(
        "{device} could not pin {len_bytes} bytes ({}) {}", Words(*.errno), MemlockAdvice(*.memlock_limit_bytes)
    )]
    PinRefused {
        /// The device.
        device: String,
        /// Bytes of the region.
        len_bytes: usize,
        /// ENOMEM, EPERM or EAGAIN.
        errno: i32,
        /// How much this process may lock; none where that is unlimited.
        memlock_limit_bytes: Option<u64>,
    },
    /// Any other call that failed.
    #[error("{call} on {device} failed: {}{}", Words(*.errno), advice(call, *.errno))]
    Call {
        /// The verb, and what it was to do where that says more.
        call: &'static str,
        /// The device, or the library where no device is concerned.
        device: String,
        /// What the verb gave as the reason.
        errno: i32,
    },
    /// The installed libibverbs is too old for this.
    #[error("this machine's libibverbs has no {symbol}: install rdma-core {since} or later for it")]
    NotInLibrary {
        /// The function that is missing.
        symbol: &'static str,
        /// The first version of rdma-core that has it.
        since: &'static str,
    },
    /// A value that no device could take.
    #[error("{call} on {device}: {reason}")]
    Argument {
        /// The verb.
        call: &'static str,
        /// The device.
        device: String,
        /// What is wrong with the value.
        reason: String,
    },
}

impl VerbsError {
    /// The system's error number, where a call gave one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            VerbsError::OpenDenied { errno, .. }
            | VerbsError::PinRefused { errno, .. }
            | VerbsError::Call { errno, .. } => Some(*errno),
            VerbsError::NoDeviceFile { .. } => Some(libc::ENOENT),
            _ => None,
        }
    }
}

/// Requests that were not accepted. Nothing is allocated for it: a full queue is part of a normal day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} accepted {accepted} requests and refused the next: {}{}", Words(*.errno), post_advice(*.errno))]
pub struct PostError {
    /// The verb.
    pub call: &'static str,
    /// How many of the requests, from the first on, the device has.
    pub accepted: usize,
    /// Why it refused the next one: ENOMEM for a full queue, EINVAL for what the queue pair cannot do now.
    pub errno: i32,
}

impl PostError {
    /// Whether the queue was full, so that the rest can be posted after some completions.
    pub fn is_full(&self) -> bool {
        // Providers disagree: most say ENOMEM, some EAGAIN or ENOSPC.
        matches!(self.errno, libc::ENOMEM | libc::EAGAIN | libc::ENOSPC)
    }
}

fn post_advice(errno: i32) -> &'static str {
    match errno {
        libc::ENOMEM | libc::EAGAIN | libc::ENOSPC => {
            " (the queue is full: poll completions before posting more)"
        }
        libc::EINVAL => {
            " (the queue pair is not connected, or the request has too many pieces or too many inline bytes)"
        }
        _ => "",
    }
}

fn advice(call: &str, errno: i32) -> String {
    let text = match errno {
        libc::ENOMEM => {
            let limit = memlock_limit_bytes();
            return format!(" {}", MemlockAdvice(limit));
        }
        libc::EPERM | libc::EACCES => {
            "; the process lacks a permission for it (in a container, CAP_NET_RAW or CAP_IPC_LOCK)"
        }
        libc::ENODEV | libc::EIO => "; the device is gone or was reset: `rdma link` and dmesg say more",
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
            "; the peer's address was not resolved: check that both GIDs are of one subnet and that the peer answers \
             ping on that interface"
        }
        libc::EINVAL if call.contains("ready to receive") => {
            "; check the path MTU, the GID index and that both sides use one type of GID"
        }
        libc::EFAULT => "; the memory is not mapped, or is read-only and was to be written",
        libc::EOPNOTSUPP | libc::ENOSYS => "; this device or its driver does not offer it",
        _ => "",
    };
    text.to_owned()
}

struct Known<'a>(&'a [String]);

impl fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("this machine has none (`rdma link` lists them)"),
            known => write!(f, "there are {}", known.join(", ")),
        }
    }
}

/// An error number in the system's words.
pub(super) struct Words(pub(super) i32);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("no reason was given"),
            errno => io::Error::from_raw_os_error(errno).fmt(f),
        }
    }
}

struct MemlockAdvice(Option<u64>);

impl fmt::Display for MemlockAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(
                f,
                "while this process may lock {bytes} bytes of memory: raise that (`ulimit -l unlimited`, \
                 LimitMEMLOCK=infinity for a service, --ulimit memlock=-1 for a container)"
            ),
            None => f.write_str(
                "though this process may lock any amount of memory: the machine or the device is out of it; free \
                 some, or use fewer and smaller buffers",
            ),
        }
    }
}

/// How much memory this process may lock, in bytes; none for any amount.
pub(super) fn memlock_limit_bytes() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// The reason that a call left in `errno`.
pub(super) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
