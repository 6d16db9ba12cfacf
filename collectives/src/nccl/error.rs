//! What may be missing for work on GPUs, and what a library may answer.

#![forbid(unsafe_code)]

use crate::engine::CollectiveError;
use std::fmt;

/// A version of NCCL or of the driver's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// As in 2.18.3.
    pub major: u32,
    /// As in 2.18.3.
    pub minor: u32,
    /// As in 2.18.3; 0 for the driver, which has none.
    pub patch: u32,
}

impl Version {
    /// The oldest NCCL that is used: the first in which a communicator that was made without blocking can be polled and
    /// aborted at every stage, by its release notes.
    pub const OLDEST_NCCL: Version = Version { major: 2, minor: 18, patch: 0 };
    /// The oldest driver that is used: what NCCL 2.18 asks for.
    pub const OLDEST_DRIVER: Version = Version { major: 11, minor: 0, patch: 0 };

    /// Reads what `ncclGetVersion` answers: MAJOR * 10000 + MINOR * 100 + PATCH, before 2.9 MAJOR * 1000.
    #[must_use]
    pub fn of_nccl(code: u32) -> Version {
        let (unit, rest) = if code < 10_000 { (1000, code % 1000) } else { (10_000, code % 10_000) };
        Version { major: code / unit, minor: rest / 100, patch: rest % 100 }
    }

    /// Reads what `cuDriverGetVersion` answers: MAJOR * 1000 + MINOR * 10.
    #[must_use]
    pub fn of_driver(code: u32) -> Version {
        Version { major: code / 1000, minor: code % 1000 / 10, patch: 0 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.patch > 0 { write!(f, ".{}", self.patch) } else { Ok(()) }
    }
}

/// What is missing on this host for work on GPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// There is no driver.
    #[error(
        "the NVIDIA driver is missing (the dynamic loader finds no libcuda.so.1): install it, or give the container \
         the host's by docker run --gpus all"
    )]
    NoDriver,
    /// The driver lacks a function.
    #[error(
        "the NVIDIA driver has no {symbol}: it is none, or too old; install {} or later",
        Version::OLDEST_DRIVER
    )]
    DriverIncomplete {
        /// The first function that is missing.
        symbol: &'static str,
    },
    /// The driver is too old.
    #[error(
        "the NVIDIA driver supports CUDA {found}, and {} or later is needed: update it",
        Version::OLDEST_DRIVER
    )]
    DriverTooOld {
        /// What it supports.
        found: Version,
    },
    /// The driver does not start.
    #[error("the NVIDIA driver does not start ({0}): look for it with nvidia-smi and in the kernel's log")]
    DriverRefuses(CudaError),
    /// The driver sees no GPU.
    #[error("the NVIDIA driver sees no GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// The GPU that was asked for is not there.
    #[error(
        "GPU {wanted} is not there: the driver sees {count}, numbered from 0 (CUDA_VISIBLE_DEVICES hides some)"
    )]
    NoSuchDevice {
        /// The number asked for.
        wanted: u32,
        /// GPUs that the driver sees.
        count: u32,
    },
    /// There is no NCCL.
    #[error(
        "NCCL is missing ({reason}): install libnccl2, or name the file in RINGWAY_NCCL_LIBRARY (Python's packages \
         have it in site-packages/nvidia/nccl/lib)"
    )]
    NoNccl {
        /// What the dynamic loader said.
        reason: String,
    },
    /// NCCL lacks a function.
    #[error("{file} has no {symbol}: it is not NCCL {} or later; install one", Version::OLDEST_NCCL)]
    NcclIncomplete {
        /// The file.
        file: String,
        /// The first function that is missing.
        symbol: &'static str,
    },
    /// NCCL is too old.
    #[error("{file} is NCCL {found}, and {} or later is needed: install one", Version::OLDEST_NCCL)]
    NcclTooOld {
        /// The file.
        file: String,
        /// Its version.
        found: Version,
    },
    /// NCCL does not even tell its version.
    #[error("{file}: {error}: reinstall NCCL")]
    NcclRefuses {
        /// The file.
        file: String,
        /// What it answered.
        error: NcclError,
    },
}

/// What the driver answered instead of doing its work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code}), {text}")]
pub struct CudaError {
    /// The function.
    pub call: &'static str,
    /// The driver's number.
    pub code: u32,
    /// The driver's name for it, as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// The driver's words.
    pub text: String,
}

/// What NCCL answered instead of doing its work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {} ({code}), {text}{}", name_of(*.code), detail_of(.detail))]
pub struct NcclError {
    /// The function.
    pub call: &'static str,
    /// NCCL's number.
    pub code: u32,
    /// NCCL's words for the number.
    pub text: String,
    /// NCCL's last words on it (`ncclGetLastError`), or empty.
    pub detail: String,
}

fn detail_of(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(": {detail}") }
}

/// NCCL's name for a result, from its header.
fn name_of(code: u32) -> &'static str {
    match code {
        0 => "ncclSuccess",
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => "ncclRemoteError",
        7 => "ncclInProgress",
        8 => "ncclTimeout",
        _ => "an unknown result",
    }
}

impl NcclError {
    /// What to do about it, by its kind.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self.code {
            1 => "look at nvidia-smi and the kernel's log for the GPU's state",
            2 => "a system call failed: set NCCL_DEBUG=WARN to see which",
            4 | 5 => "ranks disagree, or two of them use one GPU: set NCCL_DEBUG=WARN to see more",
            6 => "another rank has failed first: look at what it says",
            _ => "set NCCL_DEBUG=WARN to see more",
        }
    }
}

/// Why a rank has no communicator over GPUs, or no memory on one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Something is missing on this rank's host.
    #[error("rank {rank} on host {host}: {what}")]
    Unavailable {
        /// This rank.
        rank: u32,
        /// Its host.
        host: String,
        /// What is missing.
        what: Box<Unavailable>,
    },
    /// The driver refuses.
    #[error("rank {rank}: GPU {device}: {error}")]
    Cuda {
        /// This rank.
        rank: u32,
        /// The GPU's number.
        device: u32,
        /// What it answered.
        error: CudaError,
    },
    /// Two members of the group have different versions of NCCL.
    #[error(
        "rank {a} has NCCL {a_version} and rank {b} has {b_version}: install one version on all hosts, or name it in \
         RINGWAY_NCCL_LIBRARY"
    )]
    Versions {
        /// One rank.
        a: u32,
        /// Its version.
        a_version: Version,
        /// Another.
        b: u32,
        /// Its version.
        b_version: Version,
    },
    /// NCCL connects parts of a group, which are not of one size.
    #[error(
        "parts of {a} and of {b} ranks cannot be reduced together: start as many on every host, or give a number of ranks per \
         part that divides all"
    )]
    Uneven {
        /// Ranks of one part, or of all.
        a: u32,
        /// Ranks of another.
        b: u32,
    },
    /// The ranks did not come together; the same error on all of them.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_headers_write_them() {
        let nccl = |code| Version::of_nccl(code).to_string();
        assert_eq!(
            [nccl(2708), nccl(21_803), nccl(23_203), nccl(21_400)],
            ["2.7.8", "2.18.3", "2.32.3", "2.14"]
        );
        assert!(
            Version::of_nccl(2708) < Version::OLDEST_NCCL && Version::of_nccl(21_801) > Version::OLDEST_NCCL
        );
        assert_eq!(Version::of_driver(12_080).to_string(), "12.8");
        assert_eq!(Version::of_driver(13_000).to_string(), "13.0");
    }

    #[test]
    fn results_are_named() {
        let error = NcclError {
            call: "ncclAllReduce",
            code: 5,
            text: "invalid usage".into(),
            detail: "comm is 0".into(),
        };
        assert_eq!(error.to_string(), "ncclAllReduce: ncclInvalidUsage (5), invalid usage: comm is 0");
        assert!(error.remedy().contains("NCCL_DEBUG"));
    }
}
