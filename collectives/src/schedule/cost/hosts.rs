//! The formulas for ranks on several hosts: links inside a host cost one thing, those between hosts another, and all ranks
//! of a host share its one interface.
//!
//! Ranks of a host stand together ([`Arrangement`]), so that of a ring or chain one hop per host leaves it, and of a tree,
//! or of doubling and halving, the rounds that reach farther than a host. In those all ranks of a host send at once, each
//! at its share of the interface.

use super::{Costs, Group, LinkCosts, Shape, shape};
use crate::schedule::algorithm::{Algorithm, Collective};
use crate::schedule::arrangement::Arrangement;

/// The parts of an algorithm that run one after another, each over links of one kind; their chunks are of one size.
pub(super) fn parts(
    collective: Collective,
    algorithm: Algorithm,
    group: &Arrangement,
    costs: &Costs,
) -> Option<Vec<(Shape, LinkCosts)>> {
    use {Algorithm as A, Collective as C};
    let ranks = group.ranks();
    if !group.has_hosts() {
        let one_host = group.ranks_per_host() >= ranks;
        return Some(vec![(
            shape(collective, algorithm, ranks)?,
            if one_host { costs.inside } else { costs.between },
        )]);
    }
    let (lanes, hosts) = (group.ranks_per_host(), group.hosts());
    let (inside, between) = (costs.inside, costs.between);
    let shared = LinkCosts { bytes_per_us: between.bytes_per_us / f64::from(lanes), ..between };
    let levels = |far: LinkCosts| -> Option<Vec<(Shape, LinkCosts)>> {
        Some(vec![
            (shape(collective, algorithm, lanes)?, inside),
            (shape(collective, algorithm, hosts)?, far),
        ])
    };
    Some(match (collective, algorithm) {
        (_, A::Ring | A::Chain) => {
            vec![(shape(collective, algorithm, ranks)?, once_per_host(ranks, hosts, costs))]
        }
        // One rank per host sends to another host.
        (C::AllReduce | C::Broadcast | C::Reduce, A::Tree) => levels(between)?,
        (C::AllReduce, A::Doubling) | (C::Barrier, A::Dissemination) => levels(shared)?,
        (C::AllReduce, A::Halving) => {
            // What is left after halving between hosts is halved inside.
            let far = shape(collective, algorithm, hosts)?;
            let near = shape(collective, algorithm, lanes)?;
            let all = far.parts * near.parts;
            vec![(far.in_parts(all, 1.0), shared), (near.in_parts(all, 1.0 / far.parts), inside)]
        }
        (C::AllReduce, A::Leaders) => {
            let tree = Group::of(lanes).tree();
            let among = shape(C::AllReduce, A::Doubling, hosts)?;
            vec![(tree.reducing(), inside), (among, between), (tree, inside)]
        }
        (C::AllReduce, A::Lanes) if ranks.is_multiple_of(lanes) => {
            let ring = Group::of(lanes).ring();
            let among = shape(C::AllReduce, A::Ring, hosts)?;
            let all = ring.parts * among.parts;
            let here = ring.in_parts(all, 1.0);
            vec![(here.reducing(), inside), (among.in_parts(all, 1.0 / ring.parts), shared), (here, inside)]
        }
        _ => vec![(shape(collective, algorithm, ranks)?, shared)],
    })
}

/// A hop of a ring of which one per host leaves it: as long as the average, as wide as the narrowest.
fn once_per_host(ranks: u32, hosts: u32, costs: &Costs) -> LinkCosts {
    let far = f64::from(hosts) / f64::from(ranks);
    let mean = |inside: f64, between: f64| inside + (between - inside) * far;
    let Costs { inside, between } = costs;
    LinkCosts {
        latency_us: mean(inside.latency_us, between.latency_us),
        message_us: mean(inside.message_us, between.message_us),
        bytes_per_us: inside.bytes_per_us.min(between.bytes_per_us),
        ..*inside
    }
}

impl Shape {
    /// The same over `share` of a buffer that is cut into `parts`.
    fn in_parts(self, parts: f64, share: f64) -> Shape {
        let chunks = share * parts / self.parts;
        Shape {
            parts,
            largest: self.largest * chunks,
            sent: self.sent * chunks,
            combined: self.combined * chunks,
            port_sent: self.port_sent * chunks,
            core_combined: self.core_combined * chunks,
            ..self
        }
    }
}
