//! What a side tells its peers about RDMA, and its wire form (R4).
//!
//! Wire form, numbers little endian: the bytes `RWR1`; length of the identity (2 bytes), identity; number of rails (1);
//! for each: length of the device's name (1), name, link layer (1: 0 InfiniBand, 1 Ethernet), port (1), LID (2), subnet
//! prefix (8), MTU (1, as in the verbs), speed in Mbit/s (4), partition key (2), bootstrap queue pair (4) and its key (4),
//! number of GIDs (1), and for each: index (1), kind (1: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2), prefix length of its
//! address (1, 255 unknown), 16 bytes. With the limits of this module at most 2 KiB.

use super::gid::Family;
use super::model::{GidKind, LinkLayer, Mtu, show_gid};
use super::select::{Choice, Rail};
use super::{MAX_RAILS, filter::MAX_NAME_BYTES};
use std::fmt;

/// Most GIDs that a rail offers.
pub const MAX_GIDS: usize = 16;
/// Longest identity of a transport, in bytes.
pub const MAX_IDENTITY_BYTES: usize = 256;
/// Queue pair numbers have 24 bits.
const MAX_QUEUE_PAIR: u32 = (1 << 24) - 1;

const MAGIC: [u8; 4] = *b"RWR1";
/// A prefix length that is not known.
const UNKNOWN_PREFIX: u8 = 255;

/// What a side tells its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaOffer {
    /// Who offers, in the transport's own words: must differ between processes (R1).
    pub identity: Vec<u8>,
    /// One to [`MAX_RAILS`], best first.
    pub rails: Vec<OfferedRail>,
}

/// One port as it is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedRail {
    /// The device's name.
    pub device: String,
    /// The port's number.
    pub port: u8,
    /// What the port speaks.
    pub link_layer: LinkLayer,
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// Its InfiniBand subnet.
    pub subnet_prefix: u64,
    /// Its active MTU.
    pub mtu: Mtu,
    /// Its speed in megabits per second; 0 when not told.
    pub rate_mbps: u32,
    /// Its partition key.
    pub pkey: u16,
    /// The queue pair (unreliable datagram) by which connections begin.
    pub bootstrap_queue_pair: u32,
    /// That queue pair's key.
    pub bootstrap_queue_key: u32,
    /// GIDs that may be used, best first, at least one.
    pub gids: Vec<OfferedGid>,
}

/// One GID as it is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedGid {
    /// Its index in its port's table.
    pub index: u8,
    /// What it stands for.
    pub kind: GidKind,
    /// Prefix length of its address in the bits of its family, where known.
    pub prefix_len: Option<u8>,
    /// Its sixteen bytes.
    pub bytes: [u8; 16],
}

impl fmt::Display for OfferedGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, show_gid(&self.bytes))
    }
}

/// What only the opened device knows about a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The port's active MTU.
    pub mtu: Mtu,
    /// Number of the queue pair by which connections begin.
    pub bootstrap_queue_pair: u32,
    /// That queue pair's key.
    pub bootstrap_queue_key: u32,
}

impl RdmaOffer {
    /// The offer of these rails, in their order; `opened` adds what the device of each says.
    pub fn new(identity: Vec<u8>, choice: &Choice, mut opened: impl FnMut(&Rail) -> Opened) -> RdmaOffer {
        let rail = |rail: &Rail| {
            let Opened { mtu, bootstrap_queue_pair, bootstrap_queue_key } = opened(rail);
            let gids = rail.gids.iter().map(|gid| OfferedGid {
                index: gid.index,
                kind: gid.kind,
                prefix_len: gid.prefix_len,
                bytes: gid.bytes,
            });
            OfferedRail {
                device: rail.device.clone(),
                port: rail.port,
                link_layer: rail.link_layer,
                lid: rail.lid,
                subnet_prefix: rail.subnet_prefix,
                mtu,
                rate_mbps: rail.rate_mbps,
                pkey: rail.pkey,
                bootstrap_queue_pair,
                bootstrap_queue_key,
                gids: gids.collect(),
            }
        };
        RdmaOffer { identity, rails: choice.rails.iter().map(rail).collect() }
    }

    /// The wire form.
    ///
    /// # Panics
    /// When the offer is over the limits of this module: it comes from this side's own choice, which keeps them.
    pub fn to_bytes(&self) -> Vec<u8> {
        assert!((1..=MAX_RAILS).contains(&self.rails.len()), "{} rails", self.rails.len());
        assert!(self.identity.len() <= MAX_IDENTITY_BYTES, "an identity of {} bytes", self.identity.len());
        let mut bytes = MAGIC.to_vec();
        bytes.extend((self.identity.len() as u16).to_le_bytes());
        bytes.extend(&self.identity);
        bytes.push(self.rails.len() as u8);
        for rail in &self.rails {
            rail.write(&mut bytes);
        }
        bytes
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<RdmaOffer, &'static str> {
        let mut rest = Reader(bytes);
        if rest.take::<4>()? != MAGIC {
            return Err("it is no RDMA offer, or that of another version");
        }
        let len = usize::from(u16::from_le_bytes(rest.take()?));
        if len > MAX_IDENTITY_BYTES {
            return Err("an identity is too long");
        }
        let identity = rest.slice(len)?.to_vec();
        let count = usize::from(rest.byte()?);
        if !(1..=MAX_RAILS).contains(&count) {
            return Err("it has no rail, or more than there are");
        }
        let rails = (0..count).map(|_| OfferedRail::read(&mut rest)).collect::<Result<Vec<_>, _>>()?;
        if rest.0.is_empty() { Ok(RdmaOffer { identity, rails }) } else { Err("bytes follow its end") }
    }
}

impl OfferedRail {
    fn write(&self, bytes: &mut Vec<u8>) {
        let OfferedRail { device, port, link_layer, lid, subnet_prefix, mtu, rate_mbps, pkey, gids, .. } =
            self;
        assert!(device.len() <= MAX_NAME_BYTES && (1..=MAX_GIDS).contains(&gids.len()), "a rail is too long");
        bytes.push(device.len() as u8);
        bytes.extend(device.as_bytes());
        bytes.extend([u8::from(*link_layer == LinkLayer::Ethernet), *port]);
        bytes.extend(lid.to_le_bytes());
        bytes.extend(subnet_prefix.to_le_bytes());
        bytes.push(mtu.code());
        bytes.extend(rate_mbps.to_le_bytes());
        bytes.extend(pkey.to_le_bytes());
        bytes.extend(self.bootstrap_queue_pair.to_le_bytes());
        bytes.extend(self.bootstrap_queue_key.to_le_bytes());
        bytes.push(gids.len() as u8);
        for OfferedGid { index, kind, prefix_len, bytes: gid } in gids {
            let kind = match kind {
                GidKind::InfiniBand => 0,
                GidKind::RoceV1 => 1,
                GidKind::RoceV2 => 2,
            };
            bytes.extend([*index, kind, prefix_len.unwrap_or(UNKNOWN_PREFIX)]);
            bytes.extend(gid);
        }
    }

    fn read(rest: &mut Reader<'_>) -> Result<OfferedRail, &'static str> {
        let len = usize::from(rest.byte()?);
        let name = std::str::from_utf8(rest.slice(len)?).map_err(|_| "a device's name is not text")?;
        if len == 0 || len > MAX_NAME_BYTES || name.contains(|c: char| c.is_control() || c.is_whitespace()) {
            return Err("a device's name is none");
        }
        let link_layer = match rest.byte()? {
            0 => LinkLayer::InfiniBand,
            1 => LinkLayer::Ethernet,
            _ => return Err("a port speaks nothing known"),
        };
        let mut rail = OfferedRail {
            device: name.to_owned(),
            link_layer,
            port: rest.byte()?,
            lid: u16::from_le_bytes(rest.take()?),
            subnet_prefix: u64::from_le_bytes(rest.take()?),
            mtu: Mtu::from_code(rest.byte()?).ok_or("an MTU is none")?,
            rate_mbps: u32::from_le_bytes(rest.take()?),
            pkey: u16::from_le_bytes(rest.take()?),
            bootstrap_queue_pair: u32::from_le_bytes(rest.take()?),
            bootstrap_queue_key: u32::from_le_bytes(rest.take()?),
            gids: Vec::new(),
        };
        if rail.bootstrap_queue_pair > MAX_QUEUE_PAIR {
            return Err("a queue pair's number has over 24 bits");
        }
        let count = usize::from(rest.byte()?);
        if !(1..=MAX_GIDS).contains(&count) {
            return Err("a port has no GID, or too many");
        }
        for _ in 0..count {
            rail.gids.push(OfferedGid::read(rest, link_layer)?);
        }
        Ok(rail)
    }
}

impl OfferedGid {
    fn read(rest: &mut Reader<'_>, link_layer: LinkLayer) -> Result<OfferedGid, &'static str> {
        let index = rest.byte()?;
        let kind = match (rest.byte()?, link_layer) {
            (0, LinkLayer::InfiniBand) => GidKind::InfiniBand,
            (1, LinkLayer::Ethernet) => GidKind::RoceV1,
            (2, LinkLayer::Ethernet) => GidKind::RoceV2,
            _ => return Err("a GID's kind does not fit its port"),
        };
        let prefix_len = Some(rest.byte()?).filter(|len| *len != UNKNOWN_PREFIX);
        let bytes = rest.take::<16>()?;
        if prefix_len.is_some_and(|len| len > Family::of(&bytes).bits()) {
            return Err("a prefix is longer than its address");
        }
        Ok(OfferedGid { index, kind, prefix_len, bytes })
    }
}

/// The bytes not yet read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn slice(&mut self, n: usize) -> Result<&'a [u8], &'static str> {
        self.0.split_off(..n).ok_or("it is cut short")
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (taken, rest) = self.0.split_first_chunk().ok_or("it is cut short")?;
        self.0 = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        Ok(self.take::<1>()?[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::route::MAX_ADDRESS_BYTES;
    use crate::transport::seed::Seeded;

    /// The largest offer that the limits allow.
    fn largest() -> RdmaOffer {
        let gid = |index: usize| OfferedGid {
            index: index as u8,
            kind: if index.is_multiple_of(2) { GidKind::RoceV1 } else { GidKind::RoceV2 },
            prefix_len: (!index.is_multiple_of(3)).then_some(24),
            bytes: [index as u8; 16],
        };
        let rail = |number: usize| OfferedRail {
            device: format!("{number}{}", "x".repeat(MAX_NAME_BYTES - 1)),
            port: 255,
            link_layer: LinkLayer::Ethernet,
            lid: 0xbeef,
            subnet_prefix: 0xfe80 << 48,
            mtu: Mtu::B4096,
            rate_mbps: 400_000,
            pkey: 0x8001,
            bootstrap_queue_pair: MAX_QUEUE_PAIR,
            bootstrap_queue_key: u32::MAX,
            gids: (0..MAX_GIDS).map(gid).collect(),
        };
        RdmaOffer { identity: vec![7; MAX_IDENTITY_BYTES], rails: (0..MAX_RAILS).map(rail).collect() }
    }

    #[test]
    fn offers_read_back_within_a_transports_address() {
        let offer = largest();
        let bytes = offer.to_bytes();
        assert!(bytes.len() <= MAX_ADDRESS_BYTES / 2, "{}", bytes.len());
        assert_eq!(RdmaOffer::from_bytes(&bytes), Ok(offer));
    }

    #[test]
    fn hostile_bytes_are_refused() {
        // R4
        let bytes = largest().to_bytes();
        for n in 0..bytes.len() {
            assert!(RdmaOffer::from_bytes(&bytes[..n]).is_err(), "cut after {n}");
        }
        assert!(RdmaOffer::from_bytes(&[bytes.as_slice(), &[0]].concat()).is_err());
        let mut random = Seeded::new(5);
        let mut refused = 0;
        for _ in 0..20_000 {
            let mut bytes = bytes.clone();
            for _ in 0..=random.below(8) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            match RdmaOffer::from_bytes(&bytes) {
                Ok(read) => assert!(read.rails.len() <= MAX_RAILS && read.to_bytes().len() <= bytes.len()),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 1000, "{refused}");
    }
}
