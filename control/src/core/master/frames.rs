//! Which loop each node is in, and what a loop needs to run over several tasks.
//!
//! A value that crosses from task to task within a loop does so once per iteration. The receiving task must know
//! whether there is another iteration, so it runs a loop of its own that does nothing but follow the condition:
//! `Enter`, `Merge`, `Switch` on the condition that the other task sends, `NextIteration`. What receives within the loop
//! waits for that `Merge`. Loops within loops hang on the `Merge` of the outer one. This is how TensorFlow's graph
//! partitioning does it.
//!
//! - **F1** All inputs of a node are in one frame, but for those of an `Enter`.
//! - **F2** For every edge within a frame that ends on another task, that task has a control loop of the frame.

use std::collections::HashMap;

use ringway_proto::tensorflow::DataType;
use ringway_proto::tensorflow::attr_value::Value;

use super::cells::{Cell, Cells, empty_constant, node};
use super::error::MasterError;
use crate::core::graph::Type;

/// Iterations that run at once where the loop does not say.
const PARALLEL_ITERATIONS: i64 = 10;

/// A loop's frame.
struct Frame {
    name: String,
    parent: Option<usize>,
    parallel_iterations: i64,
    condition: Option<usize>,
}

/// The frames of a run: for each cell the one that it is in, and for each frame and task the `Merge` to wait for.
#[derive(Default)]
pub(super) struct Frames {
    of: Vec<Option<usize>>,
    all: Vec<Frame>,
    merges: HashMap<(usize, usize), usize>,
}

impl Frames {
    /// Finds the frame of every cell.
    ///
    /// # Errors
    /// [`MasterError::Frames`] against F1, and [`MasterError::Cycle`].
    pub(super) fn find(cells: &Cells<'_>) -> Result<Frames, MasterError> {
        let mut frames = Frames { of: vec![None; cells.all.len()], ..Frames::default() };
        let mut by_name: HashMap<Vec<u8>, usize> = HashMap::new();
        for at in order(&cells.all)? {
            let cell = &cells.all[at];
            let outer = frames.of_inputs(cell, &cells.all)?;
            frames.of[at] = match op(cell) {
                "Enter" => Some(frames.enter(cell, outer, &mut by_name)),
                _ => outer,
            };
            if let ("LoopCond", Some(frame)) = (op(cell), frames.of[at]) {
                frames.all[frame].condition = Some(at);
            }
        }
        Ok(frames)
    }

    /// The frame that the values of a cell are in.
    fn behind(&self, at: usize, cells: &[Cell]) -> Option<usize> {
        match (op(&cells[at]), self.of[at]) {
            ("Exit", Some(frame)) => self.all[frame].parent,
            (_, frame) => frame,
        }
    }

    fn of_inputs(&self, cell: &Cell, cells: &[Cell]) -> Result<Option<usize>, MasterError> {
        let mut known: Option<(usize, Option<usize>)> = None;
        let inputs = cell.inputs.iter().map(|(from, _)| *from).chain(cell.control.iter().copied());
        for from in inputs.filter(|from| !begins_iteration(&cells[*from])) {
            let frame = self.behind(from, cells);
            match known {
                None => known = Some((from, frame)),
                Some((_, same)) if same == frame => {}
                Some((first, other)) => {
                    let name =
                        |frame: Option<usize>| frame.map_or(String::new(), |at| self.all[at].name.clone());
                    return Err(MasterError::Frames {
                        node: cell.def.name.clone(),
                        first: cells[first].def.name.clone(),
                        first_frame: name(other),
                        second: cells[from].def.name.clone(),
                        second_frame: name(frame),
                    });
                }
            }
        }
        Ok(known.and_then(|(_, frame)| frame))
    }

    fn enter(&mut self, cell: &Cell, outer: Option<usize>, by_name: &mut HashMap<Vec<u8>, usize>) -> usize {
        let name = match attr(cell, "frame_name") {
            Some(Value::S(name)) => name.clone(),
            _ => Vec::new(),
        };
        let parallel_iterations = match attr(cell, "parallel_iterations") {
            Some(Value::I(many)) => *many,
            _ => PARALLEL_ITERATIONS,
        };
        *by_name.entry(name).or_insert_with_key(|name| {
            let name = String::from_utf8_lossy(name).into_owned();
            self.all.push(Frame { name, parent: outer, parallel_iterations, condition: None });
            self.all.len() - 1
        })
    }

    /// Whether there is any loop.
    pub(super) fn any(&self) -> bool {
        !self.all.is_empty()
    }

    /// What a value that comes to `to` from another task within a loop must wait for.
    pub(super) fn gate(&self, cells: &Cells<'_>, from: usize, to: usize) -> Option<usize> {
        let frame = self.shared(from, to)?;
        self.merges.get(&(frame, cells.task(to))).copied()
    }

    /// The frame that both ends of an edge are in.
    fn shared(&self, from: usize, to: usize) -> Option<usize> {
        self.of[from].filter(|frame| self.of[to] == Some(*frame))
    }

    /// Adds the control loops (F2).
    ///
    /// # Errors
    /// [`MasterError::NoPivot`] for a loop without a condition.
    pub(super) fn add_control_loops(&mut self, cells: &mut Cells<'_>) -> Result<(), MasterError> {
        let mut at = 0;
        // Also over the edges from conditions to the switches that are added on the way.
        while at < cells.all.len() {
            let cell = &cells.all[at];
            let inputs: Vec<usize> =
                cell.inputs.iter().map(|(from, _)| *from).chain(cell.control.iter().copied()).collect();
            for from in inputs {
                let crosses = cells.task(from) != cells.task(at);
                if let Some(frame) = self.shared(from, at).filter(|_| crosses) {
                    self.follow(cells, frame, at)?;
                }
            }
            at += 1;
        }
        Ok(())
    }

    /// Makes the task of `reader` follow `frame` and those around it.
    fn follow(&mut self, cells: &mut Cells<'_>, frame: usize, reader: usize) -> Result<(), MasterError> {
        let (device, task) = (cells.all[reader].device, cells.task(reader));
        let like = cells.all[reader].def.name.clone();
        let mut current = Some(frame);
        let mut inner_enter: Option<usize> = None;
        while let Some(frame) = current {
            if let Some(merge) = self.merges.get(&(frame, task)) {
                if let Some(enter) = inner_enter {
                    cells.all[enter].inputs.push((*merge, 0));
                }
                return Ok(());
            }
            let (enter, merge) = self.add_loop(cells, frame, device, &like)?;
            self.merges.insert((frame, task), merge);
            if let Some(inner) = inner_enter {
                cells.all[inner].inputs.push((merge, 0));
            }
            inner_enter = Some(enter);
            current = self.all[frame].parent;
        }
        if let Some(enter) = inner_enter {
            let def = empty_constant(cells.fresh(&like).0);
            let start = self.push(cells, None, Cell { def, ..blank(device, 1) });
            cells.all[enter].inputs.push((start, 0));
        }
        Ok(())
    }

    fn add_loop(
        &mut self,
        cells: &mut Cells<'_>,
        frame: usize,
        device: usize,
        like: &str,
    ) -> Result<(usize, usize), MasterError> {
        let Frame { name, parallel_iterations, condition, .. } = &self.all[frame];
        let condition = condition.ok_or_else(|| MasterError::NoPivot(name.clone()))?;
        let float = || Value::Type(DataType::DtFloat as i32);
        let enter = [
            ("T", float()),
            ("frame_name", Value::S(name.clone().into_bytes())),
            ("is_constant", Value::B(false)),
            ("parallel_iterations", Value::I(*parallel_iterations)),
        ];
        let enter = node(cells.fresh(&format!("_cloop{like}/Enter")).0, "Enter", enter);
        let enter = self.push(cells, Some(frame), Cell { def: enter, ..blank(device, 1) });
        let merge = [("T", float()), ("N", Value::I(2))];
        let merge = node(cells.fresh(&format!("_cloop{like}/Merge")).0, "Merge", merge);
        let merge = self.push(cells, Some(frame), Cell { def: merge, ..blank(device, 2) });
        let switch = node(cells.fresh(&format!("_cloop{like}/Switch")).0, "Switch", [("T", float())]);
        let inputs = vec![(merge, 0), (condition, 0)];
        let switch = self.push(cells, Some(frame), Cell { def: switch, inputs, ..blank(device, 2) });
        let next = node(cells.fresh(&format!("_cloop{like}/Next")).0, "NextIteration", [("T", float())]);
        let inputs = vec![(switch, 1)];
        let next = self.push(cells, Some(frame), Cell { def: next, inputs, ..blank(device, 1) });
        cells.all[merge].inputs = vec![(enter, 0), (next, 0)];
        Ok((enter, merge))
    }

    fn push(&mut self, cells: &mut Cells<'_>, frame: Option<usize>, cell: Cell) -> usize {
        cells.all.push(cell);
        self.of.push(frame);
        cells.all.len() - 1
    }
}

fn blank(device: usize, outputs: usize) -> Cell {
    Cell {
        def: Default::default(),
        device,
        inputs: Vec::new(),
        control: Vec::new(),
        outputs: vec![Type::of(DataType::DtFloat); outputs],
    }
}

/// The operation, without the difference between values and references.
fn op(cell: &Cell) -> &str {
    match cell.def.op.as_str() {
        "RefEnter" => "Enter",
        "RefExit" => "Exit",
        "RefNextIteration" => "NextIteration",
        other => other,
    }
}

fn attr<'a>(cell: &'a Cell, name: &str) -> Option<&'a Value> {
    cell.def.attr.get(name).and_then(|attr| attr.value.as_ref())
}

fn begins_iteration(cell: &Cell) -> bool {
    op(cell) == "NextIteration"
}

/// Cells behind what they read, but for edges that begin the next iteration.
fn order(cells: &[Cell]) -> Result<Vec<usize>, MasterError> {
    let mut readers: Vec<Vec<u32>> = vec![Vec::new(); cells.len()];
    let mut waits_for = vec![0_u32; cells.len()];
    for (at, cell) in cells.iter().enumerate() {
        for before in cell.inputs.iter().map(|(from, _)| *from).chain(cell.control.iter().copied()) {
            if !begins_iteration(&cells[before]) {
                readers[before].push(at as u32);
                waits_for[at] += 1;
            }
        }
    }
    let mut order: Vec<usize> = (0..cells.len()).filter(|at| waits_for[*at] == 0).collect();
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
    match waits_for.iter().position(|waits| *waits > 0) {
        None => Ok(order),
        Some(at) => {
            Err(MasterError::Cycle { nodes: cells.len() - order.len(), some: cells[at].def.name.clone() })
        }
    }
}
