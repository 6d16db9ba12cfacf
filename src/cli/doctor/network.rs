//! Network interfaces and TCP.

use super::kernel_file;
use super::report::Section;
use ringway_control::settings::{CongestionControl, Settings};
use ringway_dataplane::fabric::interface;

/// The congestion control that paces even loopback, at a cost of half the bandwidth.
const PACING: &str = "bbr";

/// Every address of this host, whether it would be used, and why.
pub(super) fn interfaces(settings: &Settings) -> Section {
    let mut section = Section::new("Network interfaces");
    let found = match interface::read() {
        Ok(found) => found,
        Err(error) => {
            section.problem(error.to_string(), "look for a security profile that forbids netlink sockets");
            return section;
        }
    };
    match interface::choose(&found, &settings.interfaces(false)) {
        Ok(choice) => {
            for verdict in &choice.verdicts {
                let not = if verdict.picked { "" } else { "not used: " };
                section
                    .fact(format!("{} {}", verdict.interface, verdict.ip), format!("{not}{}", verdict.why));
            }
            let best = &choice.picked[0];
            let speed = best.speed_mbps.map_or("speed not told".to_owned(), |mbps| format!("{mbps} Mbit/s"));
            section.noted("between hosts", format!("{} {}", best.interface, best.ip), speed);
        }
        Err(error) => section.problem(
            error.to_string(),
            "ranks on one host can still meet on loopback; for several hosts this must be mended",
        ),
    }
    section
}

/// TCP's congestion control: the system's, and what a setting asks for.
pub(super) fn congestion(settings: &Settings) -> Section {
    let mut section = Section::new("TCP congestion control");
    let read = |name: &str| kernel_file(&format!("/proc/sys/net/ipv4/{name}"));
    let system = read("tcp_congestion_control").unwrap_or_else(|| "not told".to_owned());
    let available = read("tcp_available_congestion_control").unwrap_or_default();
    let allowed = read("tcp_allowed_congestion_control").unwrap_or_default();
    section.fact("the system's", system.clone());
    section.fact("available", available.clone());
    section.fact("allowed without privilege", allowed.clone());
    let root = rustix::process::geteuid().is_root();
    match &settings.congestion_control {
        CongestionControl::Auto => {
            section.fact("used", "reno between ranks of one host, the system's elsewhere")
        }
        CongestionControl::System => {
            section.fact("used", "the system's");
            if system == PACING {
                let what = format!("{PACING} paces loopback too, which halves its bandwidth");
                section.advice(
                    what,
                    "unset RINGWAY_CONGESTION_CONTROL, which sets reno between ranks of one host",
                );
            }
        }
        CongestionControl::Named(name) => {
            let has = |list: &str| list.split_whitespace().any(|word| word == name);
            section.fact("used", name.clone());
            if !has(&available) {
                let what = format!("RINGWAY_CONGESTION_CONTROL={name} is not available here");
                section.problem(what, format!("modprobe tcp_{name}, or name one of: {available}"));
            } else if !root && !has(&allowed) {
                let what = format!("RINGWAY_CONGESTION_CONTROL={name} is not allowed to this user");
                let remedy =
                    format!("sysctl -w net.ipv4.tcp_allowed_congestion_control='{allowed} {name}' as root");
                section.problem(what, remedy);
            }
        }
    }
    section
}
