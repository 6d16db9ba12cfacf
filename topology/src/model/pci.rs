//! PCI devices: their addresses, where they hang, and which of them are accelerators.

use std::fmt;
use std::str::FromStr;

use super::cpuset::CpuSet;
use super::ids::clip;

/// A PCI function's address, written as `0000:18:00.0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Segment, 0 on most machines.
    pub domain: u32,
    /// Bus in the segment.
    pub bus: u8,
    /// Device (slot) on the bus, 0 to 31.
    pub device: u8,
    /// Function of the device, 0 to 7.
    pub function: u8,
}

impl PciAddress {
    /// Whether both are functions of one card.
    #[must_use]
    pub fn same_card(self, other: PciAddress) -> bool {
        (self.domain, self.bus, self.device) == (other.domain, other.bus, other.device)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    /// Reads `DDDD:BB:DD.F`, or `BB:DD.F` in segment 0; all hexadecimal.
    fn from_str(text: &str) -> Result<Self, PciAddressError> {
        let bad = || PciAddressError { text: clip(text) };
        let hex = |digits: &str, most: usize| -> Result<u32, PciAddressError> {
            let good = (1..=most).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            if !good {
                return Err(bad());
            }
            u32::from_str_radix(digits, 16).map_err(|_| bad())
        };
        let (rest, function) = text.rsplit_once('.').ok_or_else(bad)?;
        let (rest, device) = rest.rsplit_once(':').ok_or_else(bad)?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        let (device, function) = (hex(device, 2)?, hex(function, 1)?);
        if device > 31 || function > 7 {
            return Err(bad());
        }
        Ok(PciAddress {
            domain: hex(domain, 8)?,
            bus: hex(bus, 2)? as u8,
            device: device as u8,
            function: function as u8,
        })
    }
}

/// A text that is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a PCI address: write it as lspci -D does, for example 0000:18:00.0")]
pub struct PciAddressError {
    /// The text given, cut to a printable length.
    pub text: String,
}

/// One function of a card on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// Where it is.
    pub address: PciAddress,
    /// Class and subclass, as 0x0200 for an Ethernet controller.
    pub class: u16,
    /// Vendor, as 0x15b3.
    pub vendor: u16,
    /// The vendor's number of the device.
    pub device: u16,
    /// CPUs next to it; all CPUs of the machine where the firmware does not say.
    pub cpus: CpuSet,
    /// NUMA node next to it, where the firmware says.
    pub node: Option<u32>,
    /// Segment and bus of the host bridge (root complex) above it.
    pub root: (u32, u8),
    /// Bridges between the host bridge and the device, outermost (the root port) first.
    pub bridges: Vec<PciAddress>,
}

impl PciDevice {
    /// Whether it computes: display and 3D controllers of the vendors that make accelerators, and processing
    /// accelerators. The display chips of a server's management controller are not among them.
    ///
    /// Classes as in the PCI Code and ID Assignment Specification: 03 display, 12 processing accelerators.
    #[must_use]
    pub fn is_accelerator(&self) -> bool {
        const NVIDIA: u16 = 0x10de;
        const AMD: u16 = 0x1002;
        const INTEL: u16 = 0x8086;
        match self.class {
            0x0302 | 0x1200 => true,
            0x0300 | 0x0380 => matches!(self.vendor, NVIDIA | AMD | INTEL),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_back_as_written() {
        for text in ["0000:18:00.0", "10000:e1:1f.7"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        let short: PciAddress = "3b:00.1".parse().unwrap();
        assert_eq!(short.to_string(), "0000:3b:00.1");
        assert!(short.same_card("0000:3b:00.0".parse().unwrap()));
        assert!(!short.same_card("0000:3b:01.1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in
            ["", "0000", "0000:18:00", "0000:18:20.0", "0000:18:00.8", "0000:118:00.0", "x:18:00.0", "::."]
        {
            assert!(text.parse::<PciAddress>().is_err(), "{text:?}");
        }
    }
}
