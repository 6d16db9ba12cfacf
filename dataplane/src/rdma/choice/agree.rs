//! The rails that two sides have in common: found by each from the two offers alone.
//!
//! Every pair of one side's rail and the other's is tried. Pairs are ranked by how surely their GIDs reach each other,
//! then by how high both sides rank them; each rail is taken once, and only pairs of the surest way that exists are
//! taken, since a message striped over a doubtful rail is a doubtful message. What is left equal is decided in the
//! order of the side whose offer is the lower in bytes, so that both decide alike (R1).

use super::gid::{Family, is_link_local, share_subnet};
use super::model::{GidKind, LinkLayer, Mtu, show_gid};
use super::offer::{OfferedGid, OfferedRail, RdmaOffer};

/// One rail between this side and a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailPair {
    /// Index of this side's rail in its own offer.
    pub mine: usize,
    /// Index of this side's GID in its port's table; `None` where the LID alone is enough.
    pub my_gid_index: Option<u8>,
    /// This side's GID.
    pub my_gid: [u8; 16],
    /// Index of the peer's rail in the peer's offer.
    pub theirs: usize,
    /// The peer's GID.
    pub their_gid: [u8; 16],
    /// The peer's LID; 0 on Ethernet.
    pub their_lid: u16,
    /// Whether packets carry a global header: always on Ethernet, on InfiniBand only between subnets.
    pub global: bool,
    /// The path MTU: the smaller of both sides'.
    pub mtu: Mtu,
}

impl RailPair {
    /// One line for people, seen from the side that `mine` is of: `rxe0:1 10.77.0.1 to rxe1:1 10.77.0.2, MTU 4096`.
    pub fn shown(&self, mine: &RdmaOffer, theirs: &RdmaOffer) -> String {
        let (my_rail, their_rail) = (&mine.rails[self.mine], &theirs.rails[self.theirs]);
        let end = |rail: &OfferedRail, gid: &[u8; 16]| match self.global {
            true => format!("{} {}", named(rail), show_gid(gid)),
            false => format!("{} LID {}", named(rail), rail.lid),
        };
        let ends = format!("{} to {}", end(my_rail, &self.my_gid), end(their_rail, &self.their_gid));
        format!("{ends}, MTU {}", self.mtu.bytes())
    }

    /// What is worth mending about this rail, in one line, if anything is.
    pub fn remark(&self, mine: &RdmaOffer, theirs: &RdmaOffer) -> Option<String> {
        let (my_rail, their_rail) = (&mine.rails[self.mine], &theirs.rails[self.theirs]);
        let (my_mtu, their_mtu) = (my_rail.mtu.bytes(), their_rail.mtu.bytes());
        (my_mtu != their_mtu).then(|| {
            format!(
                "the MTU of {} is {my_mtu} here, that of the peer's {} is {their_mtu}, so {} is used: give both \
                 interfaces one MTU",
                named(my_rail),
                named(their_rail),
                self.mtu.bytes()
            )
        })
    }
}

/// Why two sides have no rail in common.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Disagreement {
    /// One line: per pair of rails why not, and what to do.
    pub why: String,
}

/// How surely two GIDs reach each other, least sure first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// RoCE v1, both link-local: if they are on one link.
    LocalV1,
    /// RoCE v2, both link-local: if they are on one link.
    LocalV2,
    /// RoCE v1 in one IP subnet, so on one link.
    SubnetV1,
    /// RoCE v2 or InfiniBand, by a router.
    Routed,
    /// RoCE v2 in one IP subnet, or InfiniBand in one subnet.
    Subnet,
}

/// Two rails and the GIDs by which they reach each other, seen from this side.
#[derive(Clone, Copy, Debug)]
struct Joint {
    way: Way,
    mine: usize,
    my_gid: usize,
    theirs: usize,
    their_gid: usize,
}

/// The rails of both sides that reach each other, best first (R1).
///
/// # Errors
/// [`Disagreement`] when no two do.
pub fn agree(mine: &RdmaOffer, theirs: &RdmaOffer) -> Result<Vec<RailPair>, Disagreement> {
    let i_decide = mine.to_bytes() <= theirs.to_bytes();
    let (mut joints, mut reasons) = (Vec::new(), Vec::new());
    for (m, my_rail) in mine.rails.iter().enumerate() {
        for (t, their_rail) in theirs.rails.iter().enumerate() {
            match join(my_rail, their_rail, i_decide) {
                Ok((way, my_gid, their_gid)) => {
                    joints.push(Joint { way, mine: m, my_gid, theirs: t, their_gid });
                }
                Err(why) => reasons.push((format!("{} with {}", named(my_rail), named(their_rail)), why)),
            }
        }
    }
    let Some(surest) = joints.iter().map(|joint| joint.way).max() else {
        return Err(Disagreement { why: told(&reasons) });
    };
    joints.retain(|joint| joint.way == surest);
    joints.sort_by_key(|j| (j.mine + j.theirs, if i_decide { j.mine } else { j.theirs }));
    let mut taken: Vec<Joint> = Vec::new();
    for joint in joints {
        if taken.iter().all(|t| t.mine != joint.mine && t.theirs != joint.theirs) {
            taken.push(joint);
        }
    }
    Ok(taken.into_iter().map(|joint| pair(mine, theirs, joint)).collect())
}

fn pair(mine: &RdmaOffer, theirs: &RdmaOffer, joint: Joint) -> RailPair {
    let (my_rail, their_rail) = (&mine.rails[joint.mine], &theirs.rails[joint.theirs]);
    let (my_gid, their_gid) = (my_rail.gids[joint.my_gid], their_rail.gids[joint.their_gid]);
    let global = my_rail.link_layer == LinkLayer::Ethernet || joint.way == Way::Routed;
    RailPair {
        mine: joint.mine,
        my_gid_index: global.then_some(my_gid.index),
        my_gid: my_gid.bytes,
        theirs: joint.theirs,
        their_gid: their_gid.bytes,
        their_lid: their_rail.lid,
        global,
        mtu: my_rail.mtu.min(their_rail.mtu),
    }
}

/// Why two rails do not reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Apart {
    LinkLayers(LinkLayer, LinkLayer),
    Partitions(u16, u16),
    Kinds(Vec<GidKind>, Vec<GidKind>),
    Families(Vec<Family>, Vec<Family>),
    LocalOnly { mine: bool },
    SubnetsV1,
}

/// The surest way between two rails, and the indices of the GIDs among those that they offer.
fn join(mine: &OfferedRail, theirs: &OfferedRail, i_decide: bool) -> Result<(Way, usize, usize), Apart> {
    if mine.link_layer != theirs.link_layer {
        return Err(Apart::LinkLayers(mine.link_layer, theirs.link_layer));
    }
    if !share_partition(mine.pkey, theirs.pkey) {
        return Err(Apart::Partitions(mine.pkey, theirs.pkey));
    }
    if mine.link_layer == LinkLayer::InfiniBand {
        let way = if mine.subnet_prefix == theirs.subnet_prefix { Way::Subnet } else { Way::Routed };
        return Ok((way, 0, 0));
    }
    let pairs = mine.gids.iter().enumerate().flat_map(|(m, my_gid)| {
        let with = move |(t, their_gid)| way(my_gid, their_gid).map(|way| (way, m, t));
        theirs.gids.iter().enumerate().filter_map(with)
    });
    let best =
        pairs.min_by_key(|(way, m, t)| (std::cmp::Reverse(*way), m + t, if i_decide { *m } else { *t }));
    best.ok_or_else(|| apart(&mine.gids, &theirs.gids))
}

/// Whether two partition keys let ports talk: one partition (lower 15 bits), of which one is a full member.
fn share_partition(mine: u16, theirs: u16) -> bool {
    const FULL_MEMBER: u16 = 0x8000;
    mine & !FULL_MEMBER == theirs & !FULL_MEMBER && (mine | theirs) & FULL_MEMBER != 0
}

/// How two GIDs of Ethernet ports reach each other, if they do (R2).
fn way(a: &OfferedGid, b: &OfferedGid) -> Option<Way> {
    if a.kind != b.kind || Family::of(&a.bytes) != Family::of(&b.bytes) {
        return None;
    }
    let local = (is_link_local(&a.bytes), is_link_local(&b.bytes));
    let shared = share_subnet((&a.bytes, a.prefix_len), (&b.bytes, b.prefix_len));
    match (a.kind, local) {
        (GidKind::RoceV2, (false, false)) => Some(if shared { Way::Subnet } else { Way::Routed }),
        (GidKind::RoceV2, (true, true)) => Some(Way::LocalV2),
        (GidKind::RoceV1, (false, false)) if shared => Some(Way::SubnetV1),
        (GidKind::RoceV1, (true, true)) => Some(Way::LocalV1),
        _ => None,
    }
}

/// What keeps all GIDs of two Ethernet ports apart.
fn apart(mine: &[OfferedGid], theirs: &[OfferedGid]) -> Apart {
    let kinds = |gids: &[OfferedGid]| distinct(gids.iter().map(|gid| gid.kind));
    let (my_kinds, their_kinds) = (kinds(mine), kinds(theirs));
    let shared: Vec<GidKind> = my_kinds.iter().copied().filter(|kind| their_kinds.contains(kind)).collect();
    if shared.is_empty() {
        return Apart::Kinds(my_kinds, their_kinds);
    }
    let of_shared = |gids: &[OfferedGid]| -> Vec<OfferedGid> {
        gids.iter().copied().filter(|gid| shared.contains(&gid.kind)).collect()
    };
    let (mine, theirs) = (of_shared(mine), of_shared(theirs));
    let routed = |gids: &[OfferedGid]| -> Vec<OfferedGid> {
        gids.iter().copied().filter(|gid| !is_link_local(&gid.bytes)).collect()
    };
    let (my_routed, their_routed) = (routed(&mine), routed(&theirs));
    if my_routed.is_empty() != their_routed.is_empty() {
        return Apart::LocalOnly { mine: my_routed.is_empty() };
    }
    let families = |gids: &[OfferedGid]| distinct(gids.iter().map(|gid| Family::of(&gid.bytes)));
    let (my_families, their_families) = (families(&my_routed), families(&their_routed));
    if my_families.iter().all(|family| !their_families.contains(family)) {
        return Apart::Families(my_families, their_families);
    }
    Apart::SubnetsV1
}

fn distinct<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = items.collect();
    all.sort();
    all.dedup();
    all
}

impl Apart {
    fn what(&self) -> String {
        fn list<T: ToString>(items: &[T]) -> String {
            items.iter().map(T::to_string).collect::<Vec<_>>().join(" and ")
        }
        match self {
            Apart::LinkLayers(mine, theirs) => format!("this side's speaks {mine}, the peer's {theirs}"),
            Apart::Partitions(mine, theirs) => {
                format!("this side's is in partition {mine:#06x}, the peer's in {theirs:#06x}")
            }
            Apart::Kinds(mine, theirs) => {
                format!("this side's GIDs are of {}, the peer's of {}", list(mine), list(theirs))
            }
            Apart::Families(mine, theirs) => {
                format!("this side's GIDs are {}, the peer's {}", list(mine), list(theirs))
            }
            Apart::LocalOnly { mine: true } => {
                "this side's GIDs are link-local, the peer's are not".to_owned()
            }
            Apart::LocalOnly { mine: false } => {
                "the peer's GIDs are link-local, this side's are not".to_owned()
            }
            Apart::SubnetsV1 => "RoCE v1 reaches no other subnet".to_owned(),
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Apart::LinkLayers(..) => {
                "set RINGWAY_IB_HCA so that both sides use ports of one kind, or RINGWAY_RDMA=off"
            }
            Apart::Partitions(..) => {
                "set RINGWAY_IB_PKEY so that both sides are in one partition, one of them as a full member"
            }
            Apart::Kinds(..) => {
                "unset RINGWAY_IB_GID_INDEX and RINGWAY_IB_ROCE_VERSION, or set them alike on both sides"
            }
            Apart::Families(..) => {
                "give both sides' interfaces addresses of one family, or unset RINGWAY_IB_GID_INDEX and \
                 RINGWAY_IB_ADDR_FAMILY"
            }
            Apart::LocalOnly { .. } => "give that side's interface an IP address",
            Apart::SubnetsV1 => "use RoCE v2 (unset RINGWAY_IB_ROCE_VERSION), or put both into one subnet",
        }
    }
}

fn named(rail: &OfferedRail) -> String {
    format!("{}:{}", rail.device, rail.port)
}

/// One line: equal reasons once, with the pairs that they hold for.
fn told(reasons: &[(String, Apart)]) -> String {
    let mut kinds: Vec<(&Apart, Vec<&str>)> = Vec::new();
    for (pair, why) in reasons {
        match kinds.iter_mut().find(|(known, _)| *known == why) {
            Some((_, pairs)) => pairs.push(pair),
            None => kinds.push((why, vec![pair])),
        }
    }
    let line = |(why, pairs): &(&Apart, Vec<&str>)| {
        format!("{}: {}: {}", pairs.join(", "), why.what(), why.remedy())
    };
    kinds.iter().map(line).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::seed::Seeded;
    use core::net::IpAddr;

    fn gid(index: u8, kind: GidKind, text: &str) -> OfferedGid {
        let (address, prefix_len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len.parse().unwrap())),
            None => (text, None),
        };
        let bytes = match address.parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        OfferedGid { index, kind, prefix_len, bytes }
    }

    fn rail(device: &str, gids: Vec<OfferedGid>) -> OfferedRail {
        let link_layer = match gids[0].kind {
            GidKind::InfiniBand => LinkLayer::InfiniBand,
            _ => LinkLayer::Ethernet,
        };
        OfferedRail {
            device: device.to_owned(),
            port: 1,
            link_layer,
            lid: if link_layer == LinkLayer::InfiniBand { 7 } else { 0 },
            subnet_prefix: (u128::from_be_bytes(gids[0].bytes) >> 64) as u64,
            mtu: Mtu::B4096,
            rate_mbps: 100_000,
            pkey: 0xffff,
            bootstrap_queue_pair: 17,
            bootstrap_queue_key: 3,
            gids,
        }
    }

    fn offer(who: u8, rails: Vec<OfferedRail>) -> RdmaOffer {
        RdmaOffer { identity: vec![who], rails }
    }

    fn v2(device: &str, addresses: &[&str]) -> OfferedRail {
        let gids = addresses.iter().enumerate().map(|(i, a)| gid(i as u8, GidKind::RoceV2, a));
        rail(device, gids.collect())
    }

    /// R1: the answers of both sides, checked to be mirror images of each other.
    fn both(a: &RdmaOffer, b: &RdmaOffer) -> Result<Vec<RailPair>, Disagreement> {
        match (agree(a, b), agree(b, a)) {
            (Ok(mine), Ok(theirs)) => {
                assert_eq!(mine.len(), theirs.len());
                for (x, y) in mine.iter().zip(&theirs) {
                    assert_eq!((x.mine, x.theirs), (y.theirs, y.mine));
                    assert_eq!((x.my_gid, x.their_gid), (y.their_gid, y.my_gid));
                    assert_eq!((x.global, x.mtu), (y.global, y.mtu));
                }
                Ok(mine)
            }
            (Err(mine), Err(_)) => Err(mine),
            (mine, theirs) => panic!("{mine:?} and {theirs:?}"),
        }
    }

    fn random_gid(random: &mut Seeded, index: u8) -> OfferedGid {
        let kind = if random.once_in(3) { GidKind::RoceV1 } else { GidKind::RoceV2 };
        let (host, net) = (random.below(6), random.below(2));
        let address = match random.below(4) {
            0 => format!("fd0{net}::{host}/64"),
            1 => format!("fe80::{host}"),
            2 => format!("10.{net}.0.{host}/24"),
            _ => format!("10.{net}.0.{host}/32"),
        };
        gid(index, kind, &address)
    }

    fn random_offer(random: &mut Seeded, who: u8) -> RdmaOffer {
        let rails = (0..=random.below(4).min(3)).map(|r| {
            let infiniband = random.once_in(4);
            let gids = match infiniband {
                true => vec![gid(0, GidKind::InfiniBand, &format!("fe8{}::{r}", random.below(2)))],
                false => (0..=random.below(5) as u8).map(|index| random_gid(random, index)).collect(),
            };
            let mut rail = rail(&format!("mlx5_{r}"), gids);
            rail.mtu = Mtu::ALL[random.below(5) as usize];
            rail.pkey = [0xffff, 0xffff, 0x8001, 0x7fff][random.below(4) as usize];
            rail
        });
        RdmaOffer { rails: rails.collect(), identity: vec![who, random.below(255) as u8] }
    }

    #[test]
    fn two_sides_find_mirror_images() {
        // R1, R2
        let mut agreed = 0;
        for seed in 0..20_000 {
            let mut random = Seeded::new(seed);
            let (a, b) = (random_offer(&mut random, 1), random_offer(&mut random, 2));
            let Ok(pairs) = both(&a, &b) else { continue };
            agreed += 1;
            assert!(!pairs.is_empty(), "seed {seed}");
            for (i, pair) in pairs.iter().enumerate() {
                let (x, y) = (&a.rails[pair.mine], &b.rails[pair.theirs]);
                assert_eq!(x.link_layer, y.link_layer, "seed {seed}");
                assert_eq!(Family::of(&pair.my_gid), Family::of(&pair.their_gid), "seed {seed}");
                assert_eq!(pair.mtu, x.mtu.min(y.mtu));
                let once = |p: &RailPair| p.mine != pair.mine && p.theirs != pair.theirs;
                assert!(pairs[..i].iter().all(once), "seed {seed}: a rail is taken twice");
                if x.link_layer == LinkLayer::Ethernet {
                    let kind = |rail: &OfferedRail, gid: &[u8; 16]| {
                        rail.gids.iter().filter(|g| g.bytes == *gid).map(|g| g.kind).collect::<Vec<_>>()
                    };
                    let (k, l) = (kind(x, &pair.my_gid), kind(y, &pair.their_gid));
                    assert!(k.iter().any(|k| l.contains(k)), "seed {seed}");
                    assert!(pair.global && pair.my_gid_index.is_some());
                }
            }
        }
        assert!(agreed > 5_000, "{agreed}");
    }

    #[test]
    fn two_devices_of_one_host_without_a_subnet_are_routed() {
        let one = offer(1, vec![v2("rxe0", &["fe80::ff:fe77:1", "10.77.0.1/32"])]);
        let two = offer(2, vec![v2("rxe1", &["fe80::ff:fe77:2", "10.77.0.2/32"])]);
        let pairs = both(&one, &two).unwrap();
        assert_eq!(pairs[0].my_gid_index, Some(1));
        assert_eq!(pairs[0].shown(&one, &two), "rxe0:1 10.77.0.1 to rxe1:1 10.77.0.2, MTU 4096");
        assert_eq!(pairs[0].remark(&one, &two), None);
    }

    #[test]
    fn the_shared_subnet_is_preferred_and_rails_may_cross() {
        let one = offer(1, vec![v2("a", &["10.1.0.1/24", "fd00::1/64"]), v2("b", &["10.2.0.1/24"])]);
        let two = offer(2, vec![v2("c", &["10.2.0.2/24"]), v2("d", &["10.9.0.2/24", "fd00::2/64"])]);
        let pairs = both(&one, &two).unwrap();
        let shown: Vec<String> = pairs.iter().map(|pair| pair.shown(&one, &two)).collect();
        assert_eq!(shown, ["a:1 fd00::1 to d:1 fd00::2, MTU 4096", "b:1 10.2.0.1 to c:1 10.2.0.2, MTU 4096"]);
    }

    #[test]
    fn infiniband_goes_by_lid_within_a_subnet_and_globally_between_two() {
        let ib = |who, prefix: &str, lid| {
            let mut rail = rail("mlx5_0", vec![gid(0, GidKind::InfiniBand, &format!("{prefix}::{who}"))]);
            rail.lid = lid;
            offer(who, vec![rail])
        };
        let near = both(&ib(1, "fe80", 3), &ib(2, "fe80", 9)).unwrap();
        assert_eq!((near[0].global, near[0].my_gid_index, near[0].their_lid), (false, None, 9));
        let far = both(&ib(1, "fe80", 3), &ib(2, "fec0", 9)).unwrap();
        assert_eq!((far[0].global, far[0].my_gid_index), (true, Some(0)));
    }

    #[test]
    fn link_local_is_the_last_resort() {
        let one = offer(1, vec![v2("a", &["fe80::1/64"]), v2("b", &["10.0.0.1/24", "fe80::2/64"])]);
        let two = offer(2, vec![v2("a", &["fe80::3/64"]), v2("b", &["10.0.0.3/24"])]);
        let pairs = both(&one, &two).unwrap();
        assert_eq!((pairs.len(), pairs[0].mine, pairs[0].theirs), (1, 1, 1), "only the surest way is taken");
        let local = |who, address| offer(who, vec![v2("a", &[address])]);
        assert_eq!(both(&local(1, "fe80::1/64"), &local(2, "fe80::2/64")).unwrap().len(), 1);
    }

    #[test]
    fn disagreements_say_why_once_and_what_to_do() {
        let v1 = |device: &str, address| rail(device, vec![gid(0, GidKind::RoceV1, address)]);
        let ib = rail("ib0", vec![gid(0, GidKind::InfiniBand, "fe80::1")]);
        let mut other_partition = v2("a", &["10.0.0.2/24"]);
        other_partition.pkey = 0x8001;
        let base = v2("a", &["10.0.0.1/24"]);
        let cases = [
            (base.clone(), v1("b", "10.0.0.2/24"), "GIDs are of RoCE v2, the peer's of RoCE v1", "GID_INDEX"),
            (base.clone(), v2("b", &["fd00::2/64"]), "GIDs are IPv4, the peer's IPv6", "ADDR_FAMILY"),
            (base.clone(), ib, "this side's speaks Ethernet, the peer's InfiniBand", "RINGWAY_IB_HCA"),
            (base.clone(), other_partition, "partition 0xffff, the peer's in 0x8001", "RINGWAY_IB_PKEY"),
            (base.clone(), v2("b", &["fe80::2/64"]), "the peer's GIDs are link-local", "an IP address"),
            (v1("a", "10.0.0.1/24"), v1("b", "10.1.0.1/24"), "reaches no other subnet", "use RoCE v2"),
        ];
        for (mine, theirs, what, remedy) in cases {
            let why = both(&offer(1, vec![mine]), &offer(2, vec![theirs])).unwrap_err().to_string();
            assert!(why.contains(what) && why.contains(remedy) && !why.contains('\n'), "{why}");
        }
        let two = offer(1, vec![base.clone(), v2("c", &["10.1.0.1/24"])]);
        let why = both(&two, &offer(2, vec![v1("b", "10.0.0.2/24")])).unwrap_err().to_string();
        assert!(why.starts_with("a:1 with b:1, c:1 with b:1: this side's GIDs"), "{why}");
    }

    #[test]
    fn different_mtus_are_remarked() {
        let one = offer(1, vec![v2("a", &["10.0.0.1/24"])]);
        let mut two = offer(2, vec![v2("b", &["10.0.0.2/24"])]);
        two.rails[0].mtu = Mtu::B1024;
        let pairs = both(&one, &two).unwrap();
        assert_eq!(pairs[0].mtu, Mtu::B1024);
        let remark = pairs[0].remark(&one, &two).unwrap();
        assert!(remark.contains("is 4096 here") && remark.contains("so 1024 is used"), "{remark}");
    }
}
