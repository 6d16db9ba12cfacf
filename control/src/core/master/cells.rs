//! The nodes of one run, while they are being taken apart: what pruning kept, with feeds and fetches as nodes.

use std::collections::{HashMap, HashSet};

use ringway_proto::tensorflow::attr_value::Value;
use ringway_proto::tensorflow::tensor_shape_proto::Dim;
use ringway_proto::tensorflow::{AttrValue, DataType, NodeDef, TensorProto, TensorShapeProto};

use super::devices::Devices;
use super::prune::{Wanted, is_fed_placeholder};
use crate::core::graph::{Graph, Output, Type};

/// A node that is not bound to a graph: its inputs are places among its fellows.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// The node, without inputs and device.
    pub(super) def: NodeDef,
    /// Place of its device.
    pub(super) device: usize,
    /// What it reads: cell and output.
    pub(super) inputs: Vec<(usize, u32)>,
    /// What it waits for.
    pub(super) control: Vec<usize>,
    /// What it gives.
    pub(super) outputs: Vec<Type>,
}

/// All cells of a run.
pub(super) struct Cells<'a> {
    pub(super) all: Vec<Cell>,
    pub(super) devices: &'a Devices,
    graph: &'a Graph,
    added: HashSet<String>,
    count: usize,
    /// For each feed, the keys under which tasks expect it: (feed, task, key).
    pub(super) feeds: Vec<(usize, usize, String)>,
    /// For each fetched tensor, who sends it under which key: (fetches, task, key).
    pub(super) fetches: Vec<(Vec<usize>, usize, String)>,
}

impl<'a> Cells<'a> {
    /// The nodes that a run needs, each on its device of `placement`.
    pub(super) fn new(graph: &'a Graph, placement: &[usize], devices: &'a Devices, wanted: &Wanted) -> Self {
        let kept = wanted.keep(graph);
        let mut places = vec![usize::MAX; kept.len()];
        let mut next = 0;
        for (place, _) in places.iter_mut().zip(&kept).filter(|(_, kept)| **kept) {
            *place = next;
            next += 1;
        }
        let mut cells = Cells {
            all: Vec::with_capacity(next + wanted.feeds.len() + wanted.fetches.len()),
            devices,
            graph,
            added: HashSet::new(),
            count: 0,
            feeds: Vec::new(),
            fetches: Vec::new(),
        };
        for (at, node) in graph.nodes().iter().enumerate().filter(|(at, _)| kept[*at]) {
            let def = NodeDef {
                name: node.def.name.clone(),
                op: node.def.op.clone(),
                attr: node.def.attr.clone(),
                experimental_type: node.def.experimental_type.clone(),
                ..NodeDef::default()
            };
            let (inputs, control, outputs) = (Vec::new(), Vec::new(), node.output_types.clone());
            cells.all.push(Cell { def, device: placement[at], inputs, control, outputs });
        }
        cells.connect(wanted, &kept, &places);
        cells.fetch(wanted, &places);
        cells
    }

    /// Gives every cell its inputs. A fed tensor is a `_Recv` on each task that reads it.
    fn connect(&mut self, wanted: &Wanted, kept: &[bool], places: &[usize]) {
        let graph = self.graph;
        let fed: HashMap<Output, usize> = wanted.feeds.iter().enumerate().map(|(at, o)| (*o, at)).collect();
        let outputs: HashSet<Output> = fed.keys().copied().collect();
        let mut made: HashMap<(usize, usize), usize> = HashMap::new();
        for (at, node) in graph.nodes().iter().enumerate().filter(|(at, _)| kept[*at]) {
            let device = self.all[places[at]].device;
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for input in &node.inputs {
                let input = wanted.stand_ins.get(input).unwrap_or(input);
                inputs.push(match fed.get(input) {
                    Some(feed) => (self.feed(*feed, *input, device, &mut made), 0),
                    None => (places[input.node.at()], input.index),
                });
            }
            let mut control = Vec::with_capacity(node.control.len());
            for before in &node.control {
                if is_fed_placeholder(graph, *before, &outputs) {
                    let output = Output { node: *before, index: 0 };
                    control.push(self.feed(fed[&output], output, device, &mut made));
                } else {
                    control.push(places[before.at()]);
                }
            }
            let cell = &mut self.all[places[at]];
            (cell.inputs, cell.control) = (inputs, control);
        }
    }

    fn feed(
        &mut self,
        feed: usize,
        output: Output,
        device: usize,
        made: &mut HashMap<(usize, usize), usize>,
    ) -> usize {
        let task = self.devices.get(device).task;
        if let Some(there) = made.get(&(feed, task)) {
            return *there;
        }
        let kind = Type { is_ref: false, ..self.graph.output_type(output) };
        let (source, tensor) = self.endpoint(output);
        let name = self.name(format!("_recv_{source}_{}", output.index));
        let link = Link { from: device, to: device, tensor, client: true };
        self.feeds.push((feed, task, link.key(self.devices)));
        let def = self.recv(name, kind, &link);
        made.insert((feed, task), self.all.len());
        self.all.push(Cell { def, device, inputs: Vec::new(), control: Vec::new(), outputs: vec![kind] });
        self.all.len() - 1
    }

    /// A fetched tensor is a `_Send` where its node is.
    fn fetch(&mut self, wanted: &Wanted, places: &[usize]) {
        let mut made: HashMap<Output, usize> = HashMap::new();
        for (fetch, output) in wanted.fetches.iter().enumerate() {
            if let Some(there) = made.get(output) {
                self.fetches[*there].0.push(fetch);
                continue;
            }
            made.insert(*output, self.fetches.len());
            let from = places[output.node.at()];
            let device = self.all[from].device;
            let kind = Type { is_ref: false, ..self.graph.output_type(*output) };
            let (source, tensor) = self.endpoint(*output);
            let name = self.name(format!("_send_{source}_{}", output.index));
            let link = Link { from: device, to: device, tensor, client: true };
            self.fetches.push((vec![fetch], self.devices.get(device).task, link.key(self.devices)));
            let def = self.send(name, kind, &link);
            let inputs = vec![(from, output.index)];
            self.all.push(Cell { def, device, inputs, control: Vec::new(), outputs: Vec::new() });
        }
    }

    fn endpoint(&self, output: Output) -> (String, String) {
        let name = self.graph.node(output.node).name();
        (name.to_owned(), format!("{name}:{}", output.index))
    }

    /// The task that a cell is on.
    pub(super) fn task(&self, cell: usize) -> usize {
        self.devices.get(self.all[cell].device).task
    }

    /// `wanted` if no node has it, else something like it.
    fn name(&mut self, wanted: String) -> String {
        let mut name = wanted;
        while self.graph.find(&name).is_some() || self.added.contains(&name) {
            name.push('_');
        }
        self.added.insert(name.clone());
        name
    }

    /// A name that no node has, and a number that no other such name has.
    pub(super) fn fresh(&mut self, like: &str) -> (String, usize) {
        self.count += 1;
        let name = self.name(format!("{like}_S{}", self.count));
        (name, self.count)
    }

    /// The node that hands a value over a link.
    pub(super) fn send(&self, name: String, kind: Type, link: &Link) -> NodeDef {
        let mut def = node(name, "_Send", [("T", Value::Type(kind.element as i32))]);
        link.describe(&mut def, self.devices);
        def
    }

    /// The node that takes a value from a link.
    pub(super) fn recv(&self, name: String, kind: Type, link: &Link) -> NodeDef {
        let mut def = node(name, "_Recv", [("tensor_type", Value::Type(kind.element as i32))]);
        link.describe(&mut def, self.devices);
        def
    }
}

/// A value's way from one device to another.
pub(super) struct Link {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) tensor: String,
    /// It comes from the client, or goes there.
    pub(super) client: bool,
}

impl Link {
    /// The rendezvous key, as TensorFlow writes it; outside of loops.
    pub(super) fn key(&self, devices: &Devices) -> String {
        let (from, to) = (devices.get(self.from), devices.get(self.to));
        format!("{};{:016x};{};{};0:0", from.full, from.incarnation(), to.full, self.tensor)
    }

    fn describe(&self, def: &mut NodeDef, devices: &Devices) {
        let (from, to) = (devices.get(self.from), devices.get(self.to));
        let text = |text: &str| Value::S(text.as_bytes().to_vec());
        for (name, value) in [
            ("tensor_name", text(&self.tensor)),
            ("send_device", text(&from.full)),
            ("recv_device", text(&to.full)),
            // The wire has no unsigned attribute: the same bits.
            ("send_device_incarnation", Value::I(from.incarnation() as i64)),
            ("client_terminated", Value::B(self.client)),
        ] {
            def.attr.insert(name.to_owned(), AttrValue { value: Some(value) });
        }
    }
}

/// A node of our own.
pub(super) fn node<const N: usize>(name: String, op: &str, attrs: [(&str, Value); N]) -> NodeDef {
    let attr = attrs.into_iter().map(|(name, value)| (name.to_owned(), AttrValue { value: Some(value) }));
    NodeDef { name, op: op.to_owned(), attr: attr.collect(), ..NodeDef::default() }
}

/// A constant without elements: what travels where only the order counts.
pub(super) fn empty_constant(name: String) -> NodeDef {
    let shape = TensorShapeProto { dim: vec![Dim::default()], unknown_rank: false };
    let value =
        TensorProto { dtype: DataType::DtFloat as i32, tensor_shape: Some(shape), ..TensorProto::default() };
    node(name, "Const", [("dtype", Value::Type(DataType::DtFloat as i32)), ("value", Value::Tensor(value))])
}
