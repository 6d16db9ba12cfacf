//! Communicators over GPUs, as the settings and the job say: which GPU, which NCCL, and the key-value store through which
//! NCCL's unique id travels.

use super::world::World;
use crate::rpc::client::{Agent, StoreError};
use ringway_collectives::nccl::{DeviceOptions, Exchange};
use std::sync::{Arc, Weak};
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
        }
    }
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
    fn generations_do_not_meet_by_keys_of_those_before() {
        let [first, second] =
            [1, 2].map(|generation| Store::new(Weak::new(), "job", generation).place("nccl/k"));
        assert!(first != second && first.ends_with("/nccl/k"), "{first} {second}");
    }
}
