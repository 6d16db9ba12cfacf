//! A host's files, recorded and then bent, laid into a folder for the survey to read.

use ringway_dataplane::rdma::choice::Survey;
use ringway_dataplane::rdma::survey::{self, InterfaceAddress};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the first device's port is.
pub(crate) const PORT0: &str = "sys/class/infiniband/rxe0/ports/1";
/// Where the second device's port is.
pub(crate) const PORT1: &str = "sys/class/infiniband/rxe1/ports/1";

/// The files of a host, by path.
#[derive(Clone)]
pub(crate) struct Host {
    files: BTreeMap<String, String>,
    folders: Vec<String>,
    addresses: Vec<InterfaceAddress>,
}

impl Host {
    /// The recorded guest: two soft-RoCE devices.
    pub(crate) fn soft_roce() -> Host {
        let mut host = Host { files: BTreeMap::new(), folders: Vec::new(), addresses: Vec::new() };
        host.apply(include_str!("soft_roce.txt"));
        host.address("sr0", "10.77.0.1", 32).address("sr1", "10.77.0.2", 32)
    }

    /// The guest after one end of its cable was set down.
    pub(crate) fn link_down() -> Host {
        let mut host = Host::soft_roce();
        host.apply(include_str!("link_down.txt"));
        host
    }

    /// The guest with an IPv6 address in place of the first device's IPv4 address.
    pub(crate) fn ipv6_only() -> Host {
        let mut host = Host::soft_roce();
        host.apply(include_str!("ipv6_only.txt"));
        host.address("sr0", "fd00:77::1", 64)
    }

    /// Its first device alone, on InfiniBand, as the kernel's documentation describes one: LID 7, manager 1.
    pub(crate) fn infiniband() -> Host {
        let gid = "fe80:0000:0000:0000:0002:c903:00a1:0007";
        let host = Host::soft_roce().without("sys/class/infiniband/rxe1").without(&format!("{PORT0}/gid"));
        host.with(&format!("{PORT0}/link_layer"), "InfiniBand")
            .with(&format!("{PORT0}/lid"), "0x7")
            .with(&format!("{PORT0}/sm_lid"), "0x1")
            .with(&format!("{PORT0}/gids/0"), gid)
            .with(&format!("{PORT0}/gid_attrs/types/0"), "IB/RoCE v1")
    }

    fn apply(&mut self, recorded: &str) {
        for line in recorded.lines().filter(|line| !line.starts_with('#')) {
            let (path, value) = line.split_once(" =").expect("path = content");
            match value.strip_prefix(' ') {
                Some(value) => drop(self.files.insert(path.to_owned(), value.to_owned())),
                None => drop(self.files.remove(path)),
            }
        }
    }

    /// With this file.
    pub(crate) fn with(mut self, path: &str, content: &str) -> Host {
        self.files.insert(path.to_owned(), content.to_owned());
        self
    }

    /// Without any file whose path begins so.
    pub(crate) fn without(mut self, prefix: &str) -> Host {
        self.files.retain(|path, _| !path.starts_with(prefix));
        self
    }

    /// With this folder, empty unless files are in it. As a device's file it is one that cannot be opened.
    pub(crate) fn folder(mut self, path: &str) -> Host {
        self.folders.push(path.to_owned());
        self
    }

    /// With a GID of this kind on the second device, besides what it has.
    pub(crate) fn gid(self, index: u8, kind: &str, gid: &str, netdev: &str) -> Host {
        self.with(&format!("{PORT1}/gids/{index}"), gid)
            .with(&format!("{PORT1}/gid_attrs/types/{index}"), kind)
            .with(&format!("{PORT1}/gid_attrs/ndevs/{index}"), netdev)
    }

    /// With this address on an interface.
    pub(crate) fn address(mut self, netdev: &str, ip: &str, prefix_len: u8) -> Host {
        let ip = ip.parse().expect("an address");
        self.addresses.push(InterfaceAddress { netdev: netdev.to_owned(), ip, prefix_len });
        self
    }

    /// What the survey finds there.
    pub(crate) fn survey(&self) -> Survey {
        let folder = Folder::new();
        for path in &self.folders {
            fs::create_dir_all(folder.0.join(path)).expect("a folder can be made");
        }
        for (path, content) in &self.files {
            let path = folder.0.join(path);
            fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder can be made");
            fs::write(path, format!("{content}\n")).expect("a file can be written");
        }
        survey::read(&folder.0, &self.addresses).expect("the files can be read")
    }
}

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ringway-host-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a new folder below the temporary one");
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
