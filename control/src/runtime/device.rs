//! Communicators over GPUs, as the settings and the job say: which GPU, which NCCL, the key-value store through which NCCL's
//! unique id travels, and which network cards are near enough to a GPU to reach its memory.

use super::world::World;
use crate::rpc::client::{Agent, StoreError};
use ringway_collectives::nccl::{DeviceOptions, Exchange, Nearness};
use ringway_topology::Machine;
use ringway_topology::host::discover_quickly;
use ringway_topology::model::reach::{Reach, too_far};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

impl World {
    /// How communicators over GPUs of this job are made; `device` goes before the settings.
    #[must_use]
    pub fn device_options(&self, device: Option<u32>) -> DeviceOptions {
        let gpu = self.gpu();
        DeviceOptions {
            device: device.or(gpu.device),
            library: gpu.library.clone(),
            timeout: gpu.timeout,
            exchange: self.shared_agent().map(|agent| -> Arc<dyn Exchange> {
                Arc::new(Store::new(Arc::downgrade(agent), self.job(), self.generation()))
            }),
            nearness: Some(Arc::new(ByTopology { reach: gpu.reach, machine: OnceLock::new() })),
        }
    }
}

/// Judges by this host's topology, as `RINGWAY_NET_GDR_LEVEL` says.
struct ByTopology {
    reach: Reach,
    /// Looked at when it matters.
    machine: OnceLock<Result<Machine, String>>,
}

impl Nearness for ByTopology {
    fn objects(&self, gpu: &str, cards: &[String]) -> Option<String> {
        match self.reach {
            Reach::Never => {
                Some("RINGWAY_NET_GDR_LEVEL=LOC keeps RDMA devices from memory of GPUs".to_owned())
            }
            Reach::Anywhere => None,
            reach => match self.machine.get_or_init(|| discover_quickly().map_err(|error| error.to_string()))
            {
                Ok(machine) => objection(machine, reach, gpu, cards),
                Err(why) => Some(format!("how far RDMA devices are from GPUs is not known here: {why}")),
            },
        }
    }
}

/// Why these cards are too far from a GPU, with what to do about it.
fn objection(machine: &Machine, reach: Reach, gpu: &str, cards: &[String]) -> Option<String> {
    let Ok(address) = gpu.parse() else { return Some(format!("{gpu:?} is no place on PCI")) };
    let far = too_far(machine, address, cards, reach)?;
    let at = match far.at {
        Some(distance) => format!("{distance}, seen from the GPU at {gpu}"),
        None => format!("in no known place of the machine, seen from the GPU at {gpu}"),
    };
    let word = reach.word();
    Some(format!(
        "{} is {at}, farther than RINGWAY_NET_GDR_LEVEL={word} allows: set another, or RINGWAY_IB_HCA",
        far.card
    ))
}

/// The part of the key-value store that is for this generation of the job's group: numbers of its communicators, and rank 0,
/// may be those of the one before, which a loss may have ended before its keys were removed. It does not keep the agent alive, which leaves when the world is dropped.
struct Store {
    agent: Weak<Agent>,
    place: String,
}

impl Store {
    fn new(agent: Weak<Agent>, job: &str, generation: u64) -> Store {
        Store { agent, place: format!("ringway/{job}/{generation}") }
    }

    fn agent(&self) -> Result<Arc<Agent>, String> {
        self.agent.upgrade().ok_or_else(|| "this rank has left its job".to_owned())
    }

    fn place(&self, key: &str) -> String {
        format!("{}/{key}", self.place)
    }
}

impl Exchange for Store {
    fn publish(&self, key: &str, value: &[u8]) -> Result<(), String> {
        self.agent()?.kv_set(&self.place(key), value, false).map_err(|error| error.to_string())
    }

    fn fetch(&self, key: &str, wait: Duration) -> Result<Option<Vec<u8>>, String> {
        match self.agent()?.kv_get(&self.place(key), wait) {
            Ok(value) => Ok(Some(value)),
            Err(StoreError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn forget(&self, key: &str) {
        let forgotten = self.agent().map(|agent| agent.kv_delete(&self.place(key)));
        if let Ok(Err(error)) = forgotten {
            tracing::debug!(%error, "a key of NCCL stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_that_are_too_far_are_named_with_the_setting() {
        let xml = include_str!("../../../topology/shapes/dgx-h100.xml");
        let machine = ringway_topology::host::from_xml(xml).unwrap();
        let gpu = machine.parts().gpus[0].pci.to_string();
        let says = |reach, card: &str| objection(&machine, reach, &gpu, &[card.to_owned()]);
        assert_eq!(says(Reach::Switches, "mlx5_0"), None);
        let far = says(Reach::Switches, "mlx5_6").unwrap();
        assert!(far.contains("mlx5_6 is elsewhere in the machine") && far.contains("GDR_LEVEL=PXB"), "{far}");
        assert!(says(Reach::Node, "rxe0").unwrap().contains("no known place"), "a card in software");
        let at =
            |reach| ByTopology { reach, machine: OnceLock::new() }.objects("no place", &["rxe0".to_owned()]);
        assert_eq!(at(Reach::Anywhere), None);
        assert!(at(Reach::Never).unwrap().contains("LOC"));
    }

    #[test]
    fn generations_do_not_meet_by_keys_of_those_before() {
        let [first, second] =
            [1, 2].map(|generation| Store::new(Weak::new(), "job", generation).place("nccl/k"));
        assert!(first != second && first.ends_with("/nccl/k"), "{first} {second}");
    }
}
