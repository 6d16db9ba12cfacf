//! GPUs: the driver, what it sees, NCCL, and what is in the way.

use super::report::Section;
use ringway_control::settings::Settings;

/// What this host has for work on GPUs.
#[cfg(feature = "nccl")]
pub(super) fn section(settings: &Settings) -> Section {
    use ringway_collectives::nccl::Survey;
    let mut section = Section::new("GPUs");
    describe(&mut section, &Survey::this_host(settings.gpu.library.as_deref()));
    section
}

/// What this host has for work on GPUs.
#[cfg(not(feature = "nccl"))]
pub(super) fn section(_settings: &Settings) -> Section {
    let mut section = Section::new("GPUs");
    section.fact("used", "no: this program was built without the feature nccl");
    section
}

#[cfg(feature = "nccl")]
fn describe(section: &mut Section, survey: &ringway_collectives::nccl::Survey) {
    use super::report::Severity;
    use super::size;
    match &survey.driver {
        Ok(driver) => {
            section.fact("driver", format!("supports CUDA {}", driver.version));
            for gpu in &driver.devices {
                let (major, minor) = gpu.capability;
                let value = format!(
                    "{}, {}, compute capability {major}.{minor}, PCI {}",
                    gpu.name,
                    size(gpu.memory_bytes),
                    gpu.pci_address
                );
                let reach = if gpu.dmabuf {
                    "RDMA can reach its memory, by dma-buf"
                } else {
                    "RDMA cannot reach its memory: it goes through the host's"
                };
                section.noted(format!("GPU {}", gpu.ordinal), value, reach);
            }
        }
        // Most machines have none and want none.
        Err(why) => section.fact("driver", format!("no: {why}")),
    }
    match (&survey.nccl, &survey.driver) {
        (Ok(nccl), _) => section.fact("NCCL", format!("{}, {}", nccl.version, nccl.file)),
        (Err(why), Err(_)) => section.fact("NCCL", format!("no: {why}")),
        (Err(why), Ok(_)) => {
            section.fact("NCCL", "no: see below");
            section.find(
                Severity::Advice,
                why.to_string(),
                "until then, memory of GPUs takes part in nothing",
            );
        }
    }
}

#[cfg(all(test, feature = "nccl"))]
mod tests {
    use super::*;
    use ringway_collectives::nccl::{DeviceFacts, DriverFacts, LibraryFacts, Survey, Unavailable, Version};

    #[test]
    fn gpus_are_listed_and_a_missing_nccl_is_advice_beside_them() {
        let gpu = DeviceFacts {
            ordinal: 0,
            name: "NVIDIA H200".into(),
            pci_address: "0000:17:00.0".into(),
            memory_bytes: 139 << 30,
            capability: (9, 0),
            dmabuf: true,
        };
        let driver = Ok(DriverFacts { version: Version::of_driver(12_080), devices: vec![gpu] });
        let nccl = Ok(LibraryFacts { file: "libnccl.so.2".into(), version: Version::of_nccl(22_703) });
        let said = |driver: &Result<DriverFacts, Unavailable>, nccl: Result<LibraryFacts, Unavailable>| {
            let mut section = Section::new("GPUs");
            describe(&mut section, &Survey { driver: driver.clone(), nccl });
            (format!("{section:?}"), section.findings.len())
        };
        let (text, findings) = said(&driver, nccl.clone());
        for part in [
            "supports CUDA 12.8",
            "NVIDIA H200, 139.0 GiB, compute capability 9.0",
            "dma-buf",
            "2.27.3, libnccl",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(findings, 0);
        let none = || Err(Unavailable::NoNccl { reason: "no such file".into() });
        assert_eq!(said(&driver, none()).1, 1);
        // A machine without GPUs lacks nothing.
        let (text, findings) = said(&Err(Unavailable::NoDriver), none());
        assert!(findings == 0 && text.contains("libcuda.so.1") && text.contains("no such file"), "{text}");
    }
}
