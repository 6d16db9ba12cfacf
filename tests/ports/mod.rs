//! Ports for servers that are told where to listen before they start, and so cannot ask for any port.
//!
//! One that the kernel gives out (port 0) and that is let go again may be an outgoing connection's before the server has it:
//! tests run beside each other and connect all the time. These are below the range that the kernel gives out by itself, and
//! no process gives one out twice.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// From the first to the one before the last.
const RANGE: std::ops::Range<u32> = 15_000..32_000;

/// Where this process looks next, from a place of its own on.
static NEXT: LazyLock<AtomicU32> =
    LazyLock::new(|| AtomicU32::new(RandomState::new().build_hasher().finish() as u32));

/// The first of so many ports in a row on which nobody listens, on any address of this host.
///
/// # Panics
/// If a thousand places were taken.
pub(crate) fn free_ports(count: u16) -> u16 {
    let length = RANGE.end - RANGE.start - u32::from(count);
    (0..1000)
        .find_map(|_| {
            let first = (RANGE.start + NEXT.fetch_add(u32::from(count), Ordering::Relaxed) % length) as u16;
            let all: std::io::Result<Vec<_>> =
                (first..first + count).map(|port| TcpListener::bind(("0.0.0.0", port))).collect();
            all.ok().map(|_| first)
        })
        .expect("some ports in a row are free")
}
