//! Registration is real: the kernel takes regions wherever the limit on locked memory has room for them, and reads and
//! writes go by its table.
#![forbid(unsafe_code)]

use crate::memory::pool::PAGE_BYTES;
use crate::memory::{HugePages, Pool, Region};
use crate::transport::RegisterError;
use crate::transport::conformance::Skip;
use crate::uring::driver::{BATCH, Batch, Io, Outcome, UringDriver};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::os::fd::AsFd;

/// Enough for the operations to be long ones, which go by the table, and little beside any usual limit.
const LEN: usize = 256 << 10;
/// Both regions, and the page of the driver's own trial.
const NEEDED: u64 = 2 * LEN as u64 + 4096;
/// The first kernel with tables of buffers that are filled later.
const TABLES_SINCE: (u32, u32) = (5, 19);
/// Tries to register while others of this user come and go.
const TRIES: u32 = 20;

/// The number after `name:` in the text of `/proc/PID/status`.
fn number(status: &str, name: &str, radix: u32) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    u64::from_str_radix(line.split_whitespace().next()?, radix).ok()
}

/// How many bytes this user may still have pinned, as far as the system tells; `None` where there is no limit: with
/// CAP_IPC_LOCK outside of user namespaces, as root has it, or by an unlimited RLIMIT_MEMLOCK. The kernel counts what all
/// processes of a user have pinned.
pub(super) fn room_bytes() -> Option<u64> {
    const CAP_IPC_LOCK: u32 = 14;
    let own = std::fs::read_to_string("/proc/self/status").expect("/proc is there");
    let users = std::fs::read_to_string("/proc/self/uid_map").expect("/proc is there");
    let outermost = users.split_whitespace().eq(["0", "0", "4294967295"]);
    if outermost && number(&own, "CapEff", 16).is_some_and(|caps| caps >> CAP_IPC_LOCK & 1 == 1) {
        return None;
    }
    let limit = getrlimit(Resource::Memlock).current?;
    let user = number(&own, "Uid", 10);
    let all = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let pinned = all
        .filter_map(|process| std::fs::read_to_string(process.path().join("status")).ok())
        .filter(|status| number(status, "Uid", 10) == user)
        .filter_map(|status| number(&status, "VmPin", 10));
    Some(limit.saturating_sub(pinned.sum::<u64>() << 10))
}

/// Major and minor version of the running kernel.
fn kernel() -> (u32, u32) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn one(driver: &mut UringDriver, op: Io<'_>) -> Outcome {
    let mut outcomes: [Outcome; BATCH] = [Err(Errno::IO); BATCH];
    let mut batch = Batch::new();
    batch.push(op);
    driver.run(&mut batch, &mut outcomes);
    outcomes[0]
}

/// A driver that has both regions registered, or why there is none.
fn registered(regions: [&Region; 2]) -> Result<UringDriver, Skip> {
    for tried in 0.. {
        let room = room_bytes();
        if room.is_some_and(|room| room < NEEDED) {
            return Err(Skip::new(format!("room for {NEEDED} more locked bytes (there is {room:?})")));
        }
        let mut driver = UringDriver::new().map_err(|e| Skip::new(format!("io_uring ({e})")))?;
        match regions.into_iter().try_for_each(|region| driver.register(region).map(drop)) {
            Ok(()) => return Ok(driver),
            // Others of this user, such as tests beside this one, may have taken the room and given it back.
            Err(_) if room.is_some() && tried < TRIES => std::thread::yield_now(),
            Err(e) if driver.registers() || kernel() >= TABLES_SINCE => {
                panic!("{room:?} bytes may be locked, and: {e}; {}", driver.describe())
            }
            Err(_) => return Err(Skip::new(format!("Linux {TABLES_SINCE:?} ({})", driver.describe()))),
        }
    }
    unreachable!("the loop ends after its tries")
}

#[test]
fn regions_are_read_and_written_by_the_kernels_table() {
    let pool = Pool::default();
    let (mut source, mut target) = (pool.region(LEN).unwrap(), pool.region(LEN).unwrap());
    let mut driver = match registered([&source, &target]) {
        Ok(driver) => driver,
        Err(skip) => return println!("{skip}"),
    };
    let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    let (from, to) = (source.id(), target.id());
    let bytes = source.bytes_mut(0..LEN).unwrap();
    bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
    let (mut sent, mut received) = (0, 0);
    while received < LEN {
        let (out, into) = (source.bytes(0..LEN).unwrap(), target.bytes_mut(0..LEN).unwrap());
        assert!(driver.find(Some(from), out).is_some() && driver.find(Some(to), into).is_some());
        if sent < LEN {
            let op = Io::Send { fd: a.as_fd(), head: &[], body: &out[sent..], region: Some(from) };
            sent += one(&mut driver, op).or_else(|e| if e == Errno::AGAIN { Ok(0) } else { Err(e) }).unwrap();
        }
        let op = Io::Recv { fd: b.as_fd(), into: &mut into[received..], region: Some(to) };
        received += one(&mut driver, op).unwrap();
    }
    assert_eq!(source.bytes(0..LEN).unwrap(), target.bytes(0..LEN).unwrap());
    driver.deregister(from);
    assert!(driver.find(Some(from), source.bytes(0..LEN).unwrap()).is_none());
    assert!(driver.find(Some(to), target.bytes(0..LEN).unwrap()).is_some());
}

#[test]
fn memory_that_is_unmapped_leaves_the_kernels_table() {
    // It keeps nothing: what is given back is unmapped.
    let pool = Pool::new(0, HugePages::Off);
    let (kept, other) = (pool.region(LEN).unwrap(), pool.region(LEN).unwrap());
    let mut driver = match registered([&kept, &other]) {
        Ok(driver) => driver,
        Err(skip) => return println!("{skip}"),
    };
    let gone = other.id();
    pool.recycle(other);
    driver.forget_unmapped();
    assert_eq!(driver.registered(), [kept.id()]);
    // More than the table holds, one after the other.
    for _ in 0..1100 {
        let region = pool.region(PAGE_BYTES).unwrap();
        match driver.register(&region) {
            Ok(_) => assert_eq!(driver.registered().len(), 2),
            // Others of this user may have taken the room.
            Err(RegisterError::Refused { .. }) if room_bytes().is_some() => {}
            Err(e) => panic!("{e}"),
        }
        assert_ne!(region.id(), gone);
        pool.recycle(region);
    }
}
