//! Graphs and functions made ready to run: kernels built, edges laid out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use prost::Message;
use ringway_dataplane::rendezvous::key::{Key, KeyError, Parts};
use ringway_proto::tensorflow::error::Code;
use ringway_proto::tensorflow::{AttrValue, FunctionDef, NameAttrList};

use super::away::Use;
use super::collectives::Collective;
use crate::core::graph::{Attrs, Graph, GraphError, Library, Node, NodeId};
use crate::core::worker::{Flow, NodeShape, Plan};
use crate::kernels::registry::BuildError;
use crate::kernels::{self, Kernel, OpError, is_executor_op};

/// Functions that are kept ready to run, with the attributes of their calls.
pub const READY_FUNCTIONS_LIMIT: usize = 1 << 16;

/// Why a graph cannot be run here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// It is not sound.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A node has no kernel.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Its loops do not nest.
    #[error("{{{{node {node}}}}} {problem}")]
    Flow {
        /// The node.
        node: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// An edge to another task has no name that it could travel under.
    #[error("{{{{node {node}}}}}: {source}")]
    Key {
        /// The node.
        node: String,
        /// What is wrong.
        source: KeyError,
    },
    /// An operation of the executor's own that it does not do.
    #[error(
        "No OpKernel was registered to support Op '{op}' used by {{{{node {node}}}}}: this server does not compute it"
    )]
    Unsupported {
        /// The operation.
        op: String,
        /// The node.
        node: String,
    },
}

impl ProgramError {
    /// The status code that a client gets.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            ProgramError::Graph(GraphError::UnknownOp { .. }) => Code::NotFound,
            ProgramError::Graph(GraphError::TooLarge { .. }) => Code::ResourceExhausted,
            _ => Code::InvalidArgument,
        }
    }
}

impl From<ProgramError> for OpError {
    fn from(error: ProgramError) -> OpError {
        OpError::new(error.code(), error.to_string())
    }
}

/// An edge to or from another graph.
#[derive(Debug)]
pub(super) struct EdgeKey {
    send_device: String,
    incarnation: u64,
    recv_device: String,
    tensor: String,
    /// Outside of loops.
    key: Key,
}

impl EdgeKey {
    fn new(node: &Node) -> Result<EdgeKey, ProgramError> {
        let attrs = &node.attrs;
        let (send_device, recv_device) = (attrs.text("send_device")?, attrs.text("recv_device")?);
        let incarnation = attrs.int("send_device_incarnation")? as u64;
        let tensor = attrs.text("tensor_name")?;
        let key = Key::build(&parts(send_device, incarnation, recv_device, tensor, (0, 0)));
        let key = key.map_err(|source| ProgramError::Key { node: node.name().to_owned(), source })?;
        let (send_device, recv_device) = (send_device.to_owned(), recv_device.to_owned());
        Ok(EdgeKey { send_device, incarnation, recv_device, tensor: tensor.to_owned(), key })
    }

    /// The key in this frame and iteration.
    pub(super) fn at(&self, place: (u64, i64)) -> Result<Key, OpError> {
        if place == (0, 0) {
            return Ok(self.key.clone());
        }
        let parts = parts(&self.send_device, self.incarnation, &self.recv_device, &self.tensor, place);
        Key::build(&parts).map_err(|error| OpError::invalid(error.to_string()))
    }
}

fn parts<'a>(
    send_device: &'a str,
    send_incarnation: u64,
    recv_device: &'a str,
    tensor_name: &'a str,
    (frame, iteration): (u64, i64),
) -> Parts<'a> {
    Parts { send_device, send_incarnation, recv_device, tensor_name, frame, iteration }
}

/// A function with the attributes of a call.
#[derive(Clone, Debug)]
pub(super) struct Callee {
    pub(super) name: String,
    attrs: HashMap<String, AttrValue>,
    /// Name and attributes as bytes, to find it by.
    id: Vec<u8>,
}

impl Callee {
    fn new(name: &str, attrs: &HashMap<String, AttrValue>) -> Callee {
        let mut sorted: Vec<_> = attrs.iter().collect();
        sorted.sort_by_key(|(name, _)| *name);
        let mut id = name.as_bytes().to_vec();
        for (name, value) in sorted {
            id.push(0);
            id.extend_from_slice(name.as_bytes());
            id.extend_from_slice(&value.encode_to_vec());
        }
        Callee { name: name.to_owned(), attrs: attrs.clone(), id }
    }

    fn of(list: &NameAttrList) -> Callee {
        Callee::new(&list.name, &list.attr)
    }

    fn attr(node: &Node, attr: &str) -> Result<Callee, GraphError> {
        node.attrs.function(attr).map(Callee::of)
    }
}

/// What running a node is.
pub(super) enum Action {
    Kernel(Box<dyn Kernel>),
    Arg(usize),
    Return(usize),
    /// Passes its first input on.
    Pass,
    /// Nothing but order.
    Nothing,
    Switch,
    Merge,
    Send(EdgeKey),
    Recv(EdgeKey),
    Call(Callee),
    If([Callee; 2]),
    Case(Vec<Callee>),
    While {
        cond: Callee,
        body: Callee,
    },
    Collective(Box<Collective>),
}

impl Action {
    /// Whether it is over before another thread could begin it.
    pub(super) fn is_cheap(&self) -> bool {
        match self {
            Action::Kernel(kernel) => kernel.is_cheap(),
            _ => true,
        }
    }

    /// Runs even on a branch that was not taken.
    pub(super) fn is_transfer(&self) -> bool {
        matches!(self, Action::Send(_) | Action::Recv(_))
    }
}

/// A node of a program.
pub(super) struct Op {
    pub(super) name: String,
    /// Its operation.
    pub(super) kind: Box<str>,
    /// The nodes that it reads.
    pub(super) reads: Box<[u32]>,
    pub(super) outputs: usize,
    pub(super) action: Action,
    /// What another task needs to run it, where it uses a resource that may be there.
    pub(super) uses: Option<Arc<Use>>,
}

/// A graph or a function's body, ready to run any number of times, by any number of steps at once.
pub struct Program {
    pub(super) plan: Arc<Plan>,
    pub(super) ops: Vec<Op>,
    pub(super) args: usize,
    pub(super) returns: usize,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program of {} nodes", self.ops.len())
    }
}

impl Program {
    /// Makes a graph ready. Its `_Arg`s and `_Retval`s, if any, are what it takes and gives.
    ///
    /// # Errors
    /// [`ProgramError`]: the first node that cannot be run here.
    pub fn new(graph: &Graph) -> Result<Program, ProgramError> {
        let (mut ops, mut shapes) = (Vec::with_capacity(graph.nodes().len()), Vec::new());
        let (mut args, mut returns) = (0, 0);
        for node in graph.nodes() {
            let (action, flow) = action(node, graph.library())?;
            match action {
                Action::Arg(index) => args = args.max(index + 1),
                Action::Return(index) => returns = returns.max(index + 1),
                _ => {}
            }
            let reads = node.inputs.iter().map(|input| input.node.0).collect();
            let inputs = node.inputs.iter().map(|input| (input.node.0, input.index)).collect();
            let control = node.control.iter().map(|node: &NodeId| node.0).collect();
            shapes.push(NodeShape { flow, inputs, control });
            let uses = if matches!(action, Action::Kernel(_)) { Use::new(node) } else { None };
            let (name, kind) = (node.name().to_owned(), node.op().into());
            ops.push(Op { name, kind, reads, outputs: node.output_types.len(), action, uses });
        }
        let plan = Plan::new(&shapes).map_err(|error| ProgramError::Flow {
            node: graph.nodes()[error.node].name().to_owned(),
            problem: error.problem,
        })?;
        Ok(Program { plan: Arc::new(plan), ops, args, returns })
    }

    /// A node as TensorFlow's time lines write it: `name = Op(inputs)`.
    pub(super) fn label(&self, op: &Op) -> String {
        let reads: Vec<&str> = op.reads.iter().map(|at| self.ops[*at as usize].name.as_str()).collect();
        format!("{} = {}({})", op.name, op.kind, reads.join(", "))
    }

    /// How many values it takes.
    #[must_use]
    pub fn args(&self) -> usize {
        self.args
    }

    /// How many values it gives.
    #[must_use]
    pub fn returns(&self) -> usize {
        self.returns
    }

    /// How many nodes it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether it has no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

/// Index of an argument or a result: it must be one of as many as the graph has nodes, at most.
fn index(attrs: &Attrs) -> Result<usize, GraphError> {
    let index = usize::try_from(attrs.int("index")?).ok();
    let index = index.filter(|index| *index < crate::core::graph::signature::ARGS_LIMIT);
    index.ok_or_else(|| attrs.wrong("index", "is no place among arguments"))
}

fn action(node: &Node, library: &Library) -> Result<(Action, Flow), ProgramError> {
    let plain = |action| Ok((action, Flow::Plain));
    match node.op() {
        "_Arg" | "_DeviceArg" => plain(Action::Arg(index(&node.attrs)?)),
        "_Retval" | "_DeviceRetval" => plain(Action::Return(index(&node.attrs)?)),
        "Switch" | "RefSwitch" => plain(Action::Switch),
        "Merge" | "RefMerge" => Ok((Action::Merge, Flow::Merge)),
        "Enter" | "RefEnter" => {
            let parallel = u32::try_from(node.attrs.int("parallel_iterations")?.max(1)).unwrap_or(u32::MAX);
            let frame = node.attrs.text("frame_name")?.into();
            Ok((Action::Pass, Flow::Enter { frame, constant: node.attrs.bool("is_constant")?, parallel }))
        }
        "Exit" | "RefExit" => Ok((Action::Pass, Flow::Exit)),
        "NextIteration" | "RefNextIteration" => Ok((Action::Pass, Flow::NextIteration)),
        "LoopCond" => plain(Action::Pass),
        "ControlTrigger" => Ok((Action::Nothing, Flow::ControlTrigger)),
        "_Send" | "_HostSend" | "Send" => Ok((Action::Send(EdgeKey::new(node)?), Flow::Transfer)),
        "_Recv" | "_HostRecv" | "Recv" => Ok((Action::Recv(EdgeKey::new(node)?), Flow::Transfer)),
        "PartitionedCall" | "StatefulPartitionedCall" => plain(Action::Call(Callee::attr(node, "f")?)),
        "If" | "StatelessIf" => {
            let branches = [Callee::attr(node, "then_branch")?, Callee::attr(node, "else_branch")?];
            plain(Action::If(branches))
        }
        "Case" | "StatelessCase" => {
            let branches: Vec<_> = node.attrs.list("branches")?.func.iter().map(Callee::of).collect();
            if branches.is_empty() {
                return Err(node.attrs.wrong("branches", "is empty").into());
            }
            plain(Action::Case(branches))
        }
        "While" | "StatelessWhile" => {
            let (cond, body) = (Callee::attr(node, "cond")?, Callee::attr(node, "body")?);
            plain(Action::While { cond, body })
        }
        op if library.signature(op).is_some() => plain(Action::Call(Callee::new(op, node.attrs.all()))),
        op if op.starts_with("Collective") => match Collective::new(node)? {
            Some(collective) => plain(Action::Collective(Box::new(collective))),
            None => Err(unsupported(node)),
        },
        op if is_executor_op(op) => Err(unsupported(node)),
        _ => plain(Action::Kernel(kernels::build(node)?)),
    }
}

fn unsupported(node: &Node) -> ProgramError {
    ProgramError::Unsupported { op: node.op().to_owned(), node: node.name().to_owned() }
}

/// Functions, and those of them that are ready to run. A body is made ready when it is first called, so that functions
/// may call themselves.
#[derive(Debug, Default)]
pub struct Functions {
    library: RwLock<Arc<Library>>,
    ready: Mutex<HashMap<Vec<u8>, Arc<Program>>>,
}

impl Functions {
    /// The functions of a library.
    #[must_use]
    pub fn new(library: Arc<Library>) -> Functions {
        Functions { library: RwLock::new(library), ready: Mutex::default() }
    }

    /// The functions as they are now.
    #[must_use]
    pub fn library(&self) -> Arc<Library> {
        self.library.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds a function, or replaces the one of that name. Runs that have begun keep what they have.
    ///
    /// # Errors
    /// [`GraphError`] when its signature cannot be read.
    pub fn add(&self, function: &FunctionDef) -> Result<(), GraphError> {
        let mut library = self.library.write().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut library).add(function)?;
        drop(library);
        self.forget();
        Ok(())
    }

    /// Forgets a function. Whether it was there.
    pub fn remove(&self, name: &str) -> bool {
        let mut library = self.library.write().unwrap_or_else(PoisonError::into_inner);
        let was_there = Arc::make_mut(&mut library).remove(name);
        drop(library);
        self.forget();
        was_there
    }

    fn forget(&self) {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// A function with attributes, ready to run.
    ///
    /// # Errors
    /// [`ProgramError`] when there is no such function, or it cannot be run here.
    pub fn program(
        &self,
        name: &str,
        attrs: &HashMap<String, AttrValue>,
    ) -> Result<Arc<Program>, ProgramError> {
        self.get(&Callee::new(name, attrs))
    }

    pub(super) fn get(&self, callee: &Callee) -> Result<Arc<Program>, ProgramError> {
        if let Some(ready) = self.ready.lock().unwrap_or_else(PoisonError::into_inner).get(&callee.id) {
            return Ok(ready.clone());
        }
        let body = self.library().instantiate(&callee.name, &callee.attrs)?;
        let program = Arc::new(Program::new(&body.graph)?);
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.len() >= READY_FUNCTIONS_LIMIT {
            ready.clear();
        }
        ready.insert(callee.id.clone(), program.clone());
        Ok(program)
    }
}
