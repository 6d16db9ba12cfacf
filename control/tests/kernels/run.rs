//! Runs the nodes of a graph one after the other, in the order in which they stand.

use std::sync::atomic::AtomicBool;

use ringway_control::core::graph::{Graph, Node};
use ringway_control::kernels::{Call, Kernel, OpError, Resources, Slot, StepScope, build};

/// The state that kernels run on.
pub(crate) struct Bench {
    resources: Resources,
    temporaries: Resources,
    cancelled: AtomicBool,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        Bench {
            resources: Resources::new("worker"),
            temporaries: Resources::new("step"),
            cancelled: AtomicBool::new(false),
        }
    }

    /// One node, of these inputs. `Err` with what it says.
    pub(crate) fn call(&self, node: &Node, inputs: &mut [Slot]) -> Result<Vec<Slot>, OpError> {
        let kernel = build(node).map_err(|error| OpError::invalid(error.to_string()))?;
        let mut outputs = vec![Slot::Empty; node.output_types.len()];
        self.run_kernel(&*kernel, inputs, &mut outputs)?;
        Ok(outputs)
    }

    /// One kernel, of these inputs.
    pub(crate) fn run_kernel(
        &self,
        kernel: &dyn Kernel,
        inputs: &mut [Slot],
        outputs: &mut [Slot],
    ) -> Result<(), OpError> {
        let scope = StepScope {
            step_id: 1,
            device: "/job:worker/replica:0/task:0/device:CPU:0",
            resources: &self.resources,
            temporaries: &self.temporaries,
            cancelled: &self.cancelled,
        };
        kernel.run(&mut Call::new(scope, "node", inputs, outputs))
    }

    /// All nodes; what each gives.
    pub(crate) fn run(&self, graph: &Graph) -> Result<Vec<Vec<Slot>>, String> {
        let mut results: Vec<Vec<Slot>> = Vec::new();
        for node in graph.nodes() {
            let given =
                node.inputs.iter().map(|input| results[input.node.at()][input.index as usize].clone());
            let mut inputs: Vec<Slot> = given.collect();
            let outputs = self
                .call(node, &mut inputs)
                .map_err(|error| format!("{} ({}): {error}", node.name(), node.op()))?;
            for (at, output) in outputs.iter().enumerate() {
                if matches!(output, Slot::Empty) {
                    return Err(format!("{} ({}): output {at} is not set", node.name(), node.op()));
                }
            }
            results.push(outputs);
        }
        Ok(results)
    }
}
