//! Settings of work on GPUs.

use std::time::Duration;

use ringway_topology::model::reach::Reach;

use super::Values;

/// What `RINGWAY_NCCL_LIBRARY`, `RINGWAY_DEVICE`, `RINGWAY_DEVICE_TIMEOUT_MS` and `RINGWAY_NET_GDR_LEVEL` say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSettings {
    /// NCCL's file; `None` leaves it to the dynamic loader.
    pub library: Option<String>,
    /// The GPU of this rank; `None` goes by the rank's number on its host.
    pub device: Option<u32>,
    /// How long a call may be under way on a GPU.
    pub timeout: Duration,
    /// How far an RDMA device may be from a GPU to reach its memory.
    pub reach: Reach,
}

impl Values<'_> {
    pub(super) fn gpu_settings(&self) -> GpuSettings {
        GpuSettings {
            library: self.text("RINGWAY_NCCL_LIBRARY"),
            device: self.count("RINGWAY_DEVICE"),
            timeout: self.millis("RINGWAY_DEVICE_TIMEOUT_MS"),
            reach: self.word("RINGWAY_NET_GDR_LEVEL").and_then(Reach::of).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use ringway_topology::model::reach::Reach;
    use std::time::Duration;

    #[test]
    fn a_rank_may_be_given_its_gpu() {
        let gpu = |pairs: &[(&str, &str)]| Settings::from_pairs(pairs.iter().copied()).unwrap().gpu;
        assert_eq!((gpu(&[]).device, gpu(&[]).library), (None, None));
        assert_eq!(gpu(&[]).timeout, Duration::from_secs(600));
        let given = [
            ("RINGWAY_DEVICE", "3"),
            ("RINGWAY_DEVICE_TIMEOUT_MS", "500"),
            ("RINGWAY_NCCL_LIBRARY", "/x.so"),
        ];
        assert_eq!(gpu(&given).device, Some(3));
        let reach = |level| gpu(&[("RINGWAY_NET_GDR_LEVEL", level)]).reach;
        assert_eq!(
            (gpu(&[]).reach, reach("LOC"), reach("sys")),
            (Reach::Switches, Reach::Never, Reach::Anywhere)
        );
        assert!(Settings::from_pairs([("RINGWAY_NET_GDR_LEVEL", "3")]).is_err());
        assert_eq!((gpu(&given).timeout.as_millis(), gpu(&given).library.as_deref()), (500, Some("/x.so")));
    }
}
