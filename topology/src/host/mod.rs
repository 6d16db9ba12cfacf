//! How this machine is found out, what of it this process may use, and how threads and memory are bound to it.
//!
//! [`discover`] describes the machine in full: some milliseconds, once at start; [`discover_quickly`] does without
//! libhwloc. Who only needs to know how many CPUs there are to run on asks [`pin::parallelism`] or [`pin::allowed_cpus`], which cost microseconds.
//!
//! CPUs, caches and memory come from libhwloc (feature `hwloc`, on by default), or from sysfs when the program
//! is built without it or libhwloc fails; [`Source`](crate::model::machine::Source) in the result says which.
//! Devices come from sysfs in both cases: hwloc leaves out virtual interfaces and the state of links, and takes
//! 10 ms for the rest.

use std::io;
use std::path::{Path, PathBuf};

use crate::model::cpuset::{CpuSet, CpuSetError};
use crate::model::ids::{HostId, IdError};
use crate::model::machine::{Machine, MachineError, Parts};

pub mod cgroup;
mod devices;
mod files;
#[cfg(feature = "hwloc")]
mod hwloc;
mod hwloc_xml;
pub mod memory;
#[allow(unsafe_code, reason = "affinity and memory policy are system calls")]
pub mod pin;
pub mod sysfs;
mod xml;

use files::Tree;

/// Largest XML description accepted, in bytes. A machine of 1,024 CPUs takes about 2 MiB.
pub const XML_LIMIT_BYTES: u64 = 16 << 20;

/// Describes this machine, as far as this process may use it.
///
/// # Errors
/// When neither libhwloc nor sysfs gives a complete description, or the affinity mask cannot be read. A failure
/// of libhwloc that sysfs makes good is logged as a warning, and the machine's source says `Sysfs`.
pub fn discover() -> Result<Machine, DiscoverError> {
    let tree = Tree::new(Path::new("/"));
    let parts = cpu_side(&tree)?;
    let allowed = pin::allowed_cpus()?;
    finish(&tree, parts, Some(&allowed))
}

/// Describes this machine as [`discover`] does, from the kernel's files alone: a small part of its time.
///
/// # Errors
/// When a file is missing or malformed, or the affinity mask cannot be read.
pub fn discover_quickly() -> Result<Machine, DiscoverError> {
    let tree = Tree::new(Path::new("/"));
    let parts = sysfs::cpu_side(&tree)?;
    let allowed = pin::allowed_cpus()?;
    finish(&tree, parts, Some(&allowed))
}

#[cfg(feature = "hwloc")]
fn cpu_side(tree: &Tree) -> Result<Parts, DiscoverError> {
    match hwloc::this_machine() {
        Ok(mut parts) => {
            // hwloc makes kinds of cores that differ by some percent in frequency alone.
            sysfs::add_speeds(tree, &mut parts)?;
            Ok(parts)
        }
        Err(error) => {
            tracing::warn!(%error, "libhwloc cannot describe this machine; reading sysfs instead");
            sysfs::cpu_side(tree)
        }
    }
}

#[cfg(not(feature = "hwloc"))]
fn cpu_side(tree: &Tree) -> Result<Parts, DiscoverError> {
    sysfs::cpu_side(tree)
}

/// Adds devices to the CPU side, and narrows the allowed CPUs.
fn finish(tree: &Tree, mut parts: Parts, allowed: Option<&CpuSet>) -> Result<Machine, DiscoverError> {
    devices::add(tree, &mut parts)?;
    if let Some(allowed) = allowed {
        parts.allowed = parts.allowed.and(allowed);
    }
    Ok(Machine::new(parts)?)
}

/// The machine that a description in hwloc's synthetic notation stands for, as `pack:2 numa:2 core:8 pu:2`.
///
/// # Errors
/// When the text is not in that notation, or the program is built without hwloc.
pub fn from_synthetic(text: &str) -> Result<Machine, DiscoverError> {
    #[cfg(feature = "hwloc")]
    return Ok(Machine::new(hwloc::synthetic(text)?)?);
    #[cfg(not(feature = "hwloc"))]
    Err(DiscoverError::NeedsHwloc {
        what: format!("the synthetic description {:?}", crate::model::ids::clip(text)),
    })
}

/// The machine that an XML text describes, as `lstopo --of xml` writes it.
///
/// # Errors
/// When the text is over [`XML_LIMIT_BYTES`], is not such a description, or contradicts itself.
pub fn from_xml(text: &str) -> Result<Machine, DiscoverError> {
    if text.len() as u64 > XML_LIMIT_BYTES {
        return Err(DiscoverError::TooLarge { path: PathBuf::from("(text)"), limit_bytes: XML_LIMIT_BYTES });
    }
    Ok(Machine::new(hwloc_xml::parts(text)?)?)
}

/// The machine that an XML file describes, as `lstopo machine.xml` writes it.
///
/// # Errors
/// As [`from_xml`], and when the file cannot be read.
pub fn from_xml_file(path: &Path) -> Result<Machine, DiscoverError> {
    from_xml(&files::read_limited(path, XML_LIMIT_BYTES)?)
}

/// This host's name and its kernel's boot id.
///
/// # Errors
/// When the name cannot be read or is not a host's name.
pub fn host_id() -> Result<HostId, DiscoverError> {
    host_id_at(&Tree::new(Path::new("/")))
}

fn host_id_at(tree: &Tree) -> Result<HostId, DiscoverError> {
    let name = tree.required("proc/sys/kernel/hostname")?;
    let boot = tree.attribute("proc/sys/kernel/random/boot_id").unwrap_or_default();
    Ok(HostId::new(name, boot)?)
}

/// A machine that cannot be found out.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// libhwloc failed.
    #[error("libhwloc failed while {what}: {reason}")]
    Hwloc {
        /// What it was asked to do.
        what: &'static str,
        /// What it said.
        reason: String,
    },
    /// The environment makes libhwloc describe another machine.
    #[error(
        "libhwloc describes another machine than this one: unset HWLOC_XMLFILE, HWLOC_SYNTHETIC and HWLOC_FSROOT"
    )]
    AnotherMachine,
    /// A synthetic description that hwloc refuses.
    #[error(
        "{text:?} is not a synthetic description: list kinds and counts from the outermost, ending with pu, for example \"pack:2 numa:2 core:8 pu:2\""
    )]
    Synthetic {
        /// The text given, cut to a printable length.
        text: String,
    },
    /// A text that is not an XML description of a machine.
    #[error("not an XML description of a machine: {reason}; write one with `lstopo machine.xml` of hwloc 2")]
    Xml {
        /// What is wrong, and in what line.
        reason: String,
    },
    /// The program cannot read this kind of description.
    #[error("{what} can be read only by a program built with libhwloc: build with the feature hwloc")]
    NeedsHwloc {
        /// What was to be read.
        what: String,
    },
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is larger than any true one.
    #[error("{}: over the limit of {limit_bytes} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit_bytes: u64,
    },
    /// A file says what it cannot say.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with its content.
        reason: String,
    },
    /// The description contradicts itself.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A CPU number is beyond any machine.
    #[error(transparent)]
    CpuSet(#[from] CpuSetError),
    /// The host's name is none.
    #[error(transparent)]
    Host(#[from] IdError),
    /// The affinity mask cannot be read.
    #[error(transparent)]
    Pin(#[from] pin::PinError),
}
