//! A session's graph: checked, placed, and extended without a change to what is there.

use std::sync::Arc;

use ringway_proto::tensorflow::{GraphDef, VersionDef};

use super::devices::Devices;
use super::error::MasterError;
use super::partition::{Part, partition};
use super::placement::place;
use super::prune::{Signature, Wanted};
use crate::core::graph::{Graph, Type};

/// A graph of some version. An extension is another value: steps under way keep theirs.
#[derive(Clone, Debug, Default)]
pub struct Program {
    def: GraphDef,
    graph: Arc<Graph>,
    placement: Vec<usize>,
    version: i64,
}

/// A run, ready to be handed to workers.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it was made for.
    pub signature: Signature,
    /// One for each task that takes part.
    pub parts: Vec<Part>,
    /// Types of the feeds, in order.
    pub feed_types: Vec<Type>,
}

impl Program {
    /// Checks and places a graph. With `soft` a node whose device does not exist goes to another of its task.
    ///
    /// # Errors
    /// [`MasterError`]: what is wrong with it first.
    pub fn new(def: GraphDef, devices: &Devices, soft: bool) -> Result<Program, MasterError> {
        let graph = Arc::new(Graph::from_def(&def)?);
        let placement = place(&graph, devices, soft, &[])?;
        Ok(Program { def, graph, placement, version: 0 })
    }

    /// The same with more nodes and functions. `expected` is the version that the caller extends.
    ///
    /// # Errors
    /// [`MasterError::Version`], [`MasterError::NodeThere`], and as for [`Program::new`].
    pub fn extend(
        &self,
        more: GraphDef,
        expected: i64,
        devices: &Devices,
        soft: bool,
    ) -> Result<Program, MasterError> {
        if expected != self.version {
            return Err(MasterError::Version { current: self.version, expected });
        }
        if let Some(there) = more.node.iter().find(|node| self.graph.find(&node.name).is_some()) {
            return Err(MasterError::NodeThere(there.name.clone()));
        }
        let mut def = self.def.clone();
        def.node.extend(more.node);
        if let Some(functions) = more.library {
            let library = def.library.get_or_insert_default();
            library.function.extend(functions.function);
            library.gradient.extend(functions.gradient);
        }
        def.versions = newer(def.versions, more.versions);
        let graph = Arc::new(Graph::from_def(&def)?);
        let placement = place(&graph, devices, soft, &self.placement)?;
        Ok(Program { def, graph, placement, version: self.version + 1 })
    }

    /// The version that the next extension must name.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.version
    }

    /// The checked graph.
    #[must_use]
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// The device of each node.
    #[must_use]
    pub fn placement(&self) -> &[usize] {
        &self.placement
    }

    /// Makes a run: prunes, and cuts by task.
    ///
    /// # Errors
    /// [`MasterError`]: names that are not there, or loops that are not sound.
    pub fn plan(&self, signature: Signature, devices: &Devices) -> Result<Plan, MasterError> {
        let wanted = Wanted::resolve(&self.graph, &signature)?;
        let parts = partition(&self.graph, self.def.versions.as_ref(), &self.placement, devices, &wanted)?;
        let feed_types = wanted.feeds.iter().map(|feed| self.graph.output_type(*feed)).collect();
        Ok(Plan { signature, parts, feed_types })
    }

    /// For each fetch, the places of the feeds that it needs.
    ///
    /// # Errors
    /// [`MasterError`]: names that are not there.
    pub fn needs(&self, signature: &Signature) -> Result<Vec<Vec<usize>>, MasterError> {
        let wanted = Wanted::resolve(&self.graph, signature)?;
        Ok(wanted.fetches.iter().map(|fetch| wanted.needs(&self.graph, *fetch)).collect())
    }
}

fn newer(known: Option<VersionDef>, more: Option<VersionDef>) -> Option<VersionDef> {
    match (known, more) {
        (Some(known), Some(more)) if more.producer > known.producer => Some(more),
        (known, more) => known.or(more),
    }
}
