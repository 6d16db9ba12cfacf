//! Limits that control groups set: CPU time, CPUs, memory. Both versions, and both at once.
//!
//! A limit of any group on the way from the root to this process's own binds, so the smallest counts. Files as
//! in the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.

use std::io;
use std::path::{Path, PathBuf};

use super::files::Tree;
use super::{DiscoverError, files};
use crate::model::cpuset::CpuSet;

/// A list of mounts may be long on a machine with many containers; beyond this it is not read.
const MOUNTS_LIMIT_BYTES: u64 = 16 << 20;

/// Version 1 writes "no limit" as the largest multiple of a page; nobody means a limit above this.
const MEMORY_UNLIMITED_BYTES: u64 = 1 << 62;

/// What control groups leave to this process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// CPU time per time, in CPUs (1.5 is one and a half CPU); none for no limit.
    pub cpu_quota: Option<f64>,
    /// CPUs that may be used; none where no group says.
    pub cpuset: Option<CpuSet>,
    /// Memory; none for no limit.
    pub memory_bytes: Option<u64>,
}

/// The limits of this process.
///
/// # Errors
/// When a file of its groups is malformed or cannot be read. A machine without control groups has no limits.
pub fn limits() -> Result<Limits, DiscoverError> {
    limits_at(Path::new("/"))
}

/// The limits of the process that the files below `root` describe: `proc/self/cgroup`, `proc/self/mountinfo`
/// and the groups' own files at the mount points named there.
///
/// # Errors
/// As [`limits`].
pub fn limits_at(root: &Path) -> Result<Limits, DiscoverError> {
    let tree = Tree::new(root);
    let mut limits = Limits::default();
    for (version, dir) in directories(&tree)? {
        limits.read(&tree, version, &dir)?;
    }
    Ok(limits)
}

/// Where the files of this process's groups are, and of those around them, from the innermost outwards.
pub(super) fn directories(tree: &Tree) -> Result<Vec<(Version, PathBuf)>, DiscoverError> {
    let Some(groups) = tree.optional("proc/self/cgroup")? else { return Ok(Vec::new()) };
    let mounts_path = tree.path("proc/self/mountinfo");
    let mounts = match files::read_limited(&mounts_path, MOUNTS_LIMIT_BYTES) {
        Ok(text) => parse_mounts(&text),
        Err(DiscoverError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let groups = parse_groups(&groups)
        .ok_or_else(|| tree.malformed("proc/self/cgroup", "not lines of the form 0::/path"))?;
    let mut all = Vec::new();
    for group in &groups {
        for mount in mounts.iter().filter(|mount| mount.serves(group)) {
            all.extend(mount.directories(&group.path).into_iter().map(|dir| (mount.version, dir)));
        }
    }
    Ok(all)
}

impl Limits {
    /// Narrows the limits by those of one group. Called from the innermost outwards, so the first CPU set holds.
    fn read(&mut self, tree: &Tree, version: Version, dir: &Path) -> Result<(), DiscoverError> {
        let dir = dir.strip_prefix("/").unwrap_or(dir).to_string_lossy();
        let file = |name: &str| format!("{dir}/{name}");
        let malformed =
            |name: &str| tree.malformed(&file(name), "not a limit in the form that the kernel writes");
        let read = |name: &str| tree.optional(&file(name));
        let (quota, sets, memory) = match version {
            Version::V2 => (
                read("cpu.max")?.map(|text| parse_cpu_max(&text).ok_or_else(|| malformed("cpu.max"))),
                ["cpuset.cpus.effective", "cpuset.cpus"],
                "memory.max",
            ),
            Version::V1 => (
                read("cpu.cfs_quota_us")?.zip(read("cpu.cfs_period_us")?).map(|(quota, period)| {
                    parse_cfs(&quota, &period).ok_or_else(|| malformed("cpu.cfs_quota_us"))
                }),
                ["cpuset.effective_cpus", "cpuset.cpus"],
                "memory.limit_in_bytes",
            ),
        };
        self.cpu_quota = smaller(self.cpu_quota, quota.transpose()?.flatten(), f64::min);
        for name in sets {
            let set: Option<CpuSet> = tree.optional_parsed(&file(name))?;
            if let Some(set) = set.filter(|set| !set.is_empty() && self.cpuset.is_none()) {
                self.cpuset = Some(set);
            }
        }
        if let Some(text) = read(memory)? {
            let limit = parse_memory(&text).ok_or_else(|| malformed(memory))?;
            self.memory_bytes = smaller(self.memory_bytes, limit, u64::min);
        }
        Ok(())
    }
}

fn smaller<T>(a: Option<T>, b: Option<T>, min: impl Fn(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(min(a, b)),
        (a, b) => a.or(b),
    }
}

/// Of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V2,
}

/// A line of /proc/self/cgroup: where this process is in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    /// Empty in version 2.
    controllers: Vec<String>,
    path: String,
}

/// `4:memory:/path`, or `0::/path` in version 2. A path may hold colons.
fn parse_groups(text: &str) -> Option<Vec<Group>> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let mut fields = line.splitn(3, ':');
            fields.next()?.parse::<u32>().ok()?;
            let controllers = fields.next()?.split(',').filter(|name| !name.is_empty()).map(str::to_owned);
            let controllers = controllers.collect();
            let path = fields.next().filter(|path| path.starts_with('/'))?.to_owned();
            Some(Group { controllers, path })
        })
        .collect()
}

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The group that appears at the mount point.
    root: String,
    point: PathBuf,
    /// Version 1's controllers among the other mount options.
    options: Vec<String>,
}

impl Mount {
    fn serves(&self, group: &Group) -> bool {
        match self.version {
            Version::V2 => group.controllers.is_empty(),
            Version::V1 => {
                !group.controllers.is_empty()
                    && group.controllers.iter().all(|name| self.options.contains(name))
            }
        }
    }

    /// The directories of a group and of those around it, the innermost first. A group outside of what is
    /// mounted (a container that sees only its own part) is the mount point itself.
    fn directories(&self, group: &str) -> Vec<PathBuf> {
        let below = if self.root == "/" { Some(group) } else { group.strip_prefix(&self.root) };
        let below = below.unwrap_or_default().trim_start_matches('/');
        let escapes = below.split('/').any(|part| part == "..");
        let own = if escapes || below.is_empty() { self.point.clone() } else { self.point.join(below) };
        own.ancestors().take_while(|dir| dir.starts_with(&self.point)).map(Path::to_owned).collect()
    }
}

/// The control group lines of /proc/self/mountinfo (proc_pid_mountinfo(5)); other lines are passed over.
fn parse_mounts(text: &str) -> Vec<Mount> {
    text.lines()
        .filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let mut kind = kind.split(' ');
            let version = match kind.next()? {
                "cgroup" => Version::V1,
                "cgroup2" => Version::V2,
                _ => return None,
            };
            let options = kind.nth(1).unwrap_or_default().split(',').map(str::to_owned).collect();
            let mut mount = mount.split(' ').skip(3);
            let root = unescape(mount.next()?);
            let point = PathBuf::from(unescape(mount.next()?));
            Some(Mount { version, root, point, options })
        })
        .collect()
}

/// Undoes mountinfo's octal escapes of space, tab, newline and backslash.
fn unescape(text: &str) -> String {
    [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", r"\")]
        .iter()
        .fold(text.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

/// Version 2's `cpu.max`: `max 100000` or `150000 100000`, quota and period in microseconds. The outer none is
/// for malformed, the inner for no limit.
fn parse_cpu_max(text: &str) -> Option<Option<f64>> {
    let mut words = text.split_whitespace();
    let quota = words.next()?;
    let period: u64 = words.next().unwrap_or("100000").parse().ok()?;
    if quota == "max" { Some(None) } else { cpus(quota.parse().ok()?, period) }
}

/// Version 1's two files, in microseconds; a quota of -1 is no limit.
fn parse_cfs(quota: &str, period: &str) -> Option<Option<f64>> {
    let quota: i64 = quota.parse().ok()?;
    match u64::try_from(quota) {
        Ok(quota) => cpus(quota, period.parse().ok()?),
        Err(_) => (quota == -1).then_some(None),
    }
}

fn cpus(quota_us: u64, period_us: u64) -> Option<Option<f64>> {
    (quota_us > 0 && period_us > 0).then(|| Some(quota_us as f64 / period_us as f64))
}

/// A limit of memory in bytes. The outer none is for malformed, the inner for no limit.
pub(super) fn parse_memory(text: &str) -> Option<Option<u64>> {
    if text == "max" {
        return Some(None);
    }
    let limit: u64 = text.parse().ok()?;
    Some((limit < MEMORY_UNLIMITED_BYTES).then_some(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_and_memory_limits_are_read() {
        assert_eq!(parse_cpu_max("max 100000"), Some(None));
        assert_eq!(parse_cpu_max("150000 100000"), Some(Some(1.5)));
        assert_eq!(parse_cfs("-1", "100000"), Some(None));
        assert_eq!(parse_cfs("50000", "100000"), Some(Some(0.5)));
        assert_eq!(parse_memory("max"), Some(None));
        assert_eq!(parse_memory("9223372036854771712"), Some(None));
        assert_eq!(parse_memory("1073741824"), Some(Some(1 << 30)));
        for text in ["", "max max", "0 100000", "1000 0", "x 1", "-1 100000"] {
            assert_eq!(parse_cpu_max(text), None, "{text:?}");
        }
        assert_eq!(parse_cfs("-2", "100000"), None);
        assert_eq!(parse_cfs("100", "x"), None);
        assert_eq!(parse_memory("-1"), None);
    }

    #[test]
    fn groups_and_mounts_are_read() {
        let groups = parse_groups("4:memory:/a:b\n3:cpu,cpuacct:/\n0::/c\n").unwrap();
        assert_eq!(groups[0], Group { controllers: vec!["memory".into()], path: "/a:b".into() });
        assert_eq!(groups[1].controllers, ["cpu", "cpuacct"]);
        assert!(groups[2].controllers.is_empty());
        for text in ["x", "0:", "0::relative", ":cpu:/", "a::/"] {
            assert_eq!(parse_groups(text), None, "{text:?}");
        }
        let mounts = parse_mounts(
            "36 35 98:0 /mnt1 /mnt2 rw master:1 - ext3 /dev/root rw\n\
             32 31 0:29 / /sys/fs/cgroup/cpu\\040x rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
             nonsense\n",
        );
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0].point, Path::new("/sys/fs/cgroup/cpu x"));
        assert!(
            mounts[0].serves(&groups[1]) && !mounts[0].serves(&groups[0]) && !mounts[0].serves(&groups[2])
        );
    }

    #[test]
    fn a_group_is_found_below_what_is_mounted() {
        let mount = |root: &str| Mount {
            version: Version::V2,
            root: root.into(),
            point: "/sys/fs/cgroup".into(),
            options: Vec::new(),
        };
        let at = |dirs: &[&str]| dirs.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(
            mount("/").directories("/a/b"),
            at(&["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"])
        );
        assert_eq!(mount("/docker/x").directories("/docker/x"), at(&["/sys/fs/cgroup"]));
        assert_eq!(mount("/docker/x").directories("/elsewhere"), at(&["/sys/fs/cgroup"]));
        assert_eq!(
            mount("/").directories("/../../a"),
            at(&["/sys/fs/cgroup"]),
            "never above the mount point"
        );
    }
}
