//! A machine with ranks placed on it, as a picture (SVG).
//!
//! Packages side by side; in each its NUMA nodes; in each node its cores, with the rank that each is given to, and the
//! cards and accelerators next to it. Below, the reasons rank by rank.

mod canvas;
mod colors;
mod devices;

use super::cpuset::CpuSet;
use super::machine::{Machine, NumaNode};
use super::place::Placement;
use super::plan::Plan;
use super::show::size;
use canvas::{Canvas, Rect, Type, lines, text_width};
use colors::Colors;

const WIDTH: f64 = 1280.0;
const MARGIN: f64 = 24.0;
const GAP: f64 = 16.0;
const PAD: f64 = 12.0;
const CORE_WIDTH: f64 = 30.0;
const CORE_HEIGHT: f64 = 20.0;
const CORE_GAP: f64 = 3.0;

impl Plan<'_> {
    /// The picture, as the text of an SVG file.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let mut canvas = Canvas::default();
        let parts = self.machine.parts();
        canvas.text(MARGIN, MARGIN + 10.0, Type::bold(18.0), &parts.name);
        canvas.text(MARGIN, MARGIN + 28.0, Type::faint(11.0), &summary(self.machine));
        let mut y = MARGIN + 40.0;
        y += self.legend(&mut canvas, y) + GAP;
        y += self.panels(&mut canvas, y);
        y += self.elsewhere(&mut canvas, y);
        y += self.reasons(&mut canvas, y + GAP) + GAP;
        canvas.finish(WIDTH, y + MARGIN)
    }

    fn legend(&self, canvas: &mut Canvas, y: f64) -> f64 {
        let first = self.placements.first().map_or(0, |one| one.rank.0);
        let entries = [
            (Colors.light(first), "a rank's CPUs"),
            (Colors.dark(first), "its progress thread's"),
            ("white", "no rank's"),
            ("#d9d9d9", "not allowed"),
        ];
        let mut x = MARGIN;
        for (fill, meaning) in entries {
            canvas.rect(Rect { x, y, width: 18.0, height: 12.0 }, fill, "#999", None);
            canvas.text(x + 24.0, y + 10.0, Type::faint(10.0), meaning);
            x += 40.0 + text_width(meaning, 10.0);
        }
        canvas.text(
            x,
            y + 10.0,
            Type::faint(10.0),
            "A number is a local rank. Each box is a core; gaps stand between cores that share no cache.",
        );
        12.0
    }

    /// Packages, two beside each other.
    fn panels(&self, canvas: &mut Canvas, y: f64) -> f64 {
        let parts = self.machine.parts();
        let mut panels: Vec<(String, CpuSet)> = parts
            .packages
            .iter()
            .map(|package| (format!("package {}", package.index), package.cpus.clone()))
            .collect();
        let named = parts.packages.iter().fold(CpuSet::new(), |sum, package| sum.or(&package.cpus));
        let rest = parts.cpus.minus(&named);
        if !rest.is_empty() {
            panels.push(("machine".to_owned(), rest));
        }
        let columns = panels.len().min(2);
        let width = (WIDTH - 2.0 * MARGIN - (columns as f64 - 1.0) * GAP) / columns as f64;
        let mut top = y;
        for row in panels.chunks(columns) {
            let mut inner = Canvas::default();
            let mut highest = 0.0_f64;
            for (column, (title, cpus)) in row.iter().enumerate() {
                let x = MARGIN + column as f64 * (width + GAP);
                highest = highest.max(self.package(&mut inner, title, cpus, Spot { x, y: top, width }));
            }
            for column in 0..row.len() {
                let x = MARGIN + column as f64 * (width + GAP);
                canvas.rect(Rect { x, y: top, width, height: highest }, "#f3f3f3", "#555", None);
            }
            canvas.add(inner);
            top += highest + GAP;
        }
        top - y
    }

    fn package(&self, canvas: &mut Canvas, title: &str, cpus: &CpuSet, at: Spot) -> f64 {
        canvas.text(at.x + PAD, at.y + 18.0, Type::bold(13.0), title);
        let inner = at.inside(PAD);
        let mut down = 28.0;
        let own = |node: &&NumaNode| !node.cpus.is_empty() && node.cpus.inside(cpus);
        let nodes: Vec<&NumaNode> = self.machine.parts().nodes.iter().filter(own).collect();
        let inside = nodes.iter().fold(CpuSet::new(), |sum, node| sum.or(&node.cpus));
        for node in nodes {
            down += self.node(canvas, &title_of(node), &node.cpus, Some(node.index), inner.below(down)) + PAD;
        }
        let rest = cpus.minus(&inside);
        if !rest.is_empty() {
            // A node wider than the package, whose devices are drawn in the first of its packages; or none.
            let around = self.machine.node_around(&rest);
            let title =
                around.map_or("NUMA not known".to_owned(), |node| format!("part of {}", title_of(node)));
            let first = around.filter(|node| node.cpus.first() == rest.first());
            down += self.node(canvas, &title, &rest, first.map(|node| node.index), inner.below(down)) + PAD;
        }
        down
    }

    /// A node's cores and devices.
    fn node(&self, canvas: &mut Canvas, title: &str, cpus: &CpuSet, node: Option<u32>, at: Spot) -> f64 {
        let inner = at.inside(PAD);
        let mut over = Canvas::default();
        over.text(inner.x, at.y + 16.0, Type::plain(11.0), title);
        let mut down = 24.0;
        down += self.cores(&mut over, cpus, inner.below(down)) + GAP / 2.0;
        if node.is_some() {
            let high = devices::draw(&mut over, self, node, inner.below(down));
            down += if high > 0.0 { high + PAD } else { 0.0 };
        }
        canvas.rect(Rect { x: at.x, y: at.y, width: at.width, height: down }, "white", "#999", None);
        canvas.add(over);
        down
    }

    /// Cores, those that share a cache together.
    fn cores(&self, canvas: &mut Canvas, cpus: &CpuSet, at: Spot) -> f64 {
        let step = CORE_WIDTH + CORE_GAP;
        let fit = ((at.width + CORE_GAP) / step).max(1.0) as usize;
        let (mut across, mut row) = (0.0, 0.0);
        for group in self.cache_groups(cpus) {
            let wide = group.len().min(fit) as f64 * step;
            if across > 0.0 && across + wide > at.width + CORE_GAP {
                (across, row) = (0.0, row + 1.0);
            }
            let begin = across;
            for core in &group {
                if across + CORE_WIDTH > at.width + 0.5 {
                    (across, row) = (0.0, row + 1.0);
                }
                let y = at.y + row * (CORE_HEIGHT + CORE_GAP);
                self.core(canvas, core, Rect { x: at.x + across, y, width: CORE_WIDTH, height: CORE_HEIGHT });
                across += step;
            }
            across = across.max(begin) + 2.0 * CORE_GAP;
        }
        (row + 1.0) * (CORE_HEIGHT + CORE_GAP)
    }

    /// The cores of these CPUs, apart where they share no cache that is smaller than all of them.
    fn cache_groups(&self, cpus: &CpuSet) -> Vec<Vec<CpuSet>> {
        let parts = self.machine.parts();
        let mut cores: Vec<CpuSet> = parts.cores.iter().map(|core| core.cpus.and(cpus)).collect();
        cores.retain(|core| !core.is_empty());
        let alike = |level: u8| {
            let caches = parts.caches.iter().filter(move |cache| cache.level == level);
            let inside = caches.filter(|cache| cache.cpus.inside(cpus)).map(|cache| &cache.cpus);
            inside.filter(|set| cores.iter().filter(|core| core.inside(set)).count() > 1).collect::<Vec<_>>()
        };
        let sets = (1..=5).rev().map(alike).find(|sets| sets.len() > 1).unwrap_or_default();
        let mut groups: Vec<Vec<CpuSet>> =
            sets.iter().map(|set| cores.iter().filter(|core| core.inside(set)).cloned().collect()).collect();
        let rest = cores.iter().filter(|core| !sets.iter().any(|set| core.inside(set))).cloned().collect();
        groups.push(rest);
        groups.retain(|group| !group.is_empty());
        groups
    }

    /// A core: one box where its hardware threads are all the same rank's, else one for each of them.
    fn core(&self, canvas: &mut Canvas, core: &CpuSet, at: Rect) {
        let mut owners: Vec<(Owner, CpuSet)> = Vec::new();
        for cpu in core.iter() {
            let owner = self.owner(cpu);
            let single = CpuSet::of([cpu]).unwrap_or_default();
            match owners.last_mut() {
                Some((last, cpus)) if *last == owner => *cpus = cpus.or(&single),
                _ => owners.push((owner, single)),
            }
        }
        let width = at.width / owners.len().max(1) as f64;
        for (number, (owner, cpus)) in owners.iter().enumerate() {
            let at = Rect { x: at.x + number as f64 * width, width, ..at };
            let (fill, ink, label, words) = owner.look();
            canvas.rect(at, fill, "#9a9a9a", Some(&format!("CPUs {cpus}, {words}")));
            let style = Type { color: ink, middle: true, ..Type::plain(10.0) };
            canvas.text(at.x + width / 2.0, at.y + 14.0, style, &label);
        }
    }

    fn owner(&self, cpu: u32) -> Owner {
        let first = |uses: &dyn Fn(&Placement) -> bool| {
            let mut ranks = self.placements.iter().filter(|one| uses(one)).map(|one| one.rank.0);
            ranks.next().map(|rank| (rank, ranks.next().is_some()))
        };
        if let Some((rank, shared)) = first(&|one| one.cpus.contains(cpu)) {
            Owner::Rank { rank, shared }
        } else if let Some((rank, _)) = first(&|one| one.progress.contains(cpu)) {
            Owner::Progress(rank)
        } else if self.machine.parts().allowed.contains(cpu) {
            Owner::Nobody
        } else {
            Owner::Forbidden
        }
    }

    /// Memory without CPUs, and devices next to no node that is known.
    fn elsewhere(&self, canvas: &mut Canvas, y: f64) -> f64 {
        let spot = Spot { x: MARGIN, y, width: WIDTH - 2.0 * MARGIN };
        let mut over = Canvas::default();
        let inner = spot.inside(PAD);
        let mut down = PAD;
        let far = self.machine.parts().nodes.iter().filter(|node| node.cpus.is_empty());
        for node in far {
            let title = format!("{}, without CPUs", title_of(node));
            over.text(inner.x, y + down + 10.0, Type::plain(11.0), &title);
            down += 18.0;
        }
        const HEAD: f64 = 18.0;
        let high = devices::draw(&mut over, self, None, inner.below(down + HEAD));
        if high > 0.0 {
            over.text(inner.x, y + down + 10.0, Type::plain(11.0), "next to no NUMA node that is known");
            down += HEAD + high;
        }
        if down == PAD {
            return 0.0;
        }
        let height = down + PAD / 2.0;
        canvas.rect(Rect { x: spot.x, y, width: spot.width, height }, "#f3f3f3", "#555", None);
        canvas.add(over);
        height
    }

    /// The reasons, rank by rank.
    fn reasons(&self, canvas: &mut Canvas, y: f64) -> f64 {
        const LINE: f64 = 14.0;
        const INDENT: f64 = 40.0;
        let mut down = 0.0;
        for one in self.placements {
            let chip = Rect { x: MARGIN, y: y + down, width: 26.0, height: 16.0 };
            canvas.rect(chip, Colors.light(one.rank.0), "#999", None);
            let style = Type { middle: true, ..Type::bold(10.0) };
            canvas.text(chip.x + 13.0, chip.y + 12.0, style, &one.rank.to_string());
            for line in lines(&one.reason(), 11.0, WIDTH - 2.0 * MARGIN - INDENT) {
                canvas.text(MARGIN + INDENT, y + down + 12.0, Type::plain(11.0), &line);
                down += LINE;
            }
            down += 8.0;
        }
        down
    }
}

/// Where something is drawn, and how wide it may be.
#[derive(Clone, Copy, Debug)]
struct Spot {
    x: f64,
    y: f64,
    width: f64,
}

impl Spot {
    fn below(self, down: f64) -> Spot {
        Spot { y: self.y + down, ..self }
    }

    fn inside(self, margin: f64) -> Spot {
        Spot { x: self.x + margin, width: self.width - 2.0 * margin, ..self }
    }
}

/// Whose a hardware thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Rank { rank: u32, shared: bool },
    Progress(u32),
    Nobody,
    Forbidden,
}

impl Owner {
    /// Fill, ink, label, and words.
    fn look(self) -> (&'static str, &'static str, String, String) {
        match self {
            Owner::Rank { rank, shared: false } => {
                (Colors.light(rank), "#222", rank.to_string(), format!("rank {rank}"))
            }
            Owner::Rank { rank, shared: true } => {
                (Colors.light(rank), "#222", format!("{rank}+"), format!("rank {rank} and others"))
            }
            Owner::Progress(rank) => {
                (Colors.dark(rank), "white", rank.to_string(), format!("progress thread of rank {rank}"))
            }
            Owner::Nobody => ("white", "#222", String::new(), "no rank's".to_owned()),
            Owner::Forbidden => ("#d9d9d9", "#222", String::new(), "not allowed".to_owned()),
        }
    }
}

fn title_of(node: &NumaNode) -> String {
    match node.memory_bytes {
        0 => format!("NUMA node {}", node.index),
        bytes => format!("NUMA node {}, {}", node.index, size(bytes)),
    }
}

/// The machine in one line.
fn summary(machine: &Machine) -> String {
    let parts = machine.parts();
    let several =
        |number: usize, one: &str, more: &str| format!("{number} {}", if number == 1 { one } else { more });
    let mut words = vec![
        several(parts.packages.len(), "package", "packages"),
        several(parts.nodes.len(), "NUMA node", "NUMA nodes"),
        several(parts.cores.len(), "core", "cores"),
        several(parts.cpus.len(), "CPU", "CPUs"),
    ];
    if parts.allowed != parts.cpus {
        words.push(format!("of which {} may be used", parts.allowed));
    }
    words.join(", ")
}
