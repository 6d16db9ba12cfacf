//! What the kernel and the limits of this process allow: io_uring, locked memory, shared memory, huge pages.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::report::{Section, Severity};
use super::{kernel_file, size};
use ringway_control::settings::{IoDriver, Settings};
use ringway_dataplane::uring::driver::probe_uring;

/// Below this, registered buffers of io_uring and RDMA soon meet the limit.
const GOOD_MEMLOCK_BYTES: u64 = 1 << 30;

/// The size that container engines give /dev/shm by default, too small for most that use it.
const SMALL_SHM_BYTES: u64 = 64 << 20;

/// Whether io_uring can be used, and if not, who forbids it.
pub(super) fn io_uring(settings: &Settings) -> Section {
    let mut section = Section::new("io_uring");
    let switch = kernel_file("/proc/sys/kernel/io_uring_disabled");
    let needed = settings.io_driver == IoDriver::Uring;
    match probe_uring() {
        Ok(how) => {
            section.fact("available", how);
            let used =
                if settings.io_driver == IoDriver::Epoll { "no: RINGWAY_IO_DRIVER=epoll" } else { "yes" };
            section.fact("used", used);
        }
        Err(error) => {
            section.fact("available", format!("no: {error}"));
            section.fact("used", "no: plain system calls and epoll instead");
            let (what, remedy) = refusal(&error, switch.as_deref());
            let severity = if needed { Severity::Problem } else { Severity::Advice };
            section.find(severity, what, remedy);
        }
    }
    section
}

/// Who refuses io_uring, and what to do.
fn refusal(error: &io::Error, switch: Option<&str>) -> (String, String) {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    let (what, remedy) = match (errno, switch) {
        (_, Some("2")) => (
            "the kernel's switch forbids io_uring to everybody (kernel.io_uring_disabled = 2)",
            "sysctl -w kernel.io_uring_disabled=0 as root",
        ),
        (_, Some("1")) => (
            "the kernel's switch allows io_uring only to a group and to root (kernel.io_uring_disabled = 1)",
            "join the group whose number is in kernel.io_uring_group, or sysctl -w kernel.io_uring_disabled=0 as root",
        ),
        (Some(Errno::NOSYS), None) => {
            ("this kernel has no io_uring, or a seccomp filter hides it", "use Linux 5.6 or newer")
        }
        (Some(Errno::NOSYS | Errno::PERM | Errno::ACCESS), _) => (
            "a seccomp filter forbids io_uring, as container engines do by default",
            "start the container with a profile that allows io_uring_setup, io_uring_enter and io_uring_register \
             (docker run --security-opt seccomp=PROFILE.json, or seccomp=unconfined to try)",
        ),
        (Some(Errno::NOMEM), _) => {
            ("io_uring may not lock enough memory", "raise the limit on locked memory (ulimit -l)")
        }
        _ => ("io_uring cannot be set up", "look for a security module or a file limit that refuses it"),
    };
    (what.to_owned(), remedy.to_owned())
}

/// Limits and kinds of memory.
pub(super) fn memory(settings: &Settings) -> Section {
    let mut section = Section::new("Memory");
    let lock = getrlimit(Resource::Memlock).current;
    section.fact("lockable", lock.map_or("unlimited".to_owned(), size));
    if let Some(limit) = lock.filter(|limit| *limit < GOOD_MEMLOCK_BYTES)
        && !rustix::process::geteuid().is_root()
    {
        section.advice(
            format!("only {} may be locked, so larger buffers cannot be registered with io_uring or RDMA", size(limit)),
            "ulimit -l unlimited (a line `* - memlock unlimited` in /etc/security/limits.conf, LimitMEMLOCK=infinity \
             of a systemd unit, --ulimit memlock=-1 of docker run)",
        );
    }
    let files = getrlimit(Resource::Nofile).current;
    section.fact("open files", files.map_or("unlimited".to_owned(), |files| files.to_string()));
    shared_memory(&mut section);
    huge_pages(&mut section, settings);
    section
}

fn shared_memory(section: &mut Section) {
    match rustix::fs::statvfs("/dev/shm") {
        Ok(shm) => {
            let (total, free) = (shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize);
            let note = "ringway puts nothing there; PyTorch's data loaders and MPI do";
            section.noted("/dev/shm", format!("{}, {} free", size(total), size(free)), note);
            if total <= SMALL_SHM_BYTES {
                section.advice(
                    format!("/dev/shm has only {}", size(total)),
                    "if other libraries run out of it: docker run --shm-size=8g, or an emptyDir with medium: Memory \
                     at /dev/shm in Kubernetes",
                );
            }
        }
        Err(error) => section.fact("/dev/shm", format!("not there: {error}")),
    }
}

fn huge_pages(section: &mut Section, settings: &Settings) {
    let told = kernel_file("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = told.as_deref().and_then(bracketed).unwrap_or("not told");
    section.fact("transparent huge pages", chosen);
    if chosen == "never" && settings.huge_pages {
        section.advice(
            "transparent huge pages are off, so first use of tensor memory is several times slower",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled as root, or RINGWAY_HUGE_PAGES=off to say \
             that it is meant so",
        );
    }
}

/// The word in brackets, as in `always [madvise] never`.
fn bracketed(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word_is_found() {
        assert_eq!(bracketed("always [madvise] never"), Some("madvise"));
        assert_eq!(bracketed("always"), None);
    }

    #[test]
    fn who_refuses_io_uring() {
        let said = |errno: Errno, switch| refusal(&io::Error::from(errno), switch).0;
        assert!(said(Errno::PERM, Some("2")).contains("io_uring_disabled = 2"));
        assert!(said(Errno::PERM, Some("1")).contains("only to a group"));
        assert!(said(Errno::PERM, Some("0")).contains("seccomp"));
        assert!(said(Errno::NOSYS, Some("0")).contains("seccomp"));
        assert!(said(Errno::NOSYS, None).contains("no io_uring"));
        assert!(said(Errno::NOMEM, Some("0")).contains("lock enough memory"));
    }
}
