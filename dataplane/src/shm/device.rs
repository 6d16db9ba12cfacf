//! This host's side: who this process is, where others reach it, and what is published of that.
//!
//! The socket's name is in the abstract space of the network namespace: it is in no file system, and it is gone with the
//! process. So two processes reach each other if they run under one kernel (boot id) in one network namespace; containers
//! with networks of their own do not, and say so from their addresses alone, on both sides alike. They must be the same
//! user's too, since each can read the other's memory.
#![forbid(unsafe_code)]

use super::segment::Bell;
use crate::memory::share_blocks;
use crate::transport::Address;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Connections that may wait to be accepted.
pub const BACKLOG: i32 = 1024;

const ADDRESS_MAGIC: [u8; 4] = *b"RWS1";

/// Where a process runs, as others must to reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Home {
    /// Identity of the host: its boot id, or 0 where that cannot be read.
    pub host: u128,
    /// The network namespace, by its number.
    pub network: u64,
    /// The namespace of users.
    pub users: u64,
    /// The namespace of processes.
    pub processes: u64,
    /// The user.
    pub uid: u32,
}

impl Home {
    /// This process's.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn here() -> io::Result<Home> {
        let namespace = |name: &str| {
            let path = format!("/proc/self/ns/{name}");
            let told = |e: io::Error| io::Error::new(e.kind(), format!("{path}: {e}"));
            Ok::<u64, io::Error>(std::fs::metadata(&path).map_err(told)?.ino())
        };
        Ok(Home {
            host: crate::uring::device::host_identity(),
            network: namespace("net")?,
            users: namespace("user")?,
            processes: namespace("pid")?,
            uid: rustix::process::geteuid().as_raw(),
        })
    }
}

/// What [`Address`] holds for this transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Published {
    /// What the process calls itself ([`Config::me`](super::Config::me)).
    pub(super) number: u32,
    pub(super) incarnation: u64,
    pub(super) home: Home,
    pub(super) pid: u32,
    /// Of its socket.
    pub(super) name: [u8; 16],
}

impl Published {
    pub(super) fn encode(&self) -> Address {
        let mut bytes = ADDRESS_MAGIC.to_vec();
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.incarnation.to_le_bytes());
        bytes.extend(self.home.host.to_le_bytes());
        bytes.extend(self.home.network.to_le_bytes());
        bytes.extend(self.home.users.to_le_bytes());
        bytes.extend(self.home.processes.to_le_bytes());
        bytes.extend(self.home.uid.to_le_bytes());
        bytes.extend(self.pid.to_le_bytes());
        bytes.extend(self.name);
        Address(bytes)
    }

    /// Decodes, or says what is wrong.
    pub(super) fn decode(address: &Address) -> Result<Published, String> {
        let mut bytes = address.0.as_slice();
        fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], String> {
            let (head, rest) = bytes.split_first_chunk::<N>().ok_or("it is cut short")?;
            *bytes = rest;
            Ok(*head)
        }
        if take(&mut bytes)? != ADDRESS_MAGIC {
            return Err("it does not begin with RWS1".into());
        }
        let published = Published {
            number: u32::from_le_bytes(take(&mut bytes)?),
            incarnation: u64::from_le_bytes(take(&mut bytes)?),
            home: Home {
                host: u128::from_le_bytes(take(&mut bytes)?),
                network: u64::from_le_bytes(take(&mut bytes)?),
                users: u64::from_le_bytes(take(&mut bytes)?),
                processes: u64::from_le_bytes(take(&mut bytes)?),
                uid: u32::from_le_bytes(take(&mut bytes)?),
            },
            pid: u32::from_le_bytes(take(&mut bytes)?),
            name: take(&mut bytes)?,
        };
        if bytes.is_empty() { Ok(published) } else { Err("it is too long".into()) }
    }
}

/// Whether the two reach each other.
///
/// # Errors
/// In words: why not. The same for both sides.
pub(super) fn route(ours: &Home, theirs: &Home) -> Result<(), &'static str> {
    if ours.host == 0 || theirs.host == 0 {
        return Err("a host's identity (its boot id) could not be read");
    }
    if ours.host != theirs.host {
        return Err("another host");
    }
    if ours.network != theirs.network {
        return Err("same host, but containers or namespaces with networks of their own");
    }
    if (ours.users, ours.uid) != (theirs.users, theirs.uid) {
        return Err("same host, but another user");
    }
    Ok(())
}

fn abstract_name(name: &[u8; 16]) -> io::Result<SocketAddrUnix> {
    let hex: String = name.iter().map(|b| format!("{b:02x}")).collect();
    Ok(SocketAddrUnix::new_abstract_name(format!("ringway-{hex}").as_bytes())?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A listening socket with a name that nobody guesses.
pub(super) fn listen_anywhere() -> io::Result<(OwnedFd, [u8; 16])> {
    let mut name = [0; 16];
    getrandom(&mut name, GetRandomFlags::empty())?;
    let socket = socket()?;
    bind(&socket, &abstract_name(&name)?)?;
    listen(&socket, BACKLOG)?;
    Ok((socket, name))
}

/// The next connection, or `None`.
pub(super) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// How an attempt to connect went.
pub(super) enum Connected {
    Yes(OwnedFd),
    /// The listener has too many to accept: try again.
    Busy,
}

/// Connects to a socket of this network namespace.
pub(super) fn dial(name: &[u8; 16]) -> io::Result<Connected> {
    let socket = socket()?;
    match connect(&socket, &abstract_name(name)?) {
        Ok(()) => Ok(Connected::Yes(socket)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Connected::Busy),
        Err(e) => Err(e.into()),
    }
}

/// What this process shows to each of its peers.
#[derive(Debug)]
pub(super) struct Shown {
    /// Rung by peers while this process sleeps.
    pub(super) doorbell: OwnedFd,
    /// Says whether it sleeps.
    pub(super) bell: Bell,
    pub(super) bell_file: OwnedFd,
    /// The blocks of its pools, to read, or why they are not shown.
    pub(super) blocks: Result<OwnedFd, String>,
    /// What peers try to read out of its memory.
    pub(super) probe: Box<u64>,
}

impl Shown {
    pub(super) fn new(blocks: bool) -> io::Result<Shown> {
        let (bell, bell_file) = Bell::new()?;
        let mut probe = [0; 8];
        getrandom(&mut probe, GetRandomFlags::empty())?;
        Ok(Shown {
            doorbell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            bell,
            bell_file,
            blocks: if blocks { readable_blocks() } else { Err("switched off".to_owned()) },
            probe: Box::new(u64::from_le_bytes(probe)),
        })
    }
}

/// The file of the pools' blocks, opened anew so that it can only be read.
fn readable_blocks() -> Result<OwnedFd, String> {
    let (file, _) = share_blocks().map_err(|e| e.to_string())?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|e| format!("{path}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_and_others_are_refused() {
        let home = Home::here().unwrap();
        let published = Published { number: 7, incarnation: 9, home, pid: 5, name: [3; 16] };
        let address = published.encode();
        assert_eq!(Published::decode(&address), Ok(published));
        for n in 0..address.0.len() {
            assert!(Published::decode(&Address(address.0[..n].to_vec())).is_err());
        }
        assert!(Published::decode(&Address([&address.0[..], &[0]].concat())).is_err());
    }

    #[test]
    fn who_is_out_of_reach_is_told_why_on_both_sides() {
        let here = Home { host: 1, network: 2, users: 3, processes: 4, uid: 5 };
        let others = [
            (Home { host: 2, ..here }, "another host"),
            (Home { host: 0, ..here }, "boot id"),
            (Home { network: 9, ..here }, "networks of their own"),
            (Home { uid: 0, ..here }, "another user"),
            (Home { users: 9, ..here }, "another user"),
        ];
        for (other, why) in others {
            assert!(route(&here, &other).unwrap_err().contains(why));
            assert_eq!(route(&here, &other), route(&other, &here));
        }
        assert_eq!(route(&here, &Home { processes: 9, ..here }), Ok(()));
    }

    #[test]
    fn a_name_is_dialled_while_its_process_listens() {
        let (listener, name) = listen_anywhere().unwrap();
        assert!(accept(&listener).unwrap().is_none());
        assert!(matches!(dial(&name), Ok(Connected::Yes(_))));
        assert!(accept(&listener).unwrap().is_some());
        drop(listener);
        assert!(dial(&name).is_err());
    }
}
