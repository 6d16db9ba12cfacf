//! Kinds and families of GIDs, what reaches what, and which come first.

use core::net::{IpAddr, Ipv6Addr};
use std::fmt;
use std::str::FromStr;

use super::config::RdmaConfig;
use super::model::{Gid, GidKind, RoceVersion, show_gid};

/// Address family of a RoCE GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// An IPv4 address, as `::ffff:a.b.c.d`.
    V4,
    /// An IPv6 address.
    V6,
}

impl Family {
    /// The family of a GID.
    pub fn of(bytes: &[u8; 16]) -> Family {
        if Ipv6Addr::from(*bytes).to_ipv4_mapped().is_some() { Family::V4 } else { Family::V6 }
    }

    /// Bits of an address.
    pub fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// Whether a GID means something only on its own link: made from a MAC address, or 169.254.0.0/16.
pub fn is_link_local(bytes: &[u8; 16]) -> bool {
    let v6 = Ipv6Addr::from(*bytes);
    v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some_and(|v4| v4.is_link_local())
}

/// Whether two addresses, of prefix lengths in the bits of their own family, each lie in the other's subnet.
/// An unknown length is no shared subnet.
pub fn share_subnet(a: (&[u8; 16], Option<u8>), b: (&[u8; 16], Option<u8>)) -> bool {
    let family = Family::of(a.0);
    let (Some(a_len), Some(b_len)) = (a.1, b.1) else { return false };
    let mapped = 128 - u32::from(family.bits());
    family == Family::of(b.0) && common_bits(a.0, b.0) >= mapped + u32::from(a_len.max(b_len))
}

fn common_bits(a: &[u8; 16], b: &[u8; 16]) -> u32 {
    (u128::from_be_bytes(*a) ^ u128::from_be_bytes(*b)).leading_zeros()
}

/// A range of addresses, as `10.0.0.0/8` or `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    bytes: [u8; 16],
    /// In bits of the mapped form, so 96 to 128 for IPv4.
    len: u8,
}

/// Text that is no range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no range of addresses: write e.g. 10.1.0.0/16 or fd00::/8")]
pub struct BadRange {
    /// What was given.
    pub text: String,
}

impl AddressRange {
    /// Whether a GID lies in it.
    pub fn contains(&self, bytes: &[u8; 16]) -> bool {
        common_bits(&self.bytes, bytes) >= u32::from(self.len)
    }
}

impl FromStr for AddressRange {
    type Err = BadRange;

    fn from_str(text: &str) -> Result<AddressRange, BadRange> {
        let bad = || BadRange { text: text.to_owned() };
        let (address, len) = text.trim().split_once('/').ok_or_else(bad)?;
        let len: u8 = len.parse().map_err(|_| bad())?;
        let (bytes, mapped) = match address.parse().map_err(|_| bad())? {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped().octets(), 96),
            IpAddr::V6(v6) => (v6.octets(), 0),
        };
        let len = len.checked_add(mapped).filter(|len| *len <= 128).ok_or_else(bad)?;
        Ok(AddressRange { bytes, len })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mapped = self.len >= 96 && Family::of(&self.bytes) == Family::V4;
        write!(f, "{}/{}", show_gid(&self.bytes), if mapped { self.len - 96 } else { self.len })
    }
}

/// Why the settings or the system rule a GID out, or `None`.
pub(super) fn objection(gid: &Gid, config: &RdmaConfig) -> Option<String> {
    if !gid.netdev_here {
        return Some("its interface is in another network namespace".to_owned());
    }
    if gid.kind == GidKind::InfiniBand {
        return None;
    }
    if let Some(version) = config.roce_version {
        let kind = match version {
            RoceVersion::V1 => GidKind::RoceV1,
            RoceVersion::V2 => GidKind::RoceV2,
        };
        if gid.kind != kind {
            return Some(format!("RINGWAY_IB_ROCE_VERSION asks for {kind}"));
        }
    }
    if let Some(family) = config.family.filter(|family| *family != Family::of(&gid.bytes)) {
        return Some(format!("RINGWAY_IB_ADDR_FAMILY asks for {family}"));
    }
    let outside = config.range.filter(|range| !range.contains(&gid.bytes));
    outside.map(|range| format!("it is outside of RINGWAY_IB_ADDR_RANGE={range}"))
}

/// The order in which GIDs are preferred: routed before local, RoCE v2 before v1, IPv4 before IPv6, then by index.
pub(super) fn preference(gid: &Gid) -> (bool, bool, Family, u8) {
    (gid.kind == GidKind::RoceV1, is_link_local(&gid.bytes), Family::of(&gid.bytes), gid.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> [u8; 16] {
        match text.parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        }
    }

    #[test]
    fn families_and_scopes() {
        let cases = [
            ("10.0.0.1", Family::V4, false),
            ("169.254.1.1", Family::V4, true),
            ("fe80::1", Family::V6, true),
            ("fd00::1", Family::V6, false),
            ("2001:db8::1", Family::V6, false),
        ];
        for (text, family, local) in cases {
            assert_eq!((Family::of(&gid(text)), is_link_local(&gid(text))), (family, local), "{text}");
            assert_eq!(show_gid(&gid(text)), text);
        }
    }

    #[test]
    fn subnets_are_shared_in_both_directions() {
        let shared = |a: &str, x, b: &str, y| share_subnet((&gid(a), x), (&gid(b), y));
        assert!(shared("10.0.0.1", Some(24), "10.0.0.2", Some(24)));
        assert!(!shared("10.0.0.1", Some(24), "10.0.1.2", Some(24)));
        assert!(!shared("10.0.0.1", Some(16), "10.0.1.2", Some(24)));
        assert!(!shared("10.77.0.1", Some(32), "10.77.0.2", Some(32)));
        assert!(shared("10.0.0.1", Some(0), "200.0.1.2", Some(0)));
        assert!(!shared("10.0.0.1", None, "10.0.0.2", Some(24)));
        assert!(shared("fd00::1", Some(64), "fd00::2", Some(64)));
        assert!(!shared("fd00::1", Some(64), "10.0.0.2", Some(24)));
    }

    #[test]
    fn ranges() {
        let inside = |range: &str, a: &str| range.parse::<AddressRange>().unwrap().contains(&gid(a));
        assert!(inside("10.0.0.0/8", "10.3.4.5"));
        assert!(!inside("10.0.0.0/8", "11.0.0.1"));
        assert!(inside("::/0", "11.0.0.1"), "NCCL's default");
        assert!(inside("fd00::/8", "fd77::1"));
        for text in ["10.0.0.0/8", "fd00::/8", "0.0.0.0/0", "::/0"] {
            assert_eq!(text.parse::<AddressRange>().unwrap().to_string(), text);
        }
        for text in ["", "10.0.0.0", "10.0.0.0/33", "fd00::/129", "eth0/8", "10.0.0.0/255", "/8"] {
            assert!(text.parse::<AddressRange>().unwrap_err().to_string().contains("write e.g."), "{text}");
        }
    }
}
