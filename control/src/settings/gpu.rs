//! Settings of work on GPUs.

use std::time::Duration;

use super::Values;

/// What `RINGWAY_NCCL_LIBRARY`, `RINGWAY_DEVICE` and `RINGWAY_DEVICE_TIMEOUT_MS` say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSettings {
    /// NCCL's file; `None` leaves it to the dynamic loader.
    pub library: Option<String>,
    /// The GPU of this rank; `None` goes by the rank's number on its host.
    pub device: Option<u32>,
    /// How long a call may be under way on a GPU.
    pub timeout: Duration,
}

impl Values<'_> {
    pub(super) fn gpu_settings(&self) -> GpuSettings {
        GpuSettings {
            library: self.text("RINGWAY_NCCL_LIBRARY"),
            device: self.count("RINGWAY_DEVICE"),
            timeout: self.millis("RINGWAY_DEVICE_TIMEOUT_MS"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
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
        assert_eq!((gpu(&given).timeout.as_millis(), gpu(&given).library.as_deref()), (500, Some("/x.so")));
    }
}
