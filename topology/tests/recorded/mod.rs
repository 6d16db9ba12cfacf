//! Recorded machines, written out as the files that they were read from.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use ringway_topology::Machine;
use ringway_topology::host::sysfs;
use ringway_topology::model::cpuset::CpuSet;
use ringway_topology::model::machine::Nic;
use ringway_topology::model::place::{Placement, Request, place};

/// A directory with the files of a recording; removed when dropped.
pub(crate) struct Recording {
    root: PathBuf,
}

impl Recording {
    /// Writes out `path: content` and `path -> target` lines.
    pub(crate) fn of(text: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("ringway-topology-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(&root).unwrap();
        let recording = Recording { root };
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            if let Some((path, target)) = line.split_once(" -> ") {
                let path = recording.parent_made(path);
                symlink(target, path).unwrap();
            } else {
                let (path, content) =
                    line.split_once(':').filter(|(_, rest)| rest.is_empty()).unwrap_or_else(|| {
                        line.split_once(": ").unwrap_or_else(|| panic!("not a line of a recording: {line}"))
                    });
                recording.write(path, content);
            }
        }
        recording
    }

    /// The recording of this name in tests/fixtures.
    pub(crate) fn named(name: &str) -> Self {
        Recording::of(&fixture(name))
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.parent_made(path);
        // Overwriting in place makes some file systems write to the disk at once, which is slow.
        if path.exists() {
            fs::remove_file(&path).unwrap();
        }
        fs::write(path, content).unwrap();
    }

    fn parent_made(&self, path: &str) -> PathBuf {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn machine(&self) -> Machine {
        sysfs::discover_at(&self.root).unwrap()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let removed = fs::remove_dir_all(&self.root);
        assert!(removed.is_ok() || std::thread::panicking(), "{}: {removed:?}", self.root.display());
    }
}

/// The path of a file in tests/fixtures.
pub(crate) fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The text of a file in tests/fixtures.
pub(crate) fn fixture(name: &str) -> String {
    fs::read_to_string(fixture_path(name)).unwrap()
}

/// A set in list notation.
pub(crate) fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// Places ranks without accelerators on the machine's allowed CPUs.
pub(crate) fn placed(machine: &Machine, local_ranks: u32) -> Vec<Placement> {
    place(machine, &Request::plain(machine, local_ranks)).unwrap()
}

/// The CPU lists of placements.
pub(crate) fn cpu_lists(placements: &[Placement]) -> Vec<String> {
    placements.iter().map(|placement| placement.cpus.to_string()).collect()
}

/// The interface of this name.
pub(crate) fn nic<'m>(machine: &'m Machine, name: &str) -> &'m Nic {
    machine.parts().nics.iter().find(|nic| nic.name == name).unwrap_or_else(|| panic!("no interface {name}"))
}
