//! What of a graph one run needs.
//!
//! - **N1** Kept is what fetches and targets need, and nothing behind a fed tensor that nothing else needs.
//! - **N2** What reads a fed tensor reads the fed value, never the node's.

use std::collections::{HashMap, HashSet};

use super::error::MasterError;
use crate::core::graph::{Graph, NodeId, Output};

/// What a run is asked for, by name and in the caller's order: what plans are found by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Tensors that are given, "x:0".
    pub feeds: Vec<String>,
    /// Tensors that are asked for.
    pub fetches: Vec<String>,
    /// Nodes that must run.
    pub targets: Vec<String>,
    /// Tensors that stand in for others: (from, to).
    pub connections: Vec<(String, String)>,
    /// Groups the steps of collectives of several masters; 0 for none.
    pub collective_graph_key: i64,
}

/// A signature, resolved in a graph.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// One for each feed.
    pub feeds: Vec<Output>,
    /// One for each fetch.
    pub fetches: Vec<Output>,
    /// Nodes that must run.
    pub targets: Vec<NodeId>,
    /// What readers of the key read in its stead.
    pub stand_ins: HashMap<Output, Output>,
}

impl Wanted {
    /// Finds what a signature names.
    ///
    /// # Errors
    /// [`MasterError`]: the first name that is not there, is there twice, or is both fed and fetched.
    pub fn resolve(graph: &Graph, signature: &Signature) -> Result<Wanted, MasterError> {
        if signature.fetches.is_empty() && signature.targets.is_empty() {
            return Err(MasterError::NothingToRun);
        }
        let mut wanted = Wanted::default();
        let mut taken = HashSet::new();
        for name in &signature.feeds {
            let output = find(graph, name, "FeedInputs", MasterError::FeedNotFound)?;
            if !taken.insert(output) {
                return Err(MasterError::FedTwice(name.clone()));
            }
            wanted.feeds.push(output);
        }
        for (from, to) in &signature.connections {
            let target = find(graph, to, "FeedInputs", MasterError::FeedNotFound)?;
            let source = find(graph, from, "FetchOutputs", MasterError::FetchNotFound)?;
            if !taken.insert(target) {
                return Err(MasterError::FedTwice(to.clone()));
            }
            let (given, expected) = (graph.output_type(source), graph.output_type(target));
            if given.element != expected.element {
                return Err(MasterError::FeedType { name: to.clone(), given, expected });
            }
            wanted.stand_ins.insert(target, source);
        }
        for name in &signature.fetches {
            let output = find(graph, name, "FetchOutputs", MasterError::FetchNotFound)?;
            if taken.contains(&output) {
                return Err(MasterError::FedAndFetched(name.clone()));
            }
            wanted.fetches.push(output);
        }
        let mut missing = Vec::new();
        for name in &signature.targets {
            match graph.find(name.split_once(':').map_or(name, |(node, _)| node)) {
                Some(node) => wanted.targets.push(node),
                None => missing.push(name.as_str()),
            }
        }
        if missing.is_empty() { Ok(wanted) } else { Err(MasterError::TargetNotFound(missing.join(", "))) }
    }

    /// Which nodes a run needs, by their place in the graph (N1).
    #[must_use]
    pub fn keep(&self, graph: &Graph) -> Vec<bool> {
        let roots = self.fetches.iter().map(|output| output.node).chain(self.targets.iter().copied());
        reach(graph, roots, &self.stand_ins, self.feeds.iter().copied())
    }

    /// Feeds that a fetch needs, by their places.
    #[must_use]
    pub fn needs(&self, graph: &Graph, fetch: Output) -> Vec<usize> {
        let kept = reach(graph, std::iter::once(fetch.node), &self.stand_ins, self.feeds.iter().copied());
        let read: HashSet<Output> = graph
            .nodes()
            .iter()
            .zip(&kept)
            .filter(|(_, kept)| **kept)
            .flat_map(|(node, _)| node.inputs.iter().copied())
            .collect();
        (0..self.feeds.len()).filter(|at| read.contains(&self.feeds[*at])).collect()
    }
}

/// Everything that `roots` need, cut at `feeds`.
fn reach(
    graph: &Graph,
    roots: impl Iterator<Item = NodeId>,
    stand_ins: &HashMap<Output, Output>,
    feeds: impl Iterator<Item = Output>,
) -> Vec<bool> {
    let feeds: HashSet<Output> = feeds.collect();
    let mut kept = vec![false; graph.nodes().len()];
    let mut left: Vec<NodeId> = roots.collect();
    while let Some(id) = left.pop() {
        if std::mem::replace(&mut kept[id.at()], true) {
            continue;
        }
        let node = graph.node(id);
        for input in &node.inputs {
            match stand_ins.get(input) {
                Some(source) => left.push(source.node),
                None if feeds.contains(input) => {}
                None => left.push(input.node),
            }
        }
        // Whoever waits for a fed placeholder waits for its value.
        left.extend(node.control.iter().copied().filter(|id| !is_fed_placeholder(graph, *id, &feeds)));
    }
    kept
}

/// A placeholder whose value is given.
pub(super) fn is_fed_placeholder(graph: &Graph, id: NodeId, feeds: &HashSet<Output>) -> bool {
    matches!(graph.node(id).op(), "Placeholder" | "PlaceholderV2" | "PlaceholderWithDefault")
        && feeds.contains(&Output { node: id, index: 0 })
}

fn find(
    graph: &Graph,
    name: &str,
    what: &'static str,
    missing: fn(String) -> MasterError,
) -> Result<Output, MasterError> {
    if let Some(output) = graph.find_output(name) {
        return Ok(output);
    }
    let node = name.rsplit_once(':').and_then(|(node, _)| graph.find(node)).or_else(|| graph.find(name));
    Err(match node {
        Some(node) => MasterError::OutputIndex {
            what,
            name: name.to_owned(),
            outputs: graph.node(node).output_types.len(),
        },
        None => missing(name.to_owned()),
    })
}
