//! Which CPUs this process may use, how many threads are worth starting, and binding threads and memory.
//!
//! Nothing here needs libhwloc or a description of the machine: a rank that starts asks this first.

use std::io;

use super::DiscoverError;
use super::cgroup;
use crate::model::cpuset::{CPU_LIMIT, CpuSet};
use crate::model::machine::NODE_LIMIT;

const WORD_BITS: usize = libc::c_ulong::BITS as usize;
const NODE_WORDS: usize = NODE_LIMIT / WORD_BITS;

/// CPUs that the calling thread may run on: its affinity mask, which the kernel keeps within the cpuset.
///
/// # Errors
/// When the kernel refuses to tell.
pub fn allowed_cpus() -> Result<CpuSet, PinError> {
    // The kernel's own mask may be wider than ours; it says so with EINVAL, and a wider one is tried.
    let mut words = 1024 / WORD_BITS;
    loop {
        let mut mask = vec![0 as libc::c_ulong; words];
        let bytes = std::mem::size_of_val(mask.as_slice());
        // SAFETY: the kernel writes at most `bytes` bytes to `mask`, which is that long and owned by this frame;
        // any bit pattern is a valid mask. Pid 0 is the calling thread.
        let result = unsafe { libc::sched_getaffinity(0, bytes, mask.as_mut_ptr().cast()) };
        if result == 0 {
            return Ok(from_words(&mask));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) || words * WORD_BITS >= CPU_LIMIT as usize {
            return Err(PinError::ReadAffinity { source: error });
        }
        words *= 2;
    }
}

/// Numbers of the bits that are set, all below [`CPU_LIMIT`] by the length of the masks used here.
fn from_words(words: &[libc::c_ulong]) -> CpuSet {
    let bits =
        (0..words.len() * WORD_BITS).filter(|bit| words[bit / WORD_BITS] >> (bit % WORD_BITS) & 1 == 1);
    let mut set = CpuSet::new();
    for bit in bits {
        if set.insert(bit as u32).is_err() {
            break;
        }
    }
    set
}

/// How many threads can run at once, and what bounds them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parallelism {
    /// CPUs in the affinity mask.
    pub affinity: u32,
    /// CPU time that control groups allow, in CPUs; none for no limit.
    pub quota: Option<f64>,
    /// The smaller of the affinity and the quota rounded up; at least 1.
    pub effective: u32,
}

impl Parallelism {
    /// From the number of CPUs in the affinity mask and the quota in CPUs.
    #[must_use]
    pub fn new(affinity: u32, quota: Option<f64>) -> Self {
        // A float cast saturates, so an absurd quota is no limit.
        let whole = quota.map_or(u32::MAX, |quota| quota.ceil() as u32);
        Parallelism { affinity, quota, effective: affinity.min(whole).max(1) }
    }
}

/// How many threads of this process can run at once: a rank that spins beyond this takes time from others.
///
/// # Errors
/// When the affinity mask or a control group's file cannot be read.
pub fn parallelism() -> Result<Parallelism, DiscoverError> {
    let affinity = allowed_cpus()?.len() as u32;
    Ok(Parallelism::new(affinity, cgroup::limits()?.cpu_quota))
}

/// Binds the calling thread to `cpus` and reads the binding back.
///
/// # Errors
/// When the set is empty, the kernel refuses, or it binds the thread to less than asked (a cpuset of the
/// control group does that); in the last case the thread stays bound to what could be had.
pub fn pin_current_thread(cpus: &CpuSet) -> Result<(), PinError> {
    let Some(last) = cpus.last() else { return Err(PinError::Empty) };
    let mut mask = vec![0 as libc::c_ulong; last as usize / WORD_BITS + 1];
    for cpu in cpus.iter() {
        mask[cpu as usize / WORD_BITS] |= 1 << (cpu as usize % WORD_BITS);
    }
    let bytes = std::mem::size_of_val(mask.as_slice());
    // SAFETY: the kernel reads `bytes` bytes from `mask`, which is that long. Pid 0 is the calling thread.
    let result = unsafe { libc::sched_setaffinity(0, bytes, mask.as_ptr().cast()) };
    if result != 0 {
        return Err(PinError::Pin { wanted: cpus.clone(), source: io::Error::last_os_error() });
    }
    let got = allowed_cpus()?;
    if got == *cpus { Ok(()) } else { Err(PinError::Narrowed { wanted: cpus.clone(), got }) }
}

/// Where a thread's new memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// The node that the thread runs on, at the time of first touch.
    Local,
    /// This NUMA node; others when it is full.
    Prefer(u32),
    /// This NUMA node only; the process is killed when it is full.
    Bind(u32),
}

/// Sets the calling thread's memory policy, for memory that it touches from here on.
///
/// # Errors
/// When the kernel refuses: no NUMA in the kernel, no such node, or system calls filtered (a container's
/// default filter does that).
pub fn set_memory_policy(policy: MemoryPolicy) -> Result<(), PinError> {
    let (mode, node) = match policy {
        MemoryPolicy::Local => (libc::MPOL_DEFAULT, None),
        MemoryPolicy::Prefer(node) => (libc::MPOL_PREFERRED, Some(node)),
        MemoryPolicy::Bind(node) => (libc::MPOL_BIND, Some(node)),
    };
    let mut mask = [0 as libc::c_ulong; NODE_WORDS];
    if let Some(node) = node {
        let word = mask.get_mut(node as usize / WORD_BITS);
        let refused = || io::Error::from_raw_os_error(libc::EINVAL);
        *word.ok_or_else(|| PinError::Memory { policy, source: refused() })? |=
            1 << (node as usize % WORD_BITS);
    }
    let (pointer, bits) =
        if node.is_some() { (mask.as_ptr(), NODE_LIMIT as libc::c_ulong + 1) } else { (std::ptr::null(), 0) };
    // SAFETY: the kernel reads `bits - 1` bits from `pointer`, which is `mask` with NODE_LIMIT bits, or nothing
    // when the mask is null and `bits` is 0.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::c_long::from(mode), pointer, bits) };
    if result == 0 { Ok(()) } else { Err(PinError::Memory { policy, source: io::Error::last_os_error() }) }
}

/// The calling thread's memory policy, as the kernel has it; none for a policy that is not made here
/// (interleaved, or over several nodes).
///
/// # Errors
/// When the kernel refuses to tell.
pub fn memory_policy() -> Result<Option<MemoryPolicy>, PinError> {
    let mut mode: libc::c_int = 0;
    let mut mask = [0 as libc::c_ulong; NODE_WORDS];
    // SAFETY: the kernel writes one int to `mode` and at most NODE_LIMIT bits to `mask`, both owned by this
    // frame; address 0 with no flags asks for the thread's policy.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.as_mut_ptr(),
            NODE_LIMIT as libc::c_ulong + 1,
            std::ptr::null::<libc::c_void>(),
            0 as libc::c_ulong,
        )
    };
    if result != 0 {
        return Err(PinError::ReadMemory { source: io::Error::last_os_error() });
    }
    let nodes = from_words(&mask);
    let only = nodes.first().filter(|_| nodes.len() == 1);
    Ok(match (mode, only) {
        (libc::MPOL_DEFAULT | libc::MPOL_LOCAL, _) => Some(MemoryPolicy::Local),
        (libc::MPOL_PREFERRED, Some(node)) => Some(MemoryPolicy::Prefer(node)),
        (libc::MPOL_BIND, Some(node)) => Some(MemoryPolicy::Bind(node)),
        _ => None,
    })
}

/// The NUMA node that each page of `memory` is on, in order; none for a page that is not there yet, since nothing has
/// touched it.
///
/// # Errors
/// When the kernel refuses to tell.
pub fn page_nodes(memory: &[u8]) -> Result<Vec<Option<u32>>, PinError> {
    // SAFETY: sysconf reads no memory of this process.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).unwrap_or(4096);
    let begin = memory.as_ptr().addr() & !(page - 1);
    let end = memory.as_ptr().addr() + memory.len();
    let pages: Vec<usize> = (begin..end).step_by(page).collect();
    let mut nodes = vec![0 as libc::c_int; pages.len()];
    // SAFETY: the kernel reads `pages.len()` addresses, as wide as pointers, from `pages`, and writes as many ints to
    // `nodes`; both are that long and owned by this frame. With no list of nodes it moves nothing, and it looks at no
    // memory behind the addresses.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0 as libc::c_long,
            pages.len(),
            pages.as_ptr(),
            std::ptr::null::<libc::c_int>(),
            nodes.as_mut_ptr(),
            0 as libc::c_long,
        )
    };
    if result < 0 {
        return Err(PinError::ReadMemory { source: io::Error::last_os_error() });
    }
    // Below zero stands an error number: no such page yet.
    Ok(nodes.into_iter().map(|node| u32::try_from(node).ok()).collect())
}

/// A binding that cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The affinity mask cannot be read.
    #[error("the kernel does not tell this thread's CPUs: {source}")]
    ReadAffinity {
        /// What the kernel said.
        source: io::Error,
    },
    /// No CPU to pin to.
    #[error("a thread cannot be pinned to no CPU at all: name at least one")]
    Empty,
    /// The kernel refuses.
    #[error(
        "this thread cannot be pinned to CPUs {wanted}: {source}; name CPUs that are online and in the cpuset"
    )]
    Pin {
        /// CPUs asked for.
        wanted: CpuSet,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel gave less than asked.
    #[error(
        "this thread was to be pinned to CPUs {wanted} and may use only {got} of them: the control group's cpuset leaves the rest out"
    )]
    Narrowed {
        /// CPUs asked for.
        wanted: CpuSet,
        /// CPUs got.
        got: CpuSet,
    },
    /// The memory policy cannot be set.
    #[error(
        "memory policy {policy:?} is refused: {source}; check that the node exists and that the container's system call filter lets set_mempolicy pass"
    )]
    Memory {
        /// The policy asked for.
        policy: MemoryPolicy,
        /// What the kernel said.
        source: io::Error,
    },
    /// Neither the memory policy nor the place of pages can be read.
    #[error("the kernel does not tell where this thread's memory comes from: {source}")]
    ReadMemory {
        /// What the kernel said.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_affinity_and_quota_counts() {
        let effective = |affinity, quota| Parallelism::new(affinity, quota).effective;
        assert_eq!(effective(8, None), 8);
        assert_eq!(effective(8, Some(1.5)), 2);
        assert_eq!(effective(8, Some(2.0)), 2);
        assert_eq!(effective(2, Some(16.0)), 2);
        assert_eq!(effective(8, Some(0.01)), 1, "a thread always runs");
        assert_eq!(effective(8, Some(f64::INFINITY)), 8);
    }
}
