//! A graph laid out for running: who feeds whom, by index, and which nodes are in which loop.
//!
//! A loop of TensorFlow's first kind is a frame: values come in through `Enter`, go round through `NextIteration`, and leave
//! through `Exit`. Frames nest. Which frame a node is in follows from its inputs (`BuildControlFlowInfo` in
//! tensorflow/core/graph/control_flow.cc).

use std::collections::HashMap;
use std::sync::Arc;

/// The slot of an edge that carries no value.
const CONTROL: u32 = u32::MAX;
/// Not found yet.
const UNSET: u32 = u32::MAX;
/// Most iterations of one loop that run at once, whatever the graph asks for.
const PARALLEL_LIMIT: u32 = 1 << 16;

/// How a node takes part in the flow of control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Runs once all its inputs are there; dead as soon as one of them is.
    Plain,
    /// As a plain one, and runs even when it is dead: what it moves is then the word that there is nothing.
    Transfer,
    /// Runs with the first live input; dead when all are.
    Merge,
    /// Leads into the frame of this name.
    Enter {
        /// The frame.
        frame: Arc<str>,
        /// Its value is the same in each iteration.
        constant: bool,
        /// Iterations that may run at once.
        parallel: u32,
    },
    /// Leads out of the frame.
    Exit,
    /// Leads to the next iteration.
    NextIteration,
    /// Runs when all before it is over, dead or not.
    ControlTrigger,
}

/// A node as a plan is made from.
#[derive(Clone, Debug)]
pub struct NodeShape {
    /// What it does to the flow of control.
    pub flow: Flow,
    /// Node and output that each input reads.
    pub inputs: Vec<(u32, u32)>,
    /// Nodes that must have run before.
    pub control: Vec<u32>,
}

/// A graph cannot be laid out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} {problem}")]
pub struct PlanError {
    /// The node, by index.
    pub node: usize,
    /// What is wrong.
    pub problem: &'static str,
}

/// What [`Flow`] is when a plan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Merge,
    Enter { constant: bool },
    Exit,
    NextIteration,
    ControlTrigger,
}

#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) kind: Kind,
    pub(super) frame: u32,
    /// The frame that an `Enter` leads into.
    pub(super) child: u32,
    pub(super) inputs: u32,
    /// Where its inputs begin among those of its frame.
    pub(super) first_input: u32,
    /// Its place among the counts of its frame.
    pub(super) local: u32,
    first_edge: u32,
    end_edge: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) to: u32,
    slot: u32,
    pub(super) output: u32,
    /// Nobody after this one reads the output.
    pub(super) last: bool,
}

impl Edge {
    /// The input that it feeds; `None` for one that only says when.
    pub(super) fn slot(self) -> Option<u32> {
        (self.slot != CONTROL).then_some(self.slot)
    }
}

/// What a node still waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Inputs not there yet. Of a merge: twice the control inputs, and one until a live value came.
    pub(super) pending: u32,
    /// Inputs that are dead.
    pub(super) dead: u32,
}

#[derive(Clone, Debug)]
pub(super) struct FramePlan {
    parent: u32,
    pub(super) name_hash: u64,
    pub(super) parallel: u32,
    /// `Enter`s that lead here.
    pub(super) entries: u32,
    /// What each node waits for at first.
    pub(super) counts: Vec<Counts>,
    /// Inputs of all its nodes.
    pub(super) inputs: u32,
}

impl FramePlan {
    fn new(parent: u32, name: &str, parallel: u32) -> FramePlan {
        let name_hash = hash(name.as_bytes());
        let parallel = parallel.clamp(1, PARALLEL_LIMIT);
        FramePlan { parent, name_hash, parallel, entries: 0, counts: Vec::new(), inputs: 0 }
    }
}

/// A graph, ready to be run any number of times.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) nodes: Vec<Placed>,
    edges: Vec<Edge>,
    pub(super) frames: Vec<FramePlan>,
    pub(super) sources: Vec<u32>,
}

impl Plan {
    /// Lays a graph out.
    ///
    /// # Errors
    /// [`PlanError`] when an input is of no node, or the frames of its loops do not nest.
    pub fn new(shapes: &[NodeShape]) -> Result<Plan, PlanError> {
        let mut plan = Plan {
            nodes: Vec::with_capacity(shapes.len()),
            edges: Vec::new(),
            frames: vec![FramePlan::new(0, "", 1)],
            sources: Vec::new(),
        };
        plan.connect(shapes)?;
        plan.find_frames(shapes)?;
        plan.place(shapes);
        Ok(plan)
    }

    /// How many nodes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Who reads the node's outputs, by output; those that only say when come last.
    pub(super) fn edges(&self, node: u32) -> &[Edge] {
        let node = &self.nodes[node as usize];
        &self.edges[node.first_edge as usize..node.end_edge as usize]
    }

    fn connect(&mut self, shapes: &[NodeShape]) -> Result<(), PlanError> {
        let mut out: Vec<Vec<Edge>> = vec![Vec::new(); shapes.len()];
        for (at, shape) in shapes.iter().enumerate() {
            let missing = PlanError { node: at, problem: "reads a node that is not there" };
            for (slot, (from, output)) in shape.inputs.iter().enumerate() {
                let from = out.get_mut(*from as usize).ok_or(missing.clone())?;
                from.push(Edge { to: at as u32, slot: slot as u32, output: *output, last: false });
            }
            for from in &shape.control {
                let from = out.get_mut(*from as usize).ok_or(missing.clone())?;
                from.push(Edge { to: at as u32, slot: CONTROL, output: u32::MAX, last: false });
            }
            if shape.inputs.is_empty() && shape.control.is_empty() {
                self.sources.push(at as u32);
            }
            if shape.flow == Flow::Merge && shape.inputs.is_empty() {
                return Err(PlanError { node: at, problem: "merges nothing" });
            }
        }
        for (shape, mut edges) in shapes.iter().zip(out) {
            edges.sort_by_key(|edge| edge.output);
            for at in 0..edges.len() {
                let next = edges.get(at + 1).map(|next| next.output);
                edges[at].last = next != Some(edges[at].output);
            }
            let first_edge = self.edges.len() as u32;
            self.edges.extend(edges);
            self.nodes.push(Placed {
                kind: kind(&shape.flow),
                frame: UNSET,
                child: UNSET,
                inputs: shape.inputs.len() as u32,
                first_input: 0,
                local: 0,
                first_edge,
                end_edge: self.edges.len() as u32,
            });
        }
        Ok(())
    }

    /// Finds out which nodes are in which frame, from the sources on.
    fn find_frames(&mut self, shapes: &[NodeShape]) -> Result<(), PlanError> {
        let mut known: HashMap<(u32, Arc<str>), u32> = HashMap::new();
        let mut queue = self.sources.clone();
        for source in &queue {
            self.nodes[*source as usize].frame = 0;
        }
        while let Some(at) = queue.pop() {
            let node = at as usize;
            let frame = self.nodes[node].frame;
            let leads_to = match &shapes[node].flow {
                Flow::Enter { frame: name, parallel, .. } => {
                    let count = self.frames.len() as u32;
                    let child = *known.entry((frame, name.clone())).or_insert(count);
                    if child == count {
                        self.frames.push(FramePlan::new(frame, name, *parallel));
                    }
                    self.frames[child as usize].entries += 1;
                    self.nodes[node].child = child;
                    child
                }
                Flow::Exit | Flow::NextIteration if frame == 0 => {
                    return Err(PlanError { node, problem: "is of a loop, and in none" });
                }
                Flow::Exit => self.frames[frame as usize].parent,
                _ => frame,
            };
            let edges = self.nodes[node].first_edge as usize..self.nodes[node].end_edge as usize;
            for edge in &self.edges[edges] {
                let reader = &mut self.nodes[edge.to as usize];
                if reader.frame == UNSET {
                    reader.frame = leads_to;
                    queue.push(edge.to);
                } else if reader.frame != leads_to {
                    let problem = "has inputs from different frames";
                    return Err(PlanError { node: edge.to as usize, problem });
                }
            }
        }
        match self.nodes.iter().position(|node| node.frame == UNSET) {
            Some(node) => Err(PlanError { node, problem: "waits for itself" }),
            None => Ok(()),
        }
    }

    fn place(&mut self, shapes: &[NodeShape]) {
        for (node, shape) in self.nodes.iter_mut().zip(shapes) {
            let frame = &mut self.frames[node.frame as usize];
            node.local = frame.counts.len() as u32;
            node.first_input = frame.inputs;
            frame.inputs += node.inputs;
            let control = shape.control.len() as u32;
            let pending = if node.kind == Kind::Merge { 1 + 2 * control } else { node.inputs + control };
            frame.counts.push(Counts { pending, dead: 0 });
        }
    }
}

fn kind(flow: &Flow) -> Kind {
    match flow {
        Flow::Plain | Flow::Transfer => Kind::Plain,
        Flow::Merge => Kind::Merge,
        Flow::Enter { constant, .. } => Kind::Enter { constant: *constant },
        Flow::Exit => Kind::Exit,
        Flow::NextIteration => Kind::NextIteration,
        Flow::ControlTrigger => Kind::ControlTrigger,
    }
}

/// The number of a frame that runs inside of an iteration of another. Tasks that run parts of one loop must agree on it,
/// since keys of tensors hold it: `Hash64Combine` in tensorflow/core/platform/hash.h, twice.
pub(super) fn frame_id(parent: u64, iteration: u64, name_hash: u64) -> u64 {
    combine(parent, combine(iteration, name_hash))
}

fn combine(a: u64, b: u64) -> u64 {
    a ^ b.wrapping_add(0x9e37_79b9_7f4a_7800).wrapping_add(a << 10).wrapping_add(a >> 4)
}

/// `Hash64` of tensorflow/core/platform/hash.cc: MurmurHash64A with a seed of its own.
fn hash(bytes: &[u8]) -> u64 {
    const SEED: u64 = 0x00DE_CAFC_AFFE;
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let mut h = SEED ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mut k = u64::from_le_bytes(*word).wrapping_mul(M);
        k = (k ^ (k >> R)).wrapping_mul(M);
        h = (h ^ k).wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (at, byte) in rest.iter().enumerate() {
            h ^= u64::from(*byte) << (8 * at);
        }
        h = h.wrapping_mul(M);
    }
    h = (h ^ (h >> R)).wrapping_mul(M);
    h ^ (h >> R)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(flow: Flow, inputs: &[(u32, u32)]) -> NodeShape {
        NodeShape { flow, inputs: inputs.to_vec(), control: Vec::new() }
    }

    #[test]
    fn loops_that_do_not_nest_are_refused() {
        let enter = |frame: &str| Flow::Enter { frame: frame.into(), constant: false, parallel: 1 };
        let two = [
            node(Flow::Plain, &[]),
            node(enter("a"), &[(0, 0)]),
            node(enter("b"), &[(0, 0)]),
            node(Flow::Plain, &[(1, 0), (2, 0)]),
        ];
        let problem = |shapes: &[NodeShape]| Plan::new(shapes).unwrap_err().problem;
        assert_eq!(problem(&two), "has inputs from different frames");
        assert_eq!(
            problem(&[node(Flow::Plain, &[]), node(Flow::Exit, &[(0, 0)])]),
            "is of a loop, and in none"
        );
        assert_eq!(problem(&[node(Flow::Merge, &[(0, 0)])]), "waits for itself");
        assert_eq!(problem(&[node(Flow::Merge, &[])]), "merges nothing");
        assert_eq!(problem(&[node(Flow::Plain, &[(7, 0)])]), "reads a node that is not there");
    }

    /// What `tf.raw_ops.StringToHashBucket` of TensorFlow 2.21 gives with `BUCKETS` buckets: the same hash.
    #[test]
    fn the_hash_is_tensorflows() {
        const BUCKETS: u64 = (1 << 63) - 25;
        let known = [
            ("", 0x0176_9421_199f_9e54),
            ("a", 0x2996_2dc0_26ea_c9fc),
            ("abcdefg", 0x2915_42ec_03c9_2e59),
            ("abcdefgh", 0x2f99_4778_e453_fc52),
            ("while/while_context", 0x3ff3_656e_447e_77ef),
            ("while_context", 0x7acc_d10e_2105_3e7b),
        ];
        for (text, expected) in known {
            assert_eq!(hash(text.as_bytes()) % BUCKETS, expected, "{text}");
        }
    }
}
