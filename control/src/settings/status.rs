//! Settings of what a process shows of itself: its status socket, its metrics, its flight records.

use std::ffi::OsStr;
use std::path::PathBuf;

use super::value::HostPort;
use super::{Problem, Values};

/// Folder of sockets of the users of a host who have no runtime directory, with the user's number behind.
const FALLBACK_DIR: &str = "/tmp/ringway-";

/// What a process shows of itself, and where.
#[derive(Clone, Debug)]
pub struct StatusSettings {
    /// `RINGWAY_STATUS_SOCKET`: whether there is a socket that answers with text.
    pub socket: bool,
    /// `RINGWAY_RUNTIME_DIR`, or the folder of this user: where the sockets are.
    pub runtime_dir: PathBuf,
    /// `RINGWAY_METRICS_BIND`; the port is that of this host's rank 0.
    pub metrics_bind: Option<HostPort>,
    /// `RINGWAY_DUMP_DIR`.
    pub dump_dir: Option<PathBuf>,
    /// `RINGWAY_DUMP_FILES`.
    pub dump_files: u32,
}

/// The system's variable for the folder of a user's sockets (XDG Base Directory Specification).
pub(super) const XDG_RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";

/// Where sockets go: what was set, or a folder of the user's own.
fn runtime_dir(given: Option<String>, xdg: Option<&OsStr>) -> PathBuf {
    match (given, xdg) {
        (Some(given), _) => PathBuf::from(given),
        // The specification has relative ones ignored.
        (None, Some(xdg)) if xdg.as_encoded_bytes().starts_with(b"/") => PathBuf::from(xdg).join("ringway"),
        _ => PathBuf::from(format!("{FALLBACK_DIR}{}", rustix::process::getuid().as_raw())),
    }
}

impl Values<'_> {
    pub(super) fn status_settings(&self, xdg: Option<&OsStr>) -> StatusSettings {
        StatusSettings {
            socket: self.switch("RINGWAY_STATUS_SOCKET"),
            runtime_dir: runtime_dir(self.text("RINGWAY_RUNTIME_DIR"), xdg),
            metrics_bind: self.address("RINGWAY_METRICS_BIND"),
            dump_dir: self.text("RINGWAY_DUMP_DIR").map(PathBuf::from),
            dump_files: self.count("RINGWAY_DUMP_FILES").unwrap_or_default(),
        }
    }
}

impl StatusSettings {
    /// Where the process that is number `offset` of those of its host on which ranks run has its metrics.
    ///
    /// # Errors
    /// When the port would be above 65535.
    pub fn metrics_at(&self, offset: u32) -> Result<Option<HostPort>, Problem> {
        let Some(bind) = &self.metrics_bind else { return Ok(None) };
        let port = u16::try_from(offset).ok().and_then(|offset| bind.port.checked_add(offset));
        port.map(|port| Some(HostPort { host: bind.host.clone(), port })).ok_or_else(|| Problem::Invalid {
            name: "RINGWAY_METRICS_BIND",
            given: bind.to_string(),
            allowed: format!("a port that leaves room for {offset} more above it"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn given(pairs: &[(&str, &str)]) -> StatusSettings {
        Settings::from_pairs(pairs.iter().copied()).unwrap().status
    }

    #[test]
    fn sockets_go_to_a_folder_of_the_users_own() {
        let dir = |pairs| given(pairs).runtime_dir.to_str().unwrap().to_owned();
        assert_eq!(dir(&[("XDG_RUNTIME_DIR", "/run/user/7")]), "/run/user/7/ringway");
        assert_eq!(dir(&[("XDG_RUNTIME_DIR", "/run/user/7"), ("RINGWAY_RUNTIME_DIR", "/x")]), "/x");
        assert!(dir(&[("XDG_RUNTIME_DIR", "here")]).starts_with(FALLBACK_DIR));
        assert!(dir(&[]).starts_with(FALLBACK_DIR));
    }

    #[test]
    fn each_rank_of_a_host_has_a_port_of_its_own() {
        let status = given(&[("RINGWAY_METRICS_BIND", "127.0.0.1:65530")]);
        assert_eq!(status.metrics_at(5).unwrap().unwrap().port, 65535);
        assert!(status.metrics_at(6).unwrap_err().to_string().contains("RINGWAY_METRICS_BIND"));
        assert!(given(&[]).metrics_at(3).unwrap().is_none());
    }
}
