//! Random programs with branches and loops: what the graph gives in any order is what running the program line by line gives.

use super::*;
use crate::core::simulate::random::Random;
use crate::core::worker::plan::{Flow, NodeShape};

/// One line of a program: it makes one variable more.
#[derive(Debug)]
enum Line {
    Add(usize, usize),
    Mul(usize, usize),
    /// If the variable is even, the first block, else the second; each gives its last variable.
    If(usize, Vec<Line>, Vec<Line>),
    /// Goes round (variable modulo 5) times; the block's last variable becomes the accumulator, which begins as this one.
    While(usize, usize, Vec<Line>),
}

fn block(random: &mut Random, mut variables: usize, depth: u32) -> Vec<Line> {
    let count = 1 + random.below(4);
    let mut lines = Vec::new();
    for _ in 0..count {
        let mut any = || random.below(variables as u64) as usize;
        let (a, b) = (any(), any());
        lines.push(match random.below(if depth == 0 { 2 } else { 5 }) {
            0 => Line::Add(a, b),
            1 => Line::Mul(a, b),
            2 => Line::If(a, block(random, variables, depth - 1), block(random, variables, depth - 1)),
            _ => Line::While(a, b, block(random, variables + 2, depth - 1)),
        });
        variables += 1;
    }
    lines
}

fn add(a: i64, b: i64) -> i64 {
    a.wrapping_add(b) % 1_000_003
}

fn mul(a: i64, b: i64) -> i64 {
    (a.wrapping_mul(b) + 1) % 1_000_003
}

fn interpret(lines: &[Line], mut variables: Vec<i64>) -> i64 {
    for line in lines {
        let value = match line {
            Line::Add(a, b) => add(variables[*a], variables[*b]),
            Line::Mul(a, b) => mul(variables[*a], variables[*b]),
            Line::If(on, then, other) => {
                let taken = if variables[*on] % 2 == 0 { then } else { other };
                interpret(taken, variables.clone())
            }
            Line::While(times, start, body) => {
                let mut accumulator = variables[*start];
                for round in 0..variables[*times].rem_euclid(5) {
                    let mut inner = variables.clone();
                    inner.extend([round, accumulator]);
                    accumulator = interpret(body, inner);
                }
                accumulator
            }
        };
        variables.push(value);
    }
    variables[variables.len() - 1]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    Const(i64),
    Add,
    Mul,
    IsEven,
    RoundsOf,
    Less,
    Switch,
    Merge,
    Pass,
}

type Place = (u32, u32);

#[derive(Default)]
struct Builder {
    shapes: Vec<NodeShape>,
    does: Vec<Does>,
    frames: usize,
}

impl Builder {
    fn node(&mut self, does: Does, flow: Flow, inputs: &[Place]) -> Place {
        self.shapes.push(NodeShape { flow, inputs: inputs.to_vec(), control: Vec::new() });
        self.does.push(does);
        (self.shapes.len() as u32 - 1, 0)
    }

    fn plain(&mut self, does: Does, inputs: &[Place]) -> Place {
        self.node(does, Flow::Plain, inputs)
    }

    /// Variable 0 is always a 1 of the frame that the block is in.
    fn block(&mut self, lines: &[Line], mut variables: Vec<Place>) -> Place {
        for line in lines {
            let made = match line {
                Line::Add(a, b) => self.plain(Does::Add, &[variables[*a], variables[*b]]),
                Line::Mul(a, b) => self.plain(Does::Mul, &[variables[*a], variables[*b]]),
                Line::If(on, then, other) => {
                    let even = self.plain(Does::IsEven, &[variables[*on]]);
                    let switched: Vec<Place> =
                        variables.iter().map(|v| self.plain(Does::Switch, &[*v, even])).collect();
                    let taken = self.block(then, switched.iter().map(|(node, _)| (*node, 1)).collect());
                    let other = self.block(other, switched);
                    self.node(Does::Merge, Flow::Merge, &[other, taken])
                }
                Line::While(times, start, body) => {
                    self.round(variables[*times], variables[*start], body, &variables)
                }
            };
            variables.push(made);
        }
        variables[variables.len() - 1]
    }

    fn round(&mut self, times: Place, start: Place, body: &[Line], variables: &[Place]) -> Place {
        self.frames += 1;
        let (frame, parallel): (Arc<str>, u32) =
            (format!("loop {}", self.frames).into(), 1 + self.frames as u32 % 4);
        let enter = |constant| Flow::Enter { frame: frame.clone(), constant, parallel };
        let rounds = self.plain(Does::RoundsOf, &[times]);
        let rounds = self.node(Does::Pass, enter(true), &[rounds]);
        let mut inner: Vec<Place> =
            variables.iter().map(|v| self.node(Does::Pass, enter(true), &[*v])).collect();
        let one = inner[0];
        // A zero that hangs on something: a source would be of the outer frame.
        let zero = self.plain(Does::Const(0), &[variables[0]]);
        let (count, accumulator) =
            (self.node(Does::Pass, enter(false), &[zero]), self.node(Does::Pass, enter(false), &[start]));
        let count = self.node(Does::Merge, Flow::Merge, &[count]);
        let accumulator = self.node(Does::Merge, Flow::Merge, &[accumulator]);
        let goes_on = self.plain(Does::Less, &[count, rounds]);
        let count_on = self.plain(Does::Switch, &[count, goes_on]);
        let accumulator_on = self.plain(Does::Switch, &[accumulator, goes_on]);
        // As in TensorFlow, all that a body makes hangs on the round being taken; else a loop in it would run half dead.
        let gate = self.plain(Does::Pass, &[(count_on.0, 1)]);
        for variable in &mut inner {
            *variable = self.plain(Does::Pass, &[*variable]);
            self.shapes[variable.0 as usize].control.push(gate.0);
        }
        inner.extend([(count_on.0, 1), (accumulator_on.0, 1)]);
        let result = self.block(body, inner);
        let next_count = self.plain(Does::Add, &[(count_on.0, 1), one]);
        for (value, merge) in [(next_count, count), (result, accumulator)] {
            let next = self.node(Does::Pass, Flow::NextIteration, &[value]);
            self.shapes[merge.0 as usize].inputs.push(next);
        }
        self.node(Does::Pass, Flow::Exit, &[accumulator_on])
    }
}

fn compute(does: Does, inputs: &[Option<Arc<i64>>]) -> Vec<Option<Arc<i64>>> {
    let at = |index: usize| **inputs[index].as_ref().expect("a live node has its inputs");
    let one = |value: i64| vec![Some(Arc::new(value))];
    match does {
        Does::Const(value) => one(value),
        Does::Add => one(add(at(0), at(1))),
        Does::Mul => one(mul(at(0), at(1))),
        Does::IsEven => one(i64::from(at(0) % 2 == 0)),
        Does::RoundsOf => one(at(0).rem_euclid(5)),
        Does::Less => one(i64::from(at(0) < at(1))),
        Does::Switch => {
            let mut outputs = vec![None, None];
            outputs[at(1) as usize] = inputs[0].clone();
            outputs
        }
        Does::Merge | Does::Pass => vec![inputs.iter().flatten().next().cloned()],
    }
}

/// Runs a graph, ready nodes in a random order; what the node `fetch` gave, and how many nodes ran.
fn run(builder: &Builder, fetch: u32, random: &mut Random) -> (Option<i64>, usize) {
    let plan = Arc::new(Plan::new(&builder.shapes).unwrap());
    let mut execution = Execution::new(plan);
    let (mut ready, mut inputs, mut result, mut ran) = (Vec::new(), Vec::new(), None, 0);
    let mut seen = std::collections::HashSet::new();
    execution.start(&mut ready);
    while !ready.is_empty() {
        let next = ready.swap_remove(random.below(ready.len() as u64) as usize);
        let (frame, iteration) = execution.place(&next);
        assert!(seen.insert((next.node, frame, iteration)), "E1: {next:?} twice");
        inputs.clear();
        execution.take_inputs(&next, |input| inputs.push(input));
        let does = builder.does[next.node as usize];
        let mut outputs = if next.dead { Vec::new() } else { compute(does, &inputs) };
        inputs.clear();
        if next.node == fetch {
            // An exit also runs, dead, in the rounds before the last.
            result = outputs.first().and_then(|value| value.as_deref().copied()).or(result);
        }
        execution.finish(next, &mut outputs, &mut ready);
        ran += 1;
    }
    assert!(execution.is_over());
    assert!(execution.frames.iter().all(Option::is_none), "E3: a frame is left");
    (result, ran)
}

#[test]
fn graphs_give_what_their_programs_give_in_any_order() {
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let start: Vec<i64> = vec![1, random.below(100) as i64, random.below(100) as i64];
        let lines = block(&mut random, start.len(), 3);
        let expected = interpret(&lines, start.clone());
        let mut builder = Builder::default();
        let sources = start.iter().map(|value| builder.plain(Does::Const(*value), &[])).collect();
        let (fetch, _) = builder.block(&lines, sources);
        for _ in 0..2 {
            let (given, _) = run(&builder, fetch, &mut random);
            assert_eq!(given, Some(expected), "seed {seed}: {lines:#?}");
        }
    }
}

#[test]
fn the_last_reader_has_a_value_for_itself() {
    let mut builder = Builder::default();
    let source = builder.plain(Does::Const(7), &[]);
    let readers = [builder.plain(Does::Pass, &[source]), builder.plain(Does::Pass, &[source])];
    let mut execution = Execution::new(Arc::new(Plan::new(&builder.shapes).unwrap()));
    let mut ready = Vec::new();
    execution.start(&mut ready);
    let first = ready.pop().unwrap();
    execution.finish(first, &mut [Some(Arc::new(7))], &mut ready);
    assert_eq!(ready.len(), readers.len());
    let mut counts = Vec::new();
    for reader in ready.clone() {
        let mut inputs: Vec<Option<Arc<i64>>> = Vec::new();
        execution.take_inputs(&reader, |input| inputs.push(input));
        counts.push(Arc::strong_count(inputs[0].as_ref().unwrap()));
    }
    assert_eq!(counts, [2, 1], "E2");
}

#[test]
fn a_dead_node_passes_it_on_until_a_merge_or_a_trigger() {
    let mut builder = Builder::default();
    let value = builder.plain(Does::Const(5), &[]);
    let no = builder.plain(Does::Const(0), &[]);
    let switch = builder.plain(Does::Switch, &[value, no]);
    let dead = builder.plain(Does::Pass, &[(switch.0, 1)]);
    let after = builder.plain(Does::Const(9), &[]);
    builder.shapes[after.0 as usize].control.push(dead.0);
    let trigger = builder.node(Does::Const(3), Flow::ControlTrigger, &[]);
    builder.shapes[trigger.0 as usize].control.push(dead.0);
    let merge = builder.node(Does::Merge, Flow::Merge, &[dead, switch]);
    let random = &mut Random::new(1);
    assert_eq!(run(&builder, after.0, random).0, None);
    assert_eq!(run(&builder, trigger.0, random).0, Some(3));
    assert_eq!(run(&builder, merge.0, random).0, Some(5));
}
