//! RDMA devices, their ports and GIDs, which of them are used and why, and what is in the way of the others.

use super::report::{Section, Severity};
use ringway_control::settings::Settings;
use ringway_dataplane::fabric::Policy;
use ringway_dataplane::rdma::choice::model::show_gid;
use ringway_dataplane::rdma::choice::{Choice, Device, LinkLayer, NoRail, Port, Survey, Verdict, choose};
use ringway_dataplane::rdma::survey;

/// What this host has, and what a rank would use of it.
pub(super) fn section(settings: &Settings) -> Section {
    let mut section = Section::new("RDMA");
    let policy = settings.rdma_policy();
    match survey::this_host() {
        Ok(survey) => describe(&mut section, &survey, &choose(&survey, &settings.rdma_config), policy),
        Err(error) => section.find(severity(policy), error.to_string(), "until then, tensors travel by TCP"),
    }
    section
}

fn severity(policy: Policy) -> Severity {
    if policy == Policy::Require { Severity::Problem } else { Severity::Advice }
}

fn describe(section: &mut Section, survey: &Survey, outcome: &Result<Choice, NoRail>, policy: Policy) {
    for device in &survey.devices {
        section.fact(&device.name, about_device(device));
        for port in &device.ports {
            describe_port(section, device, port, outcome);
        }
    }
    match outcome {
        _ if policy == Policy::Off => {
            section.fact("used", "no: the settings switch it off (RINGWAY_RDMA, RINGWAY_NET)")
        }
        Ok(choice) => {
            let rails: Vec<String> =
                choice.rails.iter().map(|r| format!("{}:{}", r.device, r.port)).collect();
            let together = if rails.len() > 1 { "large messages are striped over them" } else { "" };
            section.noted("used", rails.join(", "), together);
        }
        // Most machines have no RDMA and want none.
        Err(no) if no.is_absence() && policy == Policy::Prefer => {
            section.noted("used", format!("no: {}", no.obstacles[0]), no.obstacles[0].remedy());
        }
        Err(no) => {
            section.fact("used", "no: see below");
            for obstacle in &no.obstacles {
                section.find(severity(policy), obstacle.to_string(), obstacle.remedy());
            }
        }
    }
}

fn about_device(device: &Device) -> String {
    let pci = device.pci.as_ref().map_or("a software device".to_owned(), |pci| format!("PCI {pci}"));
    let near = device.numa_node.map_or(String::new(), |node| format!(", near memory node {node}"));
    format!("{pci}{near}, opened by {}", device.file.path())
}

/// The port, what was decided about it, and its GIDs.
fn describe_port(section: &mut Section, device: &Device, port: &Port, outcome: &Result<Choice, NoRail>) {
    let name = format!("{}:{}", device.name, port.number);
    let verdicts: &[Verdict] = match outcome {
        Ok(choice) => &choice.verdicts,
        Err(no) => &no.verdicts,
    };
    let verdict = verdicts.iter().find(|v| v.device == device.name && v.port == port.number);
    let why = match verdict {
        Some(verdict) if verdict.picked => verdict.why.clone(),
        Some(Verdict { obstacle: Some(obstacle), .. }) => {
            format!("not used: {obstacle}: {}", obstacle.remedy())
        }
        Some(verdict) => format!("not used: {}", verdict.why),
        None => String::new(),
    };
    section.noted(&name, about_port(port), why);
    let rails = outcome.as_ref().map_or(&[][..], |choice| &choice.rails);
    let rail = rails.iter().find(|rail| rail.device == device.name && rail.port == port.number);
    for gid in &port.gids {
        let on = gid.netdev.as_ref().map_or(String::new(), |netdev| format!(" on {netdev}"));
        let offered = rail.is_some_and(|rail| rail.gids.iter().any(|offered| offered.index == gid.index));
        let value = format!("{} {}{on}", gid.kind, show_gid(&gid.bytes));
        section.noted(
            format!("{name} GID {}", gid.index),
            value,
            if offered { "offered to peers" } else { "" },
        );
    }
}

fn about_port(port: &Port) -> String {
    let mut text = format!("{}, {}", port.link_layer, port.state);
    if port.rate_mbps > 0 {
        text += &format!(", {} Gbit/s", f64::from(port.rate_mbps) / 1000.0);
    }
    if let Some(mtu) = port.active_mtu {
        text += &format!(", MTU {}", mtu.bytes());
    }
    if port.link_layer == LinkLayer::InfiniBand {
        text += &format!(", LID {}, subnet manager at LID {}", port.lid, port.sm_lid);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_dataplane::rdma::RdmaConfig;
    use ringway_dataplane::rdma::choice::{DeviceFile, Gid, GidKind, Mtu, PortState};

    fn host() -> Survey {
        let gid = |index, last| {
            let mut bytes = [0; 16];
            bytes[10..].copy_from_slice(&[0xff, 0xff, 10, 77, 0, last]);
            let netdev = Some("eth0".to_owned());
            Gid { index, bytes, kind: GidKind::RoceV2, netdev, netdev_here: true, prefix_len: Some(24) }
        };
        let port = Port {
            number: 1,
            state: PortState::Active,
            physical_state: "LinkUp".to_owned(),
            link_layer: LinkLayer::Ethernet,
            rate_mbps: 2_500,
            lid: 0,
            sm_lid: 0,
            active_mtu: Some(Mtu::B1024),
            gids: vec![gid(3, 7)],
            pkeys: vec![(0, 0xffff)],
        };
        let device = Device {
            name: "mlx5_0".to_owned(),
            node_guid: 1,
            numa_node: Some(1),
            pci: Some("0000:17:00.0".to_owned()),
            file: DeviceFile::Usable { path: "/dev/infiniband/uverbs0".to_owned() },
            known_to_library: true,
            ports: vec![port],
        };
        Survey { kernel: true, device_folder: true, devices: vec![device], ..Survey::default() }
    }

    fn described(survey: &Survey, policy: Policy) -> Section {
        let mut section = Section::new("RDMA");
        describe(&mut section, survey, &choose(survey, &RdmaConfig::default()), policy);
        section
    }

    fn lines(section: &Section) -> Vec<String> {
        section.facts.iter().map(|f| format!("{}: {} ({})", f.name, f.value, f.note)).collect()
    }

    #[test]
    fn what_there_is_and_what_is_used() {
        let section = described(&host(), Policy::Prefer);
        assert_eq!(
            lines(&section),
            [
                "mlx5_0: PCI 0000:17:00.0, near memory node 1, opened by /dev/infiniband/uverbs0 ()",
                "mlx5_0:1: Ethernet, active, 2.5 Gbit/s, MTU 1024 (used: the fastest that works; GID 3, RoCE v2 \
                 10.77.0.7 on eth0)",
                "mlx5_0:1 GID 3: RoCE v2 10.77.0.7 on eth0 (offered to peers)",
                "used: mlx5_0:1 ()",
            ]
        );
        assert!(section.findings.is_empty());
        assert!(
            lines(&described(&host(), Policy::Off))[3].starts_with("used: no: the settings switch it off")
        );
    }

    #[test]
    fn what_is_in_the_way_is_a_problem_only_where_rdma_is_required() {
        let mut survey = host();
        survey.devices[0].ports[0].state = PortState::Down;
        let section = described(&survey, Policy::Prefer);
        assert_eq!((section.findings.len(), section.findings[0].severity), (1, Severity::Advice));
        assert!(section.findings[0].what.contains("port mlx5_0:1 is down"), "{section:?}");
        assert_eq!(described(&survey, Policy::Require).findings[0].severity, Severity::Problem);
        let nothing = Survey::default();
        let section = described(&nothing, Policy::Prefer);
        assert!(section.findings.is_empty() && lines(&section)[0].contains("no RDMA loaded"), "{section:?}");
        assert_eq!(described(&nothing, Policy::Require).findings[0].severity, Severity::Problem);
    }
}
