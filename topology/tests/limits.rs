//! Control groups' limits are read from both versions; threads and memory are bound and read back.

mod recorded;

use recorded::{Recording, cpus};
use ringway_topology::host::cgroup::{Limits, limits, limits_at};
use ringway_topology::host::pin::{
    MemoryPolicy, PinError, allowed_cpus, memory_policy, page_nodes, parallelism, pin_current_thread,
    set_memory_policy,
};

const V2: &str = "\
proc/self/cgroup: 0::/job.slice/rank
proc/self/mountinfo: 35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
sys/fs/cgroup/job.slice/cpu.max: 350000 100000
sys/fs/cgroup/job.slice/memory.max: 1073741824
sys/fs/cgroup/job.slice/rank/cpu.max: max 100000
sys/fs/cgroup/job.slice/rank/memory.max: 8589934592
sys/fs/cgroup/job.slice/rank/cpuset.cpus.effective: 2-3
sys/fs/cgroup/job.slice/cpuset.cpus.effective: 0-7
";

#[test]
fn version_2_the_smallest_limit_on_the_way_up_counts() {
    let found = limits_at(Recording::of(V2).root()).unwrap();
    let expected = Limits { cpu_quota: Some(3.5), cpuset: Some(cpus("2-3")), memory_bytes: Some(1 << 30) };
    assert_eq!(found, expected);
}

#[test]
fn version_1_in_a_container_that_sees_only_its_own_part() {
    let recording = Recording::of(
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us: 150000\n\
         sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us: 100000\n\
         sys/fs/cgroup/memory/memory.limit_in_bytes: 9223372036854771712\n\
         sys/fs/cgroup/cpuset/cpuset.cpus: 1,4\n",
    );
    recording.write(
        "proc/self/cgroup",
        "5:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n3:cpuset:/docker/ab\n1:name=systemd:/\n",
    );
    recording.write(
        "proc/self/mountinfo",
        "40 30 0:33 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n\
         41 30 0:34 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
         42 30 0:35 /docker/ab /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n",
    );
    let found = limits_at(recording.root()).unwrap();
    assert_eq!(found, Limits { cpu_quota: Some(1.5), cpuset: Some(cpus("1,4")), memory_bytes: None });
}

#[test]
fn both_versions_at_once_and_neither() {
    let recording = Recording::of(V2);
    recording.write("proc/self/cgroup", "2:cpu:/a\n0::/job.slice/rank\n");
    recording.write(
        "proc/self/mountinfo",
        "1 0 0:1 / /v1/cpu rw - cgroup cgroup rw,cpu\n2 0 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    );
    recording.write("v1/cpu/a/cpu.cfs_quota_us", "50000");
    recording.write("v1/cpu/a/cpu.cfs_period_us", "100000");
    assert_eq!(limits_at(recording.root()).unwrap().cpu_quota, Some(0.5));
    let empty = Recording::of("");
    assert_eq!(limits_at(empty.root()).unwrap(), Limits::default());
}

#[test]
fn malformed_limits_are_errors_that_name_the_file() {
    for (path, content) in [
        ("sys/fs/cgroup/job.slice/cpu.max", "fast"),
        ("sys/fs/cgroup/job.slice/cpu.max", "0 100000"),
        ("sys/fs/cgroup/job.slice/rank/memory.max", "-1"),
        ("sys/fs/cgroup/job.slice/rank/cpuset.cpus.effective", "0-99999999"),
        ("proc/self/cgroup", "nonsense"),
    ] {
        let recording = Recording::of(V2);
        recording.write(path, content);
        let error = limits_at(recording.root()).unwrap_err().to_string();
        assert!(error.contains(path), "{error}");
    }
    let hostile = Recording::of(V2);
    hostile.write("proc/self/cgroup", "0::/../../../../etc");
    assert_eq!(limits_at(hostile.root()).unwrap(), Limits::default(), "never outside the mount");
}

#[test]
fn this_process_has_limits_and_cpus() {
    let allowed = allowed_cpus().unwrap();
    let found = parallelism().unwrap();
    assert_eq!(found.affinity as usize, allowed.len());
    assert!((1..=found.affinity).contains(&found.effective));
    limits().unwrap();
}

#[test]
fn a_pinned_thread_stays_where_it_is_put() {
    let before = allowed_cpus().unwrap();
    let one = before.last().unwrap();
    let only = cpus(&one.to_string());
    std::thread::spawn(move || {
        pin_current_thread(&only).unwrap();
        assert_eq!(allowed_cpus().unwrap(), only);
        assert_eq!(parallelism().unwrap().effective, 1);
    })
    .join()
    .unwrap();
    assert_eq!(allowed_cpus().unwrap(), before, "other threads are left alone");
}

#[test]
fn impossible_pins_are_refused() {
    assert!(matches!(pin_current_thread(&cpus("")), Err(PinError::Empty)));
    let before = allowed_cpus().unwrap();
    let error = pin_current_thread(&cpus("65535")).unwrap_err();
    assert!(matches!(error, PinError::Pin { .. }), "{error}");
    assert!(error.to_string().contains("65535"));
    std::thread::spawn(move || {
        let more = before.or(&cpus("65535"));
        let error = pin_current_thread(&more).unwrap_err().to_string();
        assert!(error.contains("may use only"), "{error}");
    })
    .join()
    .unwrap();
}

#[test]
fn memory_policies_are_read_back_or_refused_with_a_reason() {
    std::thread::spawn(|| {
        for policy in [MemoryPolicy::Prefer(0), MemoryPolicy::Bind(0), MemoryPolicy::Local] {
            match set_memory_policy(policy) {
                Ok(()) => assert_eq!(memory_policy().unwrap(), Some(policy)),
                // A kernel without NUMA or a container's filter of system calls.
                Err(error) => assert!(error.to_string().contains("set_mempolicy"), "{error}"),
            }
        }
        for node in [1023, 1024, u32::MAX] {
            assert!(
                matches!(set_memory_policy(MemoryPolicy::Bind(node)), Err(PinError::Memory { .. })),
                "{node}"
            );
        }
    })
    .join()
    .unwrap();
}

#[test]
fn memory_is_where_the_policy_puts_it() {
    let machine = ringway_topology::host::discover_quickly().unwrap();
    for node in machine.parts().nodes.iter().filter(|node| node.memory_bytes > 0).map(|node| node.index) {
        std::thread::spawn(move || {
            if let Err(error) = set_memory_policy(MemoryPolicy::Bind(node)) {
                // A container's filter of system calls.
                assert!(error.to_string().contains("set_mempolicy"), "{error}");
                return;
            }
            // Larger than what an allocator hands out of memory that it has already.
            let mut memory: Vec<u8> = Vec::with_capacity(64 << 20);
            memory.resize(8 << 20, 1);
            match page_nodes(&memory) {
                Ok(nodes) => {
                    assert!(nodes.len() >= 2048 && nodes.iter().all(|on| *on == Some(node)), "{nodes:?}")
                }
                Err(error) => assert!(error.to_string().contains("memory comes from"), "{error}"),
            }
        })
        .join()
        .unwrap();
    }
}
