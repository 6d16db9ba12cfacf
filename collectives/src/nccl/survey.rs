//! What this host has for work on GPUs, and the one sentence that says what is missing.

#![forbid(unsafe_code)]

use super::device::Device;
use super::driver::Driver;
use super::error::{Unavailable, Version};
use super::library::Library;

/// A GPU, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its number.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Its PCI address.
    pub pci_address: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Whether a NIC reaches its memory by dma-buf.
    pub dmabuf: bool,
}

/// The driver, and the GPUs that it sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverFacts {
    /// The CUDA version that it supports.
    pub version: Version,
    /// At least one.
    pub devices: Vec<DeviceFacts>,
}

/// NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryFacts {
    /// The file that was asked for.
    pub file: String,
    /// Its version.
    pub version: Version,
}

/// What this host has, or what is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The driver and its GPUs.
    pub driver: Result<DriverFacts, Unavailable>,
    /// NCCL.
    pub nccl: Result<LibraryFacts, Unavailable>,
}

impl Survey {
    /// Looks at this host. `library` is NCCL's file where the dynamic loader is not to look for it.
    #[must_use]
    pub fn this_host(library: Option<&str>) -> Survey {
        let nccl = Library::load(library)
            .map(|library| LibraryFacts { file: library.file().to_owned(), version: library.version() });
        Survey { driver: driver(), nccl }
    }

    /// What is missing, as one sentence without an end; `None` when nothing is.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        match (&self.driver, &self.nccl) {
            (Ok(_), Ok(_)) => None,
            (Err(one), Ok(_)) | (Ok(_), Err(one)) => Some(one.to_string()),
            (Err(driver), Err(nccl)) => Some(format!("{driver}; and {nccl}")),
        }
    }
}

fn driver() -> Result<DriverFacts, Unavailable> {
    let version = Driver::get()?.version;
    let devices = (0..Device::count()?).map(|ordinal| Device::get(ordinal).map(facts));
    Ok(DriverFacts { version, devices: devices.collect::<Result<_, _>>()? })
}

fn facts(device: Device) -> DeviceFacts {
    DeviceFacts {
        ordinal: device.ordinal(),
        name: device.name(),
        pci_address: device.pci_address(),
        memory_bytes: device.memory_bytes(),
        capability: device.capability(),
        dmabuf: device.has_dmabuf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_missing_is_said_at_once() {
        let nccl = LibraryFacts { file: "libnccl.so.2".into(), version: Version::of_nccl(22_703) };
        let missing = |driver: Result<DriverFacts, Unavailable>, nccl| Survey { driver, nccl }.missing();
        let old = Unavailable::NcclTooOld { file: "libnccl.so.2".into(), found: Version::of_nccl(2708) };
        let devices = DriverFacts { version: Version::of_driver(12_080), devices: Vec::new() };
        assert_eq!(missing(Ok(devices.clone()), Ok(nccl.clone())), None);
        assert!(missing(Err(Unavailable::NoDevice), Ok(nccl)).unwrap().contains("sees no GPU"));
        let said = missing(Ok(devices), Err(old.clone())).unwrap();
        assert!(said.contains("NCCL 2.7.8") && said.contains("2.18"), "{said}");
        let said = missing(Err(Unavailable::NoDriver), Err(old)).unwrap();
        assert!(said.contains("libcuda.so.1") && said.contains("; and libnccl.so.2 is NCCL 2.7.8"), "{said}");
    }
}
