//! How much memory this process may still take: of the machine's, and of what its control groups leave it.
//!
//! Files as in the kernel's Documentation/filesystems/proc.rst (MemAvailable) and admin-guide/cgroup-v2.rst and
//! cgroup-v1/memory.rst.

use std::path::{Path, PathBuf};

use super::DiscoverError;
use super::cgroup::{Version, directories, parse_memory};
use super::files::Tree;

/// Bytes of a unit in /proc/meminfo.
const MEMINFO_UNIT_BYTES: u64 = 1024;

/// Where it is to be read. Made once; limits may change later, groups do not.
#[derive(Clone, Debug)]
pub struct Memory {
    tree: Tree,
    groups: Vec<Group>,
}

/// A group that may limit memory.
#[derive(Clone, Debug)]
struct Group {
    limit: String,
    used: String,
    /// Of what is used: counts by name, among them those of file caches, which the kernel gives up.
    stat: String,
    caches: [&'static str; 2],
}

impl Memory {
    /// Of this process.
    ///
    /// # Errors
    /// When a file of its groups is malformed or cannot be read.
    pub fn of_this_process() -> Result<Memory, DiscoverError> {
        Memory::of(Path::new("/"))
    }

    /// Of the process that the files below `root` describe, as those of [`cgroup::limits_at`](super::cgroup::limits_at),
    /// and `proc/meminfo`.
    ///
    /// # Errors
    /// As [`Memory::of_this_process`].
    pub fn of(root: &Path) -> Result<Memory, DiscoverError> {
        let tree = Tree::new(root);
        let mut groups = Vec::new();
        for (version, dir) in directories(&tree)? {
            let group = Group::new(version, &dir);
            if tree.optional(&group.limit)?.is_some() {
                groups.push(group);
            }
        }
        Ok(Memory { tree, groups })
    }

    /// Bytes that can be had now without swapping: the least of what the machine and each group have left.
    ///
    /// # Errors
    /// When a file is missing or malformed.
    pub fn available_bytes(&self) -> Result<u64, DiscoverError> {
        let mut available = self.machine()?;
        for group in &self.groups {
            if let Some(left) = group.left(&self.tree)? {
                available = available.min(left);
            }
        }
        Ok(available)
    }

    fn machine(&self) -> Result<u64, DiscoverError> {
        let text = self.tree.required("proc/meminfo")?;
        let kib = text.lines().find_map(|line| {
            line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        });
        let kib = kib.ok_or_else(|| self.tree.malformed("proc/meminfo", "it has no MemAvailable"))?;
        Ok(kib.saturating_mul(MEMINFO_UNIT_BYTES))
    }
}

impl Group {
    fn new(version: Version, dir: &Path) -> Group {
        let dir = PathBuf::from(dir.strip_prefix("/").unwrap_or(dir));
        let file = |name: &str| dir.join(name).to_string_lossy().into_owned();
        let (limit, used, caches) = match version {
            Version::V2 => ("memory.max", "memory.current", ["inactive_file", "active_file"]),
            Version::V1 => (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ["total_inactive_file", "total_active_file"],
            ),
        };
        Group { limit: file(limit), used: file(used), stat: file("memory.stat"), caches }
    }

    /// What it leaves; none where it has no limit.
    fn left(&self, tree: &Tree) -> Result<Option<u64>, DiscoverError> {
        let Some(limit) = tree.optional(&self.limit)? else { return Ok(None) };
        let limit = parse_memory(&limit).ok_or_else(|| tree.malformed(&self.limit, "no limit of memory"))?;
        let Some(limit) = limit else { return Ok(None) };
        let used: u64 = tree.parsed(&self.used)?;
        let stat = tree.optional(&self.stat)?.unwrap_or_default();
        let cached = stat.lines().filter_map(|line| line.split_once(' '));
        let cached = cached.filter(|(name, _)| self.caches.contains(name));
        let cached: u64 = cached.filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok()).sum();
        Ok(Some(limit.saturating_sub(used.saturating_sub(cached))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root with these files, removed when dropped.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Root {
            let root = std::env::temp_dir().join(format!("ringway-memory-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Root(root)
        }

        fn available(&self) -> Result<u64, DiscoverError> {
            Memory::of(&self.0)?.available_bytes()
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 900 kB\nMemAvailable:    500 kB\n");

    #[test]
    fn the_machine_alone() {
        assert_eq!(Root::new("alone", &[MEMINFO]).available().unwrap(), 500 << 10);
        assert!(Root::new("none", &[("proc/meminfo", "MemTotal: 9 kB\n")]).available().is_err());
        let real = Memory::of_this_process().unwrap().available_bytes().unwrap();
        assert!(real > 0);
    }

    #[test]
    fn the_tightest_group_counts_and_its_caches_do_not() {
        let mount = ("proc/self/mountinfo", "1 1 0:1 / /cg rw - cgroup2 cgroup rw\n");
        let files = [
            MEMINFO,
            mount,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("cg/a/b/memory.max", "max\n"),
            ("cg/a/memory.max", "300000\n"),
            ("cg/a/memory.current", "200000\n"),
            ("cg/a/memory.stat", "anon 1\ninactive_file 5000\nactive_file 45000\nfile 9\n"),
        ];
        assert_eq!(Root::new("two", &files).available().unwrap(), 150_000);
        let mount = ("proc/self/mountinfo", "1 1 0:1 / /cg rw - cgroup cgroup rw,memory\n");
        let files = [
            MEMINFO,
            mount,
            ("proc/self/cgroup", "4:memory:/a\n"),
            ("cg/a/memory.limit_in_bytes", "1000\n"),
            ("cg/a/memory.usage_in_bytes", "1200\n"),
            ("cg/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(Root::new("one", &files).available().unwrap(), 0);
    }
}
