//! Which device each node runs on.
//!
//! Nodes that must be together make a group: those that a `_class` attribute of `loc:@NAME` binds, and readers and
//! writers of a resource or of a reference with what they read, and a loop's `Merge` with its `Enter` and
//! `NextIteration`. A group goes
//!
//! 1. where its nodes already are, when the graph was extended;
//! 2. to the one device that all its nodes allow;
//! 3. near its inputs: where most values come from that its first node in topological order reads;
//! 4. else to the session's default device, or the first that is allowed.
//!
//! A node without inputs or state (a constant, a placeholder) that nothing binds goes where most of its readers are.
//!
//! - **P1** What a node asks for by job, task, type and index is what it gets, or the call fails; with soft placement a
//!   type or index that no device of the task has is let go. A reader or writer of a resource or of a reference is
//!   where that is, whatever it asks for itself, as in TensorFlow's placer.
//! - **P2** Nodes of one group are on one device.
//! - **P3** A node keeps its device when the graph is extended.

use std::collections::HashMap;

use ringway_proto::tensorflow::DataType;
use ringway_proto::tensorflow::attr_value::Value;

use super::devices::Devices;
use super::error::MasterError;
use crate::core::graph::{DeviceName, Graph, Node, NodeId, Type};

/// Begins a string of `_class` that binds to a node.
const BINDS: &[u8] = b"loc:@";
/// Operations that call functions: what they are handed may lie on several devices.
const CALLS: [&str; 7] = [
    "PartitionedCall",
    "StatefulPartitionedCall",
    "If",
    "StatelessIf",
    "While",
    "StatelessWhile",
    "RemoteCall",
];
/// Operations through which a loop's iteration begins.
const ENTRIES: [&str; 4] = ["Enter", "RefEnter", "NextIteration", "RefNextIteration"];

/// A device for every node: places in [`Devices::all`]. `before` are those of nodes that were placed earlier.
///
/// # Errors
/// [`MasterError::NoDevice`] and [`MasterError::Colocation`].
pub fn place(
    graph: &Graph,
    devices: &Devices,
    soft: bool,
    before: &[usize],
) -> Result<Vec<usize>, MasterError> {
    let mut groups = Groups::of(graph);
    let mut choices = choices(graph, devices, soft, before, &mut groups)?;
    let order = order(graph);
    for &at in &order {
        let root = groups.root(at);
        if choices[root].device.is_none() && !(groups.alone[root] && is_free(&graph.nodes()[at])) {
            let node = &graph.nodes()[at];
            let holds = |kind: &Type| kind.element == DataType::DtResource;
            // A function that is handed resources runs where they are.
            let resources = node.input_types.iter().any(holds);
            let inputs =
                node.inputs.iter().zip(&node.input_types).filter(|(_, kind)| !resources || holds(kind));
            let near = inputs.filter_map(|(input, _)| choices[groups.root(input.node.at())].device);
            choices[root].device = Some(choices[root].pick(near.collect(), devices));
        }
    }
    let mut readers: HashMap<usize, Vec<usize>> = HashMap::new();
    for (at, node) in graph.nodes().iter().enumerate() {
        let Some(device) = choices[groups.root(at)].device else { continue };
        for input in &node.inputs {
            let from = groups.root(input.node.at());
            if choices[from].device.is_none() {
                readers.entry(from).or_default().push(device);
            }
        }
    }
    for at in order {
        let root = groups.root(at);
        if choices[root].device.is_none() {
            let near = readers.remove(&root).unwrap_or_default();
            choices[root].device = Some(choices[root].pick(near, devices));
        }
    }
    let device = |at| choices[groups.root(at)].device.unwrap_or(devices.default_device());
    Ok((0..graph.nodes().len()).map(device).collect())
}

/// Nothing but its readers says where it goes.
fn is_free(node: &Node) -> bool {
    node.inputs.is_empty() && !node.stateful
}

/// What is known of where a group may go; kept at its root.
#[derive(Clone, Default)]
struct Choice {
    asked: DeviceName,
    allowed: Vec<usize>,
    device: Option<usize>,
}

impl Choice {
    /// The most frequent of `near` that is allowed, the earlier of equals; else the default device, or the first.
    fn pick(&self, near: Vec<usize>, devices: &Devices) -> usize {
        let mut counted: Vec<(usize, usize)> = Vec::new();
        for device in near.into_iter().filter(|device| self.allowed.contains(device)) {
            match counted.iter_mut().find(|(known, _)| *known == device) {
                Some((_, count)) => *count += 1,
                None => counted.push((device, 1)),
            }
        }
        // The last of equals wins `max_by_key`, so the list is gone through from its end.
        let most = counted.iter().rev().max_by_key(|(_, count)| *count).map(|(device, _)| *device);
        let default = devices.default_device();
        most.or_else(|| self.allowed.contains(&default).then_some(default))
            .or_else(|| self.allowed.iter().copied().find(|at| is_cpu(devices, *at)))
            .or_else(|| self.allowed.first().copied())
            .unwrap_or(default)
    }
}

fn is_cpu(devices: &Devices, at: usize) -> bool {
    devices.get(at).name.kind.as_deref() == Some("CPU")
}

/// Merges what the nodes of each group ask for, and finds the devices that are so.
fn choices(
    graph: &Graph,
    devices: &Devices,
    soft: bool,
    before: &[usize],
    groups: &mut Groups,
) -> Result<Vec<Choice>, MasterError> {
    let mut choices = vec![Choice::default(); graph.nodes().len()];
    let (followers, owners): (Vec<_>, Vec<_>) =
        graph.nodes().iter().enumerate().partition(|(_, node)| held_inputs(graph, node).next().is_some());
    let owners = owners.into_iter().map(|owner| (owner, false));
    for ((at, node), follows) in owners.chain(followers.into_iter().map(|follower| (follower, true))) {
        let root = groups.root(at);
        let choice = &mut choices[root];
        match (before.get(at), choice.device) {
            (Some(device), _) => choice.device = choice.device.or(Some(*device)),
            (None, Some(device)) => {
                // What joins nodes that were placed earlier cannot ask for another place; followers do not choose.
                let there = &devices.get(device).name;
                let asked = if soft { node.device.task_part() } else { node.device.clone() };
                if !follows && !asked.covers(there) {
                    let conflict = format!("'{asked}' is asked for and the other is on '{there}'");
                    return Err(apart(node, &graph.nodes()[root], conflict));
                }
            }
            (None, None) => match choice.asked.merge(&node.device) {
                Ok(merged) => choice.asked = merged,
                // What it reads or writes is elsewhere already.
                Err(_) if follows => {}
                // What is let go is the later wish, for the type and index alone.
                Err(conflict) => match choice.asked.task_part().merge(&node.device.task_part()) {
                    Ok(task) if soft => {
                        let DeviceName { kind, index, .. } = choice.asked.clone();
                        choice.asked = DeviceName { kind, index, ..task };
                    }
                    _ => return Err(apart(node, &graph.nodes()[root], conflict.to_string())),
                },
            },
        }
    }
    // Most nodes ask for one of few names.
    let mut known: HashMap<DeviceName, Vec<usize>> = HashMap::new();
    for (at, node) in graph.nodes().iter().enumerate() {
        let root = groups.root(at);
        if !choices[root].allowed.is_empty() {
            continue;
        }
        let asked = choices[root].asked.clone();
        let allowed = known.entry(asked).or_insert_with_key(|asked| {
            let exact: Vec<usize> = devices.matching(asked).collect();
            let task = asked.task_part();
            if exact.is_empty() && soft { devices.matching(&task).collect() } else { exact }
        });
        let choice = &mut choices[root];
        if allowed.is_empty() && choice.device.is_none() {
            let asker = (0..graph.nodes().len()).find(|other| {
                groups.root(*other) == root && graph.nodes()[*other].device != DeviceName::default()
            });
            let asker = asker.map_or(node, |other| &graph.nodes()[other]);
            return Err(MasterError::NoDevice {
                node: asker.name().to_owned(),
                asked: asker.def.device.clone(),
                available: devices.names(),
            });
        }
        if let (None, [only]) = (choice.device, allowed.as_slice()) {
            choice.device = Some(*only);
        }
        choice.allowed.clone_from(allowed);
    }
    Ok(choices)
}

fn apart(node: &Node, other: &Node, conflict: String) -> MasterError {
    MasterError::Colocation { node: node.name().to_owned(), other: other.name().to_owned(), conflict }
}

/// The nodes whose resources or references this one is handed, unless it calls a function with them.
fn held_inputs<'g>(graph: &Graph, node: &'g Node) -> impl Iterator<Item = NodeId> + use<'g> {
    let calls = CALLS.contains(&node.op()) || graph.library().signature(node.op()).is_some();
    let inputs = node.inputs.iter().zip(&node.input_types);
    inputs
        .filter(move |(_, kind)| !calls && (kind.is_ref || kind.element == DataType::DtResource))
        .map(|(input, _)| input.node)
}

/// Nodes that are together, as a forest of parents.
struct Groups {
    parents: Vec<u32>,
    /// By root: the group is one node.
    alone: Vec<bool>,
}

impl Groups {
    fn of(graph: &Graph) -> Groups {
        let count = graph.nodes().len();
        let mut groups = Groups { parents: (0..count as u32).collect(), alone: vec![true; count] };
        // Nodes may be bound to a name that no node has; then they are with each other.
        let mut by_name: HashMap<&[u8], usize> = HashMap::new();
        for (at, node) in graph.nodes().iter().enumerate() {
            if let Some(Value::List(classes)) = node.attrs.get("_class") {
                for name in classes.s.iter().filter_map(|class| class.strip_prefix(BINDS)) {
                    let named = std::str::from_utf8(name).ok().and_then(|name| graph.find(name));
                    let with = named.map_or_else(|| *by_name.entry(name).or_insert(at), NodeId::at);
                    groups.join(with, at);
                }
            }
            if matches!(node.op(), "Merge" | "RefMerge") {
                // Both ways into a loop's iteration must be on one task: a value that never comes would be waited for.
                for input in &node.inputs {
                    if ENTRIES.contains(&graph.node(input.node).op()) {
                        groups.join(input.node.at(), at);
                    }
                }
            }
            for from in held_inputs(graph, node) {
                groups.join(from.at(), at);
            }
        }
        groups
    }

    fn root(&mut self, at: usize) -> usize {
        let mut root = at;
        while self.parents[root] as usize != root {
            root = self.parents[root] as usize;
        }
        let mut step = at;
        while self.parents[step] as usize != root {
            step = std::mem::replace(&mut self.parents[step], root as u32) as usize;
        }
        root
    }

    /// The root that came first stays, so that messages name the node that the user wrote first.
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        if a != b {
            self.parents[a.max(b)] = a.min(b) as u32;
            self.alone[a.min(b)] = false;
        }
    }
}

/// Nodes behind what they read, but for edges that begin the next iteration of a loop.
pub(super) fn order(graph: &Graph) -> Vec<usize> {
    let count = graph.nodes().len();
    let mut readers: Vec<Vec<u32>> = vec![Vec::new(); count];
    let mut waits_for = vec![0_u32; count];
    for (at, node) in graph.nodes().iter().enumerate() {
        for before in node.inputs.iter().map(|input| input.node).chain(node.control.iter().copied()) {
            if !matches!(graph.node(before).op(), "NextIteration" | "RefNextIteration") {
                readers[before.at()].push(at as u32);
                waits_for[at] += 1;
            }
        }
    }
    let mut order: Vec<usize> = (0..count).filter(|at| waits_for[*at] == 0).collect();
    let mut next = 0;
    while let Some(at) = order.get(next).copied() {
        next += 1;
        for &reader in &readers[at] {
            waits_for[reader as usize] -= 1;
            if waits_for[reader as usize] == 0 {
                order.push(reader as usize);
            }
        }
    }
    order
}
