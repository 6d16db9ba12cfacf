//! The rails that two sides have in common: found by each from the two offers alone.
//!
//! Every pair of one side's rail and the other's is tried. Pairs are ranked by how surely their GIDs reach each other,
//! then by how high both sides rank them; each rail is taken once, and only pairs of the surest way that exists are
//! taken, since a message striped over a doubtful rail is a doubtful message. What is left equal is decided in the
//! order of the side whose offer is the lower in bytes, so that both decide alike (R1).

use super::gid::{Family, is_link_local, share_subnet};
use super::model::{GidKind, LinkLayer, Mtu};
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
