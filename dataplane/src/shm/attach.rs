//! Reading another process's memory by a system call, where the system permits it (cross-memory attach).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Who is at the other end of a unix socket, in this process's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    /// Its process, or 0 when it is in a process namespace that this one does not see into.
    pub(super) pid: u32,
    /// Its user.
    pub(super) uid: u32,
}

/// Asks the kernel who is at the other end.
pub(super) fn credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into a structure of that length.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Credentials { pid: u32::try_from(found.pid).unwrap_or(0), uid: found.uid })
}

/// Reads `into.len()` bytes at an address of a process.
///
/// # Errors
/// When the process is gone, does not permit it, or has no such memory.
pub(super) fn read(pid: u32, address: u64, into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        let left = &mut into[done..];
        let mine = libc::iovec { iov_base: left.as_mut_ptr().cast(), iov_len: left.len() };
        let at = address.wrapping_add(done as u64) as usize;
        let theirs = libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: left.len() };
        // SAFETY: the kernel writes into `left`, which is this function's alone, at most its length. Whatever the other
        // address is, the kernel checks it.
        let n = unsafe { libc::process_vm_readv(pid as libc::pid_t, &mine, 1, &theirs, 1, 0) };
        match usize::try_from(n) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Ok(n) => done += n,
            Err(_) => {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there_and_no_more() {
        let here: [u8; 5] = *b"hello";
        let mut into = [0; 5];
        match read(std::process::id(), here.as_ptr().addr() as u64, &mut into) {
            Ok(()) => assert_eq!(into, here),
            // A sandbox forbids the call altogether.
            Err(e) => assert!(matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)), "{e}"),
        }
        assert!(read(std::process::id(), 16, &mut into).is_err());
        assert!(read(u32::MAX >> 1, here.as_ptr().addr() as u64, &mut into).is_err());
    }

    #[test]
    fn the_kernel_says_who_is_there() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        let found = credentials(&a).unwrap();
        assert_eq!((found.pid, found.uid), (std::process::id(), rustix::process::geteuid().as_raw()));
    }
}
