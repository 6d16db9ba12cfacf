//! Cards and accelerators: a box each, in a frame where several hang below one PCI switch.

use std::collections::BTreeMap;

use super::Spot;
use super::canvas::{Canvas, Rect, Type, fitting};
use super::colors::Colors;
use crate::model::machine::{LinkState, Machine};
use crate::model::pci::PciAddress;
use crate::model::plan::Plan;

const BOX_WIDTH: f64 = 126.0;
const BOX_HEIGHT: f64 = 36.0;
const GAP: f64 = 8.0;
const FRAME_HEAD: f64 = 16.0;
const TAG: f64 = 15.0;

/// A box: what it says, and whose it is.
struct Card {
    title: String,
    detail: String,
    gpu: bool,
    down: bool,
    ranks: Vec<u32>,
}

/// Draws the devices next to a NUMA node (or to none that is known) from the spot on, and answers how high they are.
pub(super) fn draw(canvas: &mut Canvas, plan: &Plan<'_>, node: Option<u32>, at: Spot) -> f64 {
    let Spot { x, y, width } = at;
    let (mut across, mut down, mut highest) = (0.0, 0.0, 0.0_f64);
    for group in groups(plan, node) {
        let framed = group.len() > 1;
        let margin = if framed { GAP } else { 0.0 };
        let room = ((width - 2.0 * margin + GAP) / (BOX_WIDTH + GAP)).max(1.0) as usize;
        let columns = room.min(group.len());
        let rows = group.len().div_ceil(columns);
        let inner_width = columns as f64 * (BOX_WIDTH + GAP) - GAP;
        let inner_height = rows as f64 * (BOX_HEIGHT + GAP) - GAP;
        let head = if framed { FRAME_HEAD } else { 0.0 };
        let (wide, high) = (inner_width + 2.0 * margin, inner_height + margin + head);
        if across > 0.0 && across + wide > width {
            (across, down, highest) = (0.0, down + highest + GAP, 0.0);
        }
        let (left, top) = (x + across, y + down);
        if framed {
            canvas.rect(Rect { x: left, y: top, width: wide, height: high }, "none", "#8a8a8a", None);
            canvas.text(left + GAP, top + 11.5, Type::faint(9.0), "PCI switch");
        }
        for (number, card) in group.iter().enumerate() {
            let (column, row) = ((number % columns) as f64, (number / columns) as f64);
            let x = left + margin + column * (BOX_WIDTH + GAP);
            let y = top + head + row * (BOX_HEIGHT + GAP);
            draw_card(canvas, card, x, y);
        }
        across += wide + GAP;
        highest = highest.max(high);
    }
    down + highest
}

fn draw_card(canvas: &mut Canvas, card: &Card, x: f64, y: f64) {
    let fill = match card.ranks.as_slice() {
        [only] => Colors.light(*only),
        _ if card.down => "#e4e4e4",
        _ => "#fafafa",
    };
    let at = Rect { x, y, width: BOX_WIDTH, height: BOX_HEIGHT };
    let stroke = if card.gpu { "#222" } else { "#777" };
    canvas.rect(at, fill, stroke, Some(&format!("{}, {}", card.title, card.detail)));
    let tags = card.ranks.len().min(3) as f64 * (TAG + 2.0);
    let style = if card.gpu { Type::bold(11.0) } else { Type::plain(11.0) };
    canvas.text(x + 6.0, y + 15.0, style, &fitting(&card.title, 11.0, BOX_WIDTH - 12.0 - tags));
    canvas.text(x + 6.0, y + 29.0, Type::faint(9.0), &fitting(&card.detail, 9.0, BOX_WIDTH - 10.0));
    for (number, &rank) in card.ranks.iter().take(3).enumerate() {
        let tag = Rect {
            x: x + BOX_WIDTH - (TAG + 2.0) * (number as f64 + 1.0),
            y: y + 3.0,
            width: TAG,
            height: TAG - 1.0,
        };
        canvas.rect(tag, Colors.dark(rank), Colors.dark(rank), None);
        let (middle, base) = (tag.x + TAG / 2.0, tag.y + 10.5);
        let more = number == 2 && card.ranks.len() > 3;
        let label = if more { "+".to_owned() } else { rank.to_string() };
        canvas.text(middle, base, Type { color: "white", middle: true, ..Type::bold(9.0) }, &label);
    }
}

/// The boxes of one NUMA node, those of one switch together.
fn groups(plan: &Plan<'_>, at: Option<u32>) -> Vec<Vec<Card>> {
    let parts = plan.machine.parts();
    // By host bridge, then by the switch or port below it.
    let mut switches: BTreeMap<((u32, u8), PciAddress), Vec<Card>> = BTreeMap::new();
    for device in parts.pci.iter().filter(|device| device.node == at) {
        let Some(card) = card(plan, device.address) else { continue };
        // What hangs off the host bridge itself shares no switch.
        let switch = device.bridges.first().copied().unwrap_or(device.address);
        switches.entry((device.root, switch)).or_default().push(card);
    }
    let mut groups: Vec<Vec<Card>> = switches.into_values().collect();
    groups.iter_mut().for_each(|cards| cards.sort_by_key(|card| !card.gpu));
    // Frames first, then what stands alone.
    groups.sort_by_key(|cards| cards.len() < 2);
    groups.extend(without_pci(plan, at).into_iter().map(|card| vec![card]));
    groups
}

/// Interfaces and RDMA devices that no PCI device stands behind: those that carry data or that a rank uses.
fn without_pci(plan: &Plan<'_>, at: Option<u32>) -> Vec<Card> {
    let parts = plan.machine.parts();
    let mut cards = Vec::new();
    for nic in parts.nics.iter().filter(|nic| nic.pci.is_none() && nic.node == at) {
        let ranks = users(plan, |one| one.nics.contains(&nic.name));
        if nic.kind.is_real() || !ranks.is_empty() {
            let detail = crate::model::export::kind_word(nic.kind).to_owned();
            let down = nic.state == LinkState::Down;
            cards.push(Card { title: nic.name.clone(), detail, gpu: false, down, ranks });
        }
    }
    for device in parts.infiniband.iter().filter(|device| device.pci.is_none() && device.node == at) {
        let ranks = users(plan, |one| one.infiniband.contains(&device.name));
        let detail = "software RDMA".to_owned();
        cards.push(Card { title: device.name.clone(), detail, gpu: false, down: false, ranks });
    }
    cards
}

/// The box of a PCI device; none when it is neither an accelerator nor a network card that the system knows.
fn card(plan: &Plan<'_>, address: PciAddress) -> Option<Card> {
    let parts = plan.machine.parts();
    if let Some(gpu) = parts.gpus.iter().find(|gpu| gpu.pci == address) {
        let ranks = users(plan, |one| one.device == Some(address));
        let title = if gpu.name == address.to_string() { "accelerator".to_owned() } else { gpu.name.clone() };
        return Some(Card { title, detail: address.to_string(), gpu: true, down: false, ranks });
    }
    let rdma = parts.infiniband.iter().find(|device| device.pci == Some(address));
    let nic = parts.nics.iter().find(|nic| nic.pci == Some(address));
    let names: Vec<&str> =
        rdma.map(|d| d.name.as_str()).into_iter().chain(nic.map(|n| n.name.as_str())).collect();
    if names.is_empty() {
        return None;
    }
    let ranks = users(plan, |one| {
        rdma.is_some_and(|device| one.infiniband.contains(&device.name))
            || nic.is_some_and(|nic| one.nics.contains(&nic.name))
    });
    let detail = match speed_gbps(plan.machine, address) {
        Some(speed) => format!("{address}  {speed} Gb/s"),
        None => address.to_string(),
    };
    let port_down =
        rdma.is_some_and(|d| !d.ports.is_empty() && d.ports.iter().all(|p| p.state == LinkState::Down));
    let down = port_down || (rdma.is_none() && nic.is_some_and(|nic| nic.state == LinkState::Down));
    let detail = if down { format!("{detail}, down") } else { detail };
    Some(Card { title: names.join(" "), detail, gpu: false, down, ranks })
}

fn speed_gbps(machine: &Machine, address: PciAddress) -> Option<u32> {
    let parts = machine.parts();
    let ports =
        parts.infiniband.iter().filter(|device| device.pci == Some(address)).flat_map(|device| &device.ports);
    let rdma = ports.filter_map(|port| port.rate_gbps).max();
    let nic = parts.nics.iter().filter(|nic| nic.pci == Some(address)).filter_map(|nic| nic.speed_mbps).max();
    rdma.or(nic.map(|mbps| mbps / 1000)).filter(|speed| *speed > 0)
}

fn users(plan: &Plan<'_>, uses: impl Fn(&crate::model::place::Placement) -> bool) -> Vec<u32> {
    plan.placements.iter().filter(|one| uses(one)).map(|one| one.rank.0).collect()
}
