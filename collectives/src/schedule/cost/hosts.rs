//! The formulas for ranks on several hosts: links inside a host cost one thing, those between hosts another, and all ranks
//! of a host share its one interface.
//!
//! Ranks of a host stand together ([`Arrangement`]), so that of a ring or chain one hop per host leaves it, and of a tree,
//! or of doubling and halving, the rounds that reach farther than a host. In those all ranks of a host send at once, each
//! at its share of the interface.

use super::{Costs, Group, LinkCosts, Part, Shape, shape};
use crate::schedule::algorithm::{Algorithm, Collective};
use crate::schedule::any::AnySchedule;
use crate::schedule::arrangement::{Arrangement, among_hosts};

/// The parts of an algorithm that run one after another, each over links of one kind; their chunks are of one size.
pub(super) fn parts(
    collective: Collective,
    algorithm: Algorithm,
    group: &Arrangement,
    costs: &Costs,
) -> Option<Vec<Part>> {
    use {Algorithm as A, Collective as C};
    let ranks = group.ranks();
    if !group.has_hosts() {
        let link = if group.hosts() == 1 { costs.inside } else { costs.between };
        return Some(vec![Part::alone(shape(collective, algorithm, ranks)?, link)]);
    }
    let (lanes, hosts) = (group.most_per_host(), group.hosts());
    let (near, far) = (
        |shape| Part::alone(shape, costs.inside),
        // So many ranks of a host send at once, each at its share of the interfaces.
        |shape, at_once: u32| {
            let share = f64::from(group.rails().min(at_once)) / f64::from(at_once);
            Part { shape, costs: costs.between, share }
        },
    );
    let levels = |at_once: u32| -> Option<Vec<Part>> {
        let (inside, among) = (shape(collective, algorithm, lanes)?, shape(collective, algorithm, hosts)?);
        Some(vec![near(inside), far(among, at_once)])
    };
    Some(match (collective, algorithm) {
        (_, A::Ring | A::Chain) => {
            let shape = shape(collective, algorithm, ranks)?;
            vec![Part::alone(shape, once_per_host(ranks, hosts, costs))]
        }
        // One rank per host sends to another host.
        (C::AllReduce | C::Broadcast | C::Reduce, A::Tree | A::DoubleTree) => levels(1)?,
        (C::AllReduce, A::Doubling) | (C::Barrier, A::Dissemination) => levels(lanes)?,
        (C::AllReduce, A::Halving) => {
            let among = shape(collective, algorithm, hosts)?;
            let inside = shape(collective, algorithm, lanes)?;
            let all = among.parts * inside.parts;
            // Neighbours halve first: what is left after that goes between hosts, if rounds keep to hosts.
            let keeps = lanes.is_power_of_two() && group.fewest_per_host() == lanes;
            let left = if keeps { 1.0 / inside.parts } else { 1.0 };
            vec![near(inside.in_parts(all, 1.0)), far(among.in_parts(all, left), lanes)]
        }
        (_, A::Leaders) => {
            let among = among_hosts(collective, algorithm, hosts)?;
            if collective == C::AllGather && !group.is_in_order() {
                return None;
            }
            leaders(collective, shape(collective, among, hosts)?, (lanes, ranks), costs)?
        }
        (C::AllReduce, A::Lanes | A::LaneHalving | A::LaneTrees) => {
            let among_by = among_hosts(collective, algorithm, hosts)?;
            let among = shape(C::AllReduce, among_by, hosts)?;
            let fewest = group.fewest_per_host();
            let ring = Group::of(fewest).ring();
            let all = ring.parts * among.parts;
            // What is combined in an order of its own goes in a message of its own.
            let orders = f64::from(AnySchedule::new(C::AllReduce, among_by, hosts, 0)?.parts());
            let here = ring.in_parts(all, 1.0).in_messages(orders);
            let beyond = f64::from((lanes - fewest).div_ceil(fewest));
            let handed = Shape::even(1.0, beyond.min(1.0), beyond, beyond, 0.0).in_parts(all, 1.0);
            let handed = handed.in_messages(orders * ring.parts);
            vec![
                near(handed.reducing().then(here.reducing())),
                far(among.in_parts(all, 1.0 / ring.parts), fewest),
                near(here.then(handed)),
            ]
        }
        _ => vec![far(shape(collective, algorithm, ranks)?, lanes)],
    })
}

/// Up a tree, among hosts, and down, or what of that the collective has.
fn leaders(
    collective: Collective,
    among: Shape,
    (lanes, ranks): (u32, u32),
    costs: &Costs,
) -> Option<Vec<Part>> {
    let tree = Group::of(lanes).tree();
    let (near, far) = (|shape| Part::alone(shape, costs.inside), |shape| Part::alone(shape, costs.between));
    Some(match collective {
        // Ranks that lead none wait for most of the time.
        Collective::AllReduce => {
            vec![near(Shape { lasting: 1.0, ..tree.reducing() }), far(among), near(tree)]
        }
        Collective::Broadcast => vec![far(among), near(tree)],
        Collective::Reduce => vec![near(tree.reducing()), far(among)],
        Collective::Barrier => vec![near(tree), far(among), near(tree)],
        Collective::AllGather => {
            let all = f64::from(ranks);
            let gathered = Group::of(lanes).halves().in_parts(all, f64::from(lanes) / all);
            vec![near(gathered), far(among.in_parts(all, 1.0)), near(tree.in_parts(all, 1.0))]
        }
        _ => return None,
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
        eager_message_us: mean(inside.eager_message_us, between.eager_message_us),
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

    /// The same with each message cut into so many, which follow each other.
    fn in_messages(self, each: f64) -> Shape {
        Shape {
            largest: self.largest / each,
            messages: self.messages * each,
            port_messages: self.port_messages * each,
            ..self
        }
    }
}
