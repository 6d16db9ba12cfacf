//! Which network interfaces, and which of their addresses, a rank listens on and connects from.
//!
//! [`read`] asks the system; [`choose`] decides, purely, and keeps a reason for every address. [`Filter`] is
//! the grammar of `RINGWAY_SOCKET_IFNAME`.

mod choice;
mod filter;

pub use choice::{Choice, Family, NoInterface, Picked, Verdict, Wanted, choose};
pub use filter::{BadFilter, Filter};

use std::collections::BTreeMap;
use std::net::IpAddr;

/// A network interface as the system has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, e.g. `eth0`.
    pub name: String,
    /// Its index: the scope of its link-local addresses.
    pub index: u32,
    /// Whether it is up and has a carrier.
    pub running: bool,
    /// Its speed in Mbit/s, where it tells.
    pub speed_mbps: Option<u32>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// The system's interfaces could not be listed.
#[derive(Debug, thiserror::Error)]
#[error("the network interfaces could not be listed ({source}): name the address to use by hand")]
pub struct ReadError {
    /// The system's words.
    #[from]
    pub source: std::io::Error,
}

/// The interfaces of this network namespace that have addresses, by index.
///
/// # Errors
/// [`ReadError`] when the system refuses.
pub fn read() -> Result<Vec<Interface>, ReadError> {
    let mut by_index: BTreeMap<(u32, String), Interface> = BTreeMap::new();
    for entry in if_addrs::get_if_addrs()? {
        // An interface that vanished while it was listed has no index any more.
        let Some(index) = entry.index else { continue };
        let (ip, running) = (entry.ip(), entry.is_oper_up());
        let speed = |name: &str| {
            let told = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
            // -1 means unknown, and does not parse.
            told.trim().parse().ok()
        };
        let interface = by_index.entry((index, entry.name.clone())).or_insert_with(|| Interface {
            speed_mbps: speed(&entry.name),
            name: entry.name,
            index,
            running,
            addresses: Vec::new(),
        });
        interface.addresses.push(ip);
    }
    Ok(by_index.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_the_interfaces_of_any_machine() {
        let all = read().unwrap();
        let lo = all.iter().find(|i| i.addresses.iter().any(IpAddr::is_loopback)).unwrap();
        assert!(lo.running && lo.index > 0, "{all:?}");
        let chosen = choose(&all, &Wanted { all_local: true, ..Wanted::default() }).unwrap();
        assert!(chosen.picked.iter().all(|p| p.ip.is_loopback()), "{chosen:?}");
    }
}
