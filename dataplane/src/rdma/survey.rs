//! What this host has to do RDMA with, read from the kernel's files below a root that a test can replace.
//!
//! Files as in the kernel's Documentation/ABI (stable/sysfs-class-infiniband). Nothing is loaded and no device is used;
//! its file is opened and closed, since only that tells whether a container's rules allow it.
#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::rdma::choice::{
    Device, DeviceFile, Gid, GidKind, LinkLayer, LockedMemory, Mtu, Port, PortState, Survey,
};
use crate::rdma::verbs::{Library, LoadError};

const CLASS: &str = "sys/class/infiniband";
const VERBS: &str = "sys/class/infiniband_verbs";
const NET: &str = "sys/class/net";
const FILES: &str = "dev/infiniband";

/// Entries of a port's tables that are looked at: the verbs' GID index has 8 bits.
const MAX_ENTRIES: u16 = 256;
/// No attribute of /sys is longer than a page.
const ATTRIBUTE_LIMIT_BYTES: u64 = 4096;

/// The devices could not be listed.
#[derive(Debug, thiserror::Error)]
#[error("RDMA devices cannot be listed ({}: {source}): check that /sys is mounted and readable", path.display())]
pub struct SurveyError {
    /// The folder.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

/// An address of a network interface, for the prefix lengths of GIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface.
    pub netdev: String,
    /// The address.
    pub ip: IpAddr,
    /// Its prefix length.
    pub prefix_len: u8,
}

/// Looks at this host.
///
/// # Errors
/// [`SurveyError`] when the devices cannot be listed. What is missing is no error: the survey says so.
pub fn this_host() -> Result<Survey, SurveyError> {
    // Without the prefix lengths, addresses count as routed ones.
    let addresses = if_addrs::get_if_addrs().unwrap_or_default();
    let addresses = addresses.into_iter().map(|a| {
        let prefix_len = match &a.addr {
            if_addrs::IfAddr::V4(v4) => v4.prefixlen,
            if_addrs::IfAddr::V6(v6) => v6.prefixlen,
        };
        InterfaceAddress { ip: a.ip(), netdev: a.name, prefix_len }
    });
    let mut survey = read(Path::new("/"), &addresses.collect::<Vec<_>>())?;
    if !survey.devices.is_empty() {
        ask_library(&mut survey);
    }
    Ok(survey)
}

/// Adds what the verbs library says. Where it cannot list devices, opening one will say why.
fn ask_library(survey: &mut Survey) {
    match Library::load() {
        Ok(library) => {
            if let Ok(known) = library.device_names() {
                survey.devices.iter_mut().for_each(|d| d.known_to_library = known.contains(&d.name));
            }
        }
        Err(error) => survey.library_missing = Some(why_missing(&error)),
    }
}

/// Without the advice, which the obstacle gives.
fn why_missing(error: &LoadError) -> String {
    match error {
        LoadError::NotFound { file, reason } => format!("{file} cannot be loaded ({reason})"),
        LoadError::Incomplete { file, symbol } => {
            format!("{file} has no {symbol}: it is not libibverbs, or older than rdma-core 22")
        }
    }
}

/// Looks at the host whose `sys`, `dev`, `proc` and `etc` are below `root`, with these addresses.
///
/// # Errors
/// As [`this_host`].
pub fn read(root: &Path, addresses: &[InterfaceAddress]) -> Result<Survey, SurveyError> {
    let tree = Tree { root, addresses };
    let names = tree.names(CLASS)?;
    let mut devices = Vec::new();
    for name in names.iter().flatten() {
        devices.push(tree.device(name)?);
    }
    Ok(Survey {
        kernel: names.is_some(),
        device_folder: root.join(FILES).is_dir(),
        devices,
        locked_memory: tree.locked_memory(),
        library_missing: None,
    })
}

struct Tree<'a> {
    root: &'a Path,
    addresses: &'a [InterfaceAddress],
}

impl Tree<'_> {
    /// The names in a folder, sorted, numbers by value; `None` when it is not there.
    fn names(&self, path: &str) -> Result<Option<Vec<String>>, SurveyError> {
        let path = self.root.join(path);
        let failed = |source| SurveyError { path: path.clone(), source };
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
        }
        names.sort_by_key(|name| (name.parse::<u32>().ok(), name.clone()));
        Ok(Some(names))
    }

    /// A small file without surrounding white space. Drivers refuse some attributes at some times: those are absent.
    fn text(&self, path: &str) -> Option<String> {
        let mut text = String::new();
        let file = File::open(self.root.join(path)).ok()?;
        file.take(ATTRIBUTE_LIMIT_BYTES).read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned())
    }

    fn device(&self, name: &str) -> Result<Device, SurveyError> {
        let dir = format!("{CLASS}/{name}");
        let link = fs::read_link(self.root.join(format!("{dir}/device"))).ok();
        let pci = link.and_then(|target| Some(target.file_name()?.to_string_lossy().into_owned()));
        let numa_node = self.text(&format!("{dir}/device/numa_node"));
        let guid = self.text(&format!("{dir}/node_guid")).unwrap_or_default().replace(':', "");
        let mut ports = Vec::new();
        for number in self.names(&format!("{dir}/ports"))?.unwrap_or_default() {
            if let Ok(number) = number.parse() {
                ports.push(self.port(&dir, number)?);
            }
        }
        Ok(Device {
            name: name.to_owned(),
            node_guid: u64::from_str_radix(&guid, 16).unwrap_or(0),
            // Firmware that does not know says -1.
            numa_node: numa_node.and_then(|text| text.parse().ok()),
            pci: pci.filter(|pci| pci.contains(':')),
            file: self.file(name)?,
            known_to_library: true,
            ports,
        })
    }

    /// Whether the file by which the device is opened can be.
    fn file(&self, device: &str) -> Result<DeviceFile, SurveyError> {
        let files = self.names(VERBS)?.unwrap_or_default();
        let of_device =
            |file: &&String| self.text(&format!("{VERBS}/{file}/ibdev")).as_deref() == Some(device);
        let Some(file) = files.iter().find(of_device) else {
            return Ok(DeviceFile::Missing { path: format!("/{FILES}/uverbs*") });
        };
        let (path, full) = (format!("/{FILES}/{file}"), self.root.join(FILES).join(file));
        Ok(match OpenOptions::new().read(true).write(true).open(&full) {
            Ok(_) => DeviceFile::Usable { path },
            Err(error) if error.kind() == io::ErrorKind::NotFound => DeviceFile::Missing { path },
            Err(error) => {
                let owner = fs::metadata(&full).map_or("an unknown owner".to_owned(), |meta| {
                    let user = self.entry_of("etc/passwd", meta.uid());
                    let group = self.entry_of("etc/group", meta.gid());
                    format!("user {user}, group {group}, mode {:04o}", meta.mode() & 0o7777)
                });
                let asker = self.entry_of("etc/passwd", rustix::process::geteuid().as_raw());
                DeviceFile::Denied { path, owner, asker: format!("user {asker}"), error: error.to_string() }
            }
        })
    }

    /// The name of a number in /etc/passwd or /etc/group, or the number.
    fn entry_of(&self, table: &str, id: u32) -> String {
        let table = fs::read_to_string(self.root.join(table)).unwrap_or_default();
        let entry = table.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
        });
        entry.unwrap_or_else(|| id.to_string())
    }

    fn port(&self, device: &str, number: u8) -> Result<Port, SurveyError> {
        let dir = format!("{device}/ports/{number}");
        let text = |file: &str| self.text(&format!("{dir}/{file}")).unwrap_or_default();
        let link_layer = match text("link_layer").as_str() {
            "InfiniBand" => LinkLayer::InfiniBand,
            _ => LinkLayer::Ethernet,
        };
        let gids = self.gids(&dir, link_layer);
        let interface_mtu = |gid: &Gid| {
            let netdev = gid.netdev.as_deref()?;
            Mtu::within_interface(self.text(&format!("{NET}/{netdev}/mtu"))?.parse().ok()?)
        };
        let ethernet = link_layer == LinkLayer::Ethernet;
        let pkeys = (0..MAX_ENTRIES).map_while(|index| {
            let text = self.text(&format!("{dir}/pkeys/{index}"))?;
            Some((index, hex(&text)))
        });
        let pkeys = pkeys.filter(|(_, key)| *key != 0).collect();
        Ok(Port {
            number,
            state: port_state(&text("state")),
            physical_state: text("phys_state").split_once(": ").unwrap_or_default().1.to_owned(),
            link_layer,
            rate_mbps: rate_mbps(&text("rate")).unwrap_or(0),
            lid: hex(&text("lid")),
            sm_lid: hex(&text("sm_lid")),
            active_mtu: gids.iter().find_map(interface_mtu).filter(|_| ethernet),
            gids,
            pkeys,
        })
    }

    /// The entries of a port's table that are in use.
    fn gids(&self, port: &str, link_layer: LinkLayer) -> Vec<Gid> {
        let gid = |index: u8| {
            let address: Ipv6Addr = self.text(&format!("{port}/gids/{index}"))?.parse().ok()?;
            if address.is_unspecified() {
                return None;
            }
            let kind = match (self.text(&format!("{port}/gid_attrs/types/{index}")).as_deref(), link_layer) {
                (_, LinkLayer::InfiniBand) => GidKind::InfiniBand,
                (Some("RoCE v2"), LinkLayer::Ethernet) => GidKind::RoceV2,
                // A kernel before 4.5 knows no types: its RoCE is version 1.
                (_, LinkLayer::Ethernet) => GidKind::RoceV1,
            };
            let netdev =
                self.text(&format!("{port}/gid_attrs/ndevs/{index}")).filter(|name| !name.is_empty());
            let netdev_here =
                netdev.as_ref().is_none_or(|name| self.root.join(format!("{NET}/{name}")).exists());
            let ip = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
            let known = |a: &&InterfaceAddress| a.ip == ip && netdev.as_ref().is_none_or(|n| *n == a.netdev);
            let prefix_len = self.addresses.iter().find(known).map(|a| a.prefix_len);
            Some(Gid { index, bytes: address.octets(), kind, netdev, netdev_here, prefix_len })
        };
        (0..=u8::MAX).filter_map(gid).collect()
    }

    /// The limit on locked memory, unless this process has the capability that lifts it (CAP_IPC_LOCK, in the first
    /// user namespace: that of a container without privilege does not count).
    fn locked_memory(&self) -> LockedMemory {
        const CAP_IPC_LOCK: u32 = 14;
        let status = self.text("proc/self/status").unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
        let map = self.text("proc/self/uid_map").unwrap_or_default();
        let first_namespace = map.split_whitespace().eq(["0", "0", "4294967295"]);
        if first_namespace && effective & (1 << CAP_IPC_LOCK) != 0 {
            return LockedMemory::Unlimited;
        }
        let limits = self.text("proc/self/limits").unwrap_or_default();
        let soft = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")).unwrap_or_default();
        let soft = soft.split_whitespace().next().and_then(|limit| limit.parse().ok());
        soft.map_or(LockedMemory::Unlimited, LockedMemory::Bytes)
    }
}

/// As in `4: ACTIVE`.
fn port_state(text: &str) -> PortState {
    match text.split(':').next() {
        Some("1") => PortState::Down,
        Some("2") => PortState::Init,
        Some("3") => PortState::Armed,
        Some("4") => PortState::Active,
        _ => PortState::Other,
    }
}

/// As in `2.5 Gb/sec (1X SDR)`.
fn rate_mbps(text: &str) -> Option<u32> {
    let (number, unit) = text.split_once(' ')?;
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let (whole, tenth): (u32, u32) = (whole.parse().ok()?, tenth.get(..1)?.parse().ok()?);
    unit.starts_with("Gb/sec").then(|| whole.saturating_mul(1000).saturating_add(tenth * 100))
}

/// As in `0x1f`; 0 for what is none.
fn hex(text: &str) -> u16 {
    u16::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read() {
        assert_eq!(rate_mbps("10 Gb/sec (1X FDR10)"), Some(10_000));
        assert_eq!(rate_mbps("2.5 Gb/sec (1X SDR)"), Some(2_500));
        assert_eq!(rate_mbps("fast"), None);
        assert_eq!(rate_mbps("9999999999 Gb/sec"), None);
        assert_eq!(port_state("4: ACTIVE"), PortState::Active);
        assert_eq!(port_state(""), PortState::Other);
        assert_eq!((hex("0x1f"), hex("0xffff"), hex("x")), (31, 0xffff, 0));
    }
}
