//! The variables and the few facts of this process that launchers are recognised by.

use std::collections::BTreeMap;

use super::{LaunchError, Launcher};

/// A snapshot of environment variables.
#[derive(Clone, Debug, Default)]
pub struct Vars {
    map: BTreeMap<String, String>,
}

impl Vars {
    /// The environment of this process. A variable that is not UTF-8 is passed over: no launcher sets one.
    pub fn from_env() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// The value of `name`, without white space around it; `None` when it is unset or empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.map.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The value of `name` as a number.
    pub(super) fn number(&self, launcher: Launcher, name: &str) -> Result<Option<u32>, LaunchError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse().map_err(|_| malformed(launcher, name, text, "a whole number"))?;
        Ok(Some(number))
    }

    /// The value of `name` as a number; its absence is an error, since `present` shows that `launcher` is at work.
    pub(super) fn required(&self, launcher: Launcher, present: &str, name: &str) -> Result<u32, LaunchError> {
        self.number(launcher, name)?.ok_or_else(|| half_set(launcher, present, name))
    }
}

impl FromIterator<(String, String)> for Vars {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Vars { map: pairs.into_iter().collect() }
    }
}

/// A launcher that is set by half.
pub(super) fn half_set(launcher: Launcher, present: &str, missing: &str) -> LaunchError {
    let remedy = "start the program through the launcher itself, pass that variable on to the program, or set \
                  RINGWAY_RANK, RINGWAY_WORLD_SIZE and RINGWAY_COORDINATOR, which go before it";
    LaunchError::HalfSet {
        launcher,
        present: present.to_owned(),
        missing: missing.to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// A launcher's variable that holds something else than it should.
pub(super) fn malformed(launcher: Launcher, name: &str, given: &str, expected: &str) -> LaunchError {
    /// Characters of a wrong value that an error repeats.
    const SHOWN_CHARS: usize = 80;
    LaunchError::Malformed {
        launcher,
        name: name.to_owned(),
        given: given.chars().take(SHOWN_CHARS).collect(),
        expected: expected.to_owned(),
        remedy:
            "correct or unset it, or set RINGWAY_RANK, RINGWAY_WORLD_SIZE and RINGWAY_COORDINATOR, which go \
                 before it"
                .to_owned(),
    }
}

/// Facts of this process, outside of its variables, that all ranks which one launcher started on this host share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// This process's id.
    pub pid: u32,
    /// The process that started this one.
    pub parent_pid: u32,
    /// What the launcher's inherited control descriptor (`HYDI_CONTROL_FD`) refers to, such as `socket:[32515]`:
    /// MPICH's launcher leaves it open in every rank, also behind wrapper scripts.
    pub control_socket: Option<String>,
    /// This host's name.
    pub host: String,
}

impl Here {
    /// Looks at this process.
    pub fn find() -> Self {
        let control_socket = std::env::var("HYDI_CONTROL_FD")
            .ok()
            .filter(|fd| fd.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok())
            .map(|target| target.to_string_lossy().into_owned())
            .filter(|target| target.starts_with("socket:"));
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Here {
            pid: std::process::id(),
            parent_pid: std::os::unix::process::parent_id(),
            control_socket,
            host,
        }
    }
}
