//! One graph per task, with a `_Send` and a `_Recv` for everything that crosses from one task to another.
//!
//! - **S1** A value goes to a task once, however many nodes there read it; only what is read through a reference after
//!   other nodes of the reader's task goes for each reader.
//! - **S2** An edge for control crosses as a constant without elements that waits for its source; the reader waits for
//!   an `Identity` of it, so that a dead source makes a dead reader.
//! - **S3** Keys are TensorFlow's: `send_device;incarnation;recv_device;tensor_name;0:0`, and `tensor_name` is unique in
//!   the run.
//! - **S4** The parts together compute what the graph computes (`tests.rs` joins them again and compares).

use std::collections::HashMap;
use std::sync::Arc;

use ringway_proto::tensorflow::attr_value::Value;
use ringway_proto::tensorflow::{DataType, GraphDef, NodeDef, VersionDef};

use super::cells::{Cell, Cells, Link, empty_constant, node};
use super::devices::Devices;
use super::error::MasterError;
use super::frames::Frames;
use super::prune::Wanted;
use crate::core::graph::{Graph, Type};

/// What one task does in a run.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Its task: a place in [`Devices::tasks`].
    pub task: usize,
    /// Its nodes.
    pub graph: GraphDef,
    /// What it is given: place of the feed, and the key.
    pub feeds: Vec<(usize, Arc<str>)>,
    /// What it gives back: the key, and for which fetches.
    pub fetches: Vec<(Arc<str>, Vec<usize>)>,
}

/// Takes a run apart by task.
///
/// # Errors
/// [`MasterError`] for loops that are not sound.
pub fn partition(
    graph: &Graph,
    versions: Option<&VersionDef>,
    placement: &[usize],
    devices: &Devices,
    wanted: &Wanted,
) -> Result<Vec<Part>, MasterError> {
    let mut cells = Cells::new(graph, placement, devices, wanted);
    let mut frames = Frames::find(&cells)?;
    if frames.any() {
        frames.add_control_loops(&mut cells)?;
    }
    let mut cut =
        Cut { parts: HashMap::new(), received: HashMap::new(), frames, versions: versions.cloned() };
    for at in 0..cells.all.len() {
        cut.place(&mut cells, at);
    }
    for (feed, task, key) in std::mem::take(&mut cells.feeds) {
        cut.part(task).feeds.push((feed, key.into()));
    }
    for (fetches, task, key) in std::mem::take(&mut cells.fetches) {
        cut.part(task).fetches.push((key.into(), fetches));
    }
    let library = graph.library();
    let mut parts: Vec<Part> = cut.parts.into_values().collect();
    for part in &mut parts {
        // Attributes may name functions as well; a graph without functions has an empty library.
        part.graph.library = Some(library.to_def());
    }
    parts.sort_by_key(|part| part.task);
    Ok(parts)
}

/// What is being cut.
struct Cut {
    parts: HashMap<usize, Part>,
    /// What came to a task already: (cell, output or none for control, task) to the input that names it.
    received: HashMap<(usize, Option<u32>, usize), String>,
    frames: Frames,
    versions: Option<VersionDef>,
}

impl Cut {
    fn part(&mut self, task: usize) -> &mut Part {
        let versions = &self.versions;
        self.parts.entry(task).or_insert_with(|| Part {
            task,
            graph: GraphDef { versions: versions.clone(), ..GraphDef::default() },
            ..Part::default()
        })
    }

    fn add(&mut self, task: usize, device: usize, mut def: NodeDef, devices: &Devices) {
        def.device = devices.get(device).full.to_string();
        self.part(task).graph.node.push(def);
    }

    /// Puts one cell into the part of its task.
    fn place(&mut self, cells: &mut Cells<'_>, at: usize) {
        let task = cells.task(at);
        let Cell { inputs, control, .. } = &mut cells.all[at];
        let (inputs, control) = (std::mem::take(inputs), std::mem::take(control));
        let local: Vec<String> = control
            .iter()
            .filter(|before| cells.task(**before) == task)
            .map(|before| format!("^{}", cells.all[*before].def.name))
            .collect();
        let mut names = Vec::with_capacity(inputs.len() + control.len());
        for (from, output) in inputs {
            names.push(if cells.task(from) == task {
                input_name(&cells.all[from].def.name, output)
            } else {
                self.receive(cells, at, from, output, &local)
            });
        }
        for &from in &control {
            if cells.task(from) != task {
                names.push(self.receive_control(cells, at, from));
            }
        }
        names.extend(local);
        let mut def = std::mem::take(&mut cells.all[at].def);
        // Others still name this cell.
        cells.all[at].def.name.clone_from(&def.name);
        def.input = names;
        self.add(task, cells.all[at].device, def, cells.devices);
    }

    /// Makes an output of another task's cell come to the task of `to`. The input that names it.
    fn receive(
        &mut self,
        cells: &mut Cells<'_>,
        to: usize,
        from: usize,
        output: u32,
        local: &[String],
    ) -> String {
        let task = cells.task(to);
        let kind = cells.all[from].outputs[output as usize];
        // A reference is read when it is sent: that must not be before what the reader waits for.
        let own = kind.is_ref && !local.is_empty();
        if let Some(there) = self.received.get(&(from, Some(output), task)).filter(|_| !own) {
            return there.clone();
        }
        let name = cells.all[from].def.name.clone();
        let kind = Type { is_ref: false, ..kind };
        let source = input_name(&name, output);
        let mut before = self.gate(cells, from, to);
        if own {
            before.extend_from_slice(local);
        }
        let received = self.link(cells, (from, to), source, &name, kind, before);
        if !own {
            self.received.insert((from, Some(output), task), received.clone());
        }
        received
    }

    /// Makes the end of another task's cell known on the task of `to`. The input that names it.
    fn receive_control(&mut self, cells: &mut Cells<'_>, to: usize, from: usize) -> String {
        let task = cells.task(to);
        if let Some(there) = self.received.get(&(from, None, task)) {
            return there.clone();
        }
        let name = cells.all[from].def.name.clone();
        let mut signal = empty_constant(cells.fresh(&name).0);
        signal.input.push(format!("^{name}"));
        let source = signal.name.clone();
        self.add(cells.task(from), cells.all[from].device, signal, cells.devices);
        let kind = Type::of(DataType::DtFloat);
        let before = self.gate(cells, from, to);
        let received = self.link(cells, (from, to), source, &name, kind, before);
        let mut known =
            node(cells.fresh(&name).0, "Identity", [("T", Value::Type(DataType::DtFloat as i32))]);
        known.input.push(received);
        let input = format!("^{}", known.name);
        self.add(task, cells.all[to].device, known, cells.devices);
        self.received.insert((from, None, task), input.clone());
        input
    }

    /// What a value must wait for that comes within a loop.
    fn gate(&self, cells: &Cells<'_>, from: usize, to: usize) -> Vec<String> {
        let gate = self.frames.gate(cells, from, to);
        gate.map(|merge| format!("^{}", cells.all[merge].def.name)).into_iter().collect()
    }

    /// Adds a `_Send` of `source` and the `_Recv` of it, which waits for `before`. The name of the latter.
    fn link(
        &mut self,
        cells: &mut Cells<'_>,
        (from, to): (usize, usize),
        source: String,
        like: &str,
        kind: Type,
        before: Vec<String>,
    ) -> String {
        let (sender, number) = cells.fresh(like);
        let receiver = cells.fresh(like).0;
        let (send_device, recv_device) = (cells.all[from].device, cells.all[to].device);
        let tensor = format!("edge_{number}_{like}");
        let link = Link { from: send_device, to: recv_device, tensor, client: false };
        let mut send = cells.send(sender, kind, &link);
        send.input.push(source);
        let mut recv = cells.recv(receiver.clone(), kind, &link);
        recv.input = before;
        self.add(cells.task(from), send_device, send, cells.devices);
        self.add(cells.task(to), recv_device, recv, cells.devices);
        receiver
    }
}

fn input_name(node: &str, output: u32) -> String {
    if output == 0 { node.to_owned() } else { format!("{node}:{output}") }
}
