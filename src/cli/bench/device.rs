//! Whose memory is measured: the host's, or that of GPUs.

use super::BenchError;
use super::measure;
use ringway::{Communicator, Settings};
use std::str::FromStr;

/// What `--device` may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    /// Memory of the host.
    Cpu,
    /// Memory of GPUs: of this one, or of that which the settings and the rank's number on its host tell.
    Cuda(Option<u32>),
}

impl FromStr for On {
    type Err = String;

    fn from_str(text: &str) -> Result<On, String> {
        let number =
            |n: &str| n.parse().map_err(|_| format!("{n:?} is no number of a GPU: give cuda:0, cuda:1, ..."));
        match (text, text.strip_prefix("cuda:")) {
            ("cpu", _) => Ok(On::Cpu),
            ("cuda", _) => Ok(On::Cuda(None)),
            (_, Some(n)) => number(n).map(|n| On::Cuda(Some(n))),
            _ => Err("give cpu, cuda, or cuda:N".to_owned()),
        }
    }
}

/// Where the memory is, with what its calls are made by.
pub(super) enum Place {
    /// On the host.
    Host,
    /// On GPUs.
    #[cfg(feature = "nccl")]
    Gpu(Box<super::gpu::Gpus>),
}

impl Place {
    /// Makes the communicator over GPUs where they are measured. All ranks call it.
    #[cfg(feature = "nccl")]
    pub(super) fn of(comm: &Communicator, on: On, inside: Option<u32>) -> Result<Place, measure::BenchError> {
        use super::gpu::Gpus;
        let On::Cuda(device) = on else { return Ok(Place::Host) };
        let gpus = match inside {
            None => Gpus::Flat(comm.on_gpus(device)?),
            Some(ranks) => {
                let hierarchy = comm.on_gpus_of_hosts(device, Some(ranks).filter(|ranks| *ranks > 0))?;
                Gpus::Layered(Box::new(hierarchy), (comm.rank(), comm.size()))
            }
        };
        Ok(Place::Gpu(Box::new(gpus)))
    }

    /// There are only hosts.
    #[cfg(not(feature = "nccl"))]
    pub(super) fn of(
        _comm: &Communicator,
        _on: On,
        _inside: Option<u32>,
    ) -> Result<Place, measure::BenchError> {
        Ok(Place::Host)
    }

    /// What a rank says of its memory, before what it says of its connections.
    pub(super) fn why(&self) -> String {
        match self {
            Place::Host => String::new(),
            #[cfg(feature = "nccl")]
            Place::Gpu(gpu) => format!("{}; beside it ", gpu.why()),
        }
    }
}

/// Refuses GPUs on a host that lacks what they need, in one sentence, before any rank is started.
#[cfg(feature = "nccl")]
pub(super) fn check(on: On, settings: &Settings) -> Result<(), BenchError> {
    if on == On::Cpu {
        return Ok(());
    }
    let missing = ringway_collectives::nccl::Survey::this_host(settings.gpu.library.as_deref()).missing();
    missing.map_or(Ok(()), |what| Err(BenchError::Flags(format!("--device cuda: {what}"))))
}

/// Refuses GPUs.
#[cfg(not(feature = "nccl"))]
pub(super) fn check(on: On, _settings: &Settings) -> Result<(), BenchError> {
    match on {
        On::Cpu => Ok(()),
        On::Cuda(_) => Err(BenchError::Flags(
            "--device cuda: this program was built without the feature nccl: build it with --features nccl"
                .to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read() {
        let read = |text: &str| text.parse::<On>();
        assert_eq!(
            (read("cpu"), read("cuda"), read("cuda:3")),
            (Ok(On::Cpu), Ok(On::Cuda(None)), Ok(On::Cuda(Some(3))))
        );
        assert!(read("cuda:x").unwrap_err().contains("cuda:0"));
        assert!(read("rocm").unwrap_err().contains("cuda"));
    }
}
