//! Errors that are about a limit of this process or this host, and not about any peer.
#![forbid(unsafe_code)]

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::io;

/// The limit of this process or host that an error is about, and what raises it; `None` where it is about none.
pub fn own_limit(error: &io::Error) -> Option<String> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => {
            let limit = getrlimit(Resource::Nofile).current;
            let limit = limit.map_or_else(|| "its limit".to_owned(), |n| format!("its limit, {n}"));
            Some(format!("this process has as many files open as {limit}: raise it (ulimit -n)"))
        }
        Errno::NFILE => {
            Some("this host has as many files open as it may: raise fs.file-max (sysctl)".to_owned())
        }
        _ => None,
    }
}

/// An error, or the limit that it is about ([`own_limit`]).
pub fn in_words(error: &io::Error) -> String {
    own_limit(error).unwrap_or_else(|| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_named_and_other_errors_said_as_they_are() {
        let full = in_words(&Errno::MFILE.into());
        assert!(full.contains("its limit, ") && full.contains("ulimit -n"), "{full}");
        assert!(in_words(&Errno::NFILE.into()).contains("fs.file-max"));
        let refused = io::Error::from(Errno::CONNREFUSED);
        assert_eq!((own_limit(&refused), in_words(&refused)), (None, refused.to_string()));
    }
}
