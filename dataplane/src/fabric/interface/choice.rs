//! Choosing addresses, purely.
//!
//! - **N1** An interface that is named is used, whatever its kind. Without names, virtual ones (containers, bridges,
//!   tunnels) are used only where no real one has an address, and loopback only where nothing else has.
//! - **N2** When all ranks are on one host, loopback comes first, unless interfaces are named.
//! - **N3** Link-local addresses are used only where there are no others, and carry their interface's index.
//! - **N4** Every address has a reason, and there is no choice without an error that lists them all.

use super::{Filter, Interface};
use std::fmt;
use std::net::IpAddr;

/// How the names of interfaces begin that lead to containers, virtual machines and tunnels of this host rather than to
/// other hosts.
const VIRTUAL: [&str; 21] = [
    "br-",
    "cali",
    "cilium",
    "cni",
    "docker",
    "dummy",
    "flannel",
    "ifb",
    "kube",
    "lxc",
    "lxd",
    "podman",
    "tailscale",
    "tap",
    "tun",
    "vboxnet",
    "veth",
    "virbr",
    "vmnet",
    "vnet",
    "wg",
];

/// Which addresses may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Family {
    /// IPv4 first, then IPv6.
    #[default]
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

/// What is known of the job and of the user's wishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Interfaces by name.
    pub filter: Option<Filter>,
    /// Addresses by family.
    pub family: Family,
    /// Whether all ranks are known to be on this host.
    pub all_local: bool,
}

/// An address to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picked {
    /// Its interface.
    pub interface: String,
    /// The address.
    pub ip: IpAddr,
    /// Index of the interface for a link-local IPv6 address, else 0.
    pub scope: u32,
    /// The interface's speed in Mbit/s, where it tells.
    pub speed_mbps: Option<u32>,
}

/// What became of one address, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Its interface.
    pub interface: String,
    /// The address.
    pub ip: IpAddr,
    /// Whether it is used.
    pub picked: bool,
    /// Why, or why not.
    pub why: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { interface, ip, picked, why } = self;
        write!(f, "{interface} {ip}: {}{why}", if *picked { "" } else { "not used: " })
    }
}

/// Addresses to use, best first, and the reasons of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// At least one.
    pub picked: Vec<Picked>,
    /// One per address, in the order of the interfaces.
    pub verdicts: Vec<Verdict>,
}

/// No address may be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no network address can be used: {}. Name an interface (RINGWAY_SOCKET_IFNAME), or bring one up",
    if .verdicts.is_empty() { "no interface has one".to_owned() } else { listed(.verdicts) })]
pub struct NoInterface {
    /// One per address.
    pub verdicts: Vec<Verdict>,
}

fn listed(verdicts: &[Verdict]) -> String {
    verdicts.iter().map(Verdict::to_string).collect::<Vec<_>>().join("; ")
}

/// In the order in which they are used where nobody names any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Real,
    Virtual,
    Loopback,
}

impl Kind {
    fn of(interface: &Interface, ip: &IpAddr) -> Kind {
        if ip.is_loopback() || interface.addresses.iter().any(IpAddr::is_loopback) {
            Kind::Loopback
        } else if VIRTUAL.iter().any(|v| interface.name.starts_with(v)) {
            Kind::Virtual
        } else {
            Kind::Real
        }
    }
}

fn link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Why an address is out by itself, whatever the others.
fn objection(interface: &Interface, ip: &IpAddr, wanted: &Wanted) -> Option<String> {
    if let Some(filter) = wanted.filter.as_ref().filter(|f| !f.admits(&interface.name)) {
        return Some(format!("the setting {filter} leaves it out"));
    }
    if !interface.running {
        return Some("the interface is down or has no carrier".to_owned());
    }
    match (wanted.family, ip) {
        (Family::V4, IpAddr::V6(_)) => Some("only IPv4 is wanted".to_owned()),
        (Family::V6, IpAddr::V4(_)) => Some("only IPv6 is wanted".to_owned()),
        _ if ip.is_unspecified() || ip.is_multicast() => Some("it is no host's address".to_owned()),
        _ => None,
    }
}

/// Chooses the addresses to listen on, best first: faster interfaces first, IPv4 before IPv6.
///
/// # Errors
/// [`NoInterface`] when no address may be used.
pub fn choose(interfaces: &[Interface], wanted: &Wanted) -> Result<Choice, NoInterface> {
    let all: Vec<(&Interface, &IpAddr)> =
        interfaces.iter().flat_map(|i| i.addresses.iter().map(move |ip| (i, ip))).collect();
    let fit = |(i, ip): &&(&Interface, &IpAddr)| objection(i, ip, wanted).is_none();
    let named = wanted.filter.as_ref().is_some_and(|f| !f.excludes());
    let kinds = || all.iter().filter(fit).map(|(i, ip)| Kind::of(i, ip));
    let loops = wanted.all_local && !named && kinds().any(|k| k == Kind::Loopback);
    let kind = if loops { Some(Kind::Loopback) } else { kinds().min() };
    let in_kind = |(i, ip): &(&Interface, &IpAddr)| named || Some(Kind::of(i, ip)) == kind;
    let global = all.iter().filter(fit).any(|a| in_kind(a) && !link_local(a.1));

    let (mut picked, mut verdicts) = (Vec::new(), Vec::new());
    for entry @ (interface, ip) in &all {
        let out = objection(interface, ip, wanted).or_else(|| {
            if !in_kind(entry) {
                Some(passed_over(Kind::of(interface, ip), loops))
            } else if link_local(ip) && global {
                Some("it is link-local, and there are others".to_owned())
            } else {
                None
            }
        });
        let verdict = |picked, why| Verdict { interface: interface.name.clone(), ip: **ip, picked, why };
        if let Some(why) = out {
            verdicts.push(verdict(false, why));
            continue;
        }
        verdicts.push(verdict(true, praise(Kind::of(interface, ip), named, loops, wanted)));
        let scope = if ip.is_ipv6() && link_local(ip) { interface.index } else { 0 };
        let speed_mbps = interface.speed_mbps;
        picked.push((
            (std::cmp::Reverse(speed_mbps.unwrap_or(0)), interface.index, ip.is_ipv6(), **ip),
            Picked { interface: interface.name.clone(), ip: **ip, scope, speed_mbps },
        ));
    }
    picked.sort_by_key(|p| p.0);
    if picked.is_empty() {
        return Err(NoInterface { verdicts });
    }
    Ok(Choice { picked: picked.into_iter().map(|p| p.1).collect(), verdicts })
}

fn passed_over(kind: Kind, loops: bool) -> String {
    match kind {
        _ if loops => "all ranks are on this host, which loopback reaches".to_owned(),
        Kind::Virtual => "it is virtual, and there is a real interface".to_owned(),
        Kind::Loopback | Kind::Real => "it is loopback, and there is another interface".to_owned(),
    }
}

fn praise(kind: Kind, named: bool, loops: bool, wanted: &Wanted) -> String {
    match (&wanted.filter, kind) {
        (Some(filter), _) if named => format!("used: the setting {filter} names it"),
        _ if loops => "used: all ranks are on this host".to_owned(),
        (_, Kind::Real) => "used: a real interface that is up".to_owned(),
        (_, Kind::Virtual) => "used: virtual, but no real interface has an address".to_owned(),
        (_, Kind::Loopback) => "used: loopback, as nothing else has an address".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, name: &str, speed_mbps: Option<u32>, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
        Interface { name: name.to_owned(), index, running: true, speed_mbps, addresses }
    }

    /// Recorded: a workstation with containers and virtual machines.
    fn workstation() -> Vec<Interface> {
        vec![
            interface(1, "lo", None, &["127.0.0.1", "::1"]),
            interface(2, "enp5s0", Some(1000), &["192.168.1.20", "2001:db8::20", "fe80::1"]),
            interface(3, "virbr0", None, &["192.168.122.1"]),
            interface(4, "docker0", None, &["172.17.0.1"]),
            interface(5, "br-1f2e3d4c5b6a", None, &["172.18.0.1"]),
            interface(7, "veth12ab34c", Some(10_000), &["fe80::42"]),
        ]
    }

    /// Recorded: a node of a cluster with a slow service network and a fast one.
    fn node() -> Vec<Interface> {
        vec![
            interface(1, "lo", None, &["127.0.0.1"]),
            interface(2, "eno1", Some(1000), &["10.0.0.5"]),
            interface(3, "ib0", Some(200_000), &["10.1.0.5", "fe80::5"]),
            interface(4, "eno2", None, &["10.2.0.5"]),
        ]
    }

    fn wanted(filter: &str) -> Wanted {
        Wanted { filter: Some(filter.parse().unwrap()), ..Wanted::default() }
    }

    fn picks(interfaces: &[Interface], wanted: &Wanted) -> Vec<String> {
        let choice = choose(interfaces, wanted).unwrap();
        let addresses = interfaces.iter().map(|i| i.addresses.len()).sum::<usize>();
        assert_eq!(choice.verdicts.len(), addresses, "N4");
        let picked = choice.verdicts.iter().filter(|v| v.picked).count();
        assert_eq!(picked, choice.picked.len(), "N4");
        choice.picked.iter().map(|p| format!("{} {}%{}", p.interface, p.ip, p.scope)).collect()
    }

    #[test]
    fn real_interfaces_come_before_virtual_ones_and_loopback() {
        // N1, N3
        let any = Wanted::default();
        assert_eq!(picks(&workstation(), &any), ["enp5s0 192.168.1.20%0", "enp5s0 2001:db8::20%0"]);
        let choice = choose(&workstation(), &any).unwrap();
        let said: Vec<String> = choice.verdicts.iter().map(Verdict::to_string).collect();
        assert_eq!(said[0], "lo 127.0.0.1: not used: it is loopback, and there is another interface");
        assert_eq!(said[2], "enp5s0 192.168.1.20: used: a real interface that is up");
        assert_eq!(said[4], "enp5s0 fe80::1: not used: it is link-local, and there are others");
        assert_eq!(said[6], "docker0 172.17.0.1: not used: it is virtual, and there is a real interface");
        // In a container the one interface is real by its name, though it is a veth.
        let pod =
            [interface(1, "lo", None, &["127.0.0.1"]), interface(3, "eth0", Some(10_000), &["10.244.1.7"])];
        assert_eq!(picks(&pod, &any), ["eth0 10.244.1.7%0"]);
        let bridged = [interface(1, "lo", None, &["127.0.0.1"]), interface(3, "tun0", None, &["10.8.0.2"])];
        assert_eq!(picks(&bridged, &any), ["tun0 10.8.0.2%0"]);
        let alone = [interface(1, "lo", None, &["127.0.0.1", "::1"])];
        assert_eq!(picks(&alone, &any), ["lo 127.0.0.1%0", "lo ::1%0"]);
    }

    #[test]
    fn faster_interfaces_come_first() {
        let any = Wanted::default();
        assert_eq!(picks(&node(), &any), ["ib0 10.1.0.5%0", "eno1 10.0.0.5%0", "eno2 10.2.0.5%0"]);
    }

    #[test]
    fn named_interfaces_are_used_whatever_they_are() {
        // N1
        assert_eq!(picks(&workstation(), &wanted("=docker0")), ["docker0 172.17.0.1%0"]);
        assert_eq!(picks(&workstation(), &wanted("lo")), ["lo 127.0.0.1%0", "lo ::1%0"]);
        assert_eq!(picks(&node(), &wanted("eno")), ["eno1 10.0.0.5%0", "eno2 10.2.0.5%0"]);
        assert_eq!(picks(&node(), &wanted("^ib,eno2")), ["eno1 10.0.0.5%0"]);
        // An exclusion narrows; it does not make loopback welcome.
        assert_eq!(picks(&node(), &wanted("^ib")), ["eno1 10.0.0.5%0", "eno2 10.2.0.5%0"]);
        let local = Wanted { all_local: true, ..wanted("eno1") };
        assert_eq!(picks(&node(), &local), ["eno1 10.0.0.5%0"]);
    }

    #[test]
    fn one_host_means_loopback() {
        // N2
        let local = Wanted { all_local: true, ..Wanted::default() };
        assert_eq!(picks(&node(), &local), ["lo 127.0.0.1%0"]);
        let no_loopback = [interface(2, "eth0", None, &["10.0.0.5"])];
        assert_eq!(picks(&no_loopback, &local), ["eth0 10.0.0.5%0"]);
        let without = Wanted { all_local: true, ..wanted("^lo") };
        assert_eq!(picks(&node(), &without), ["ib0 10.1.0.5%0", "eno1 10.0.0.5%0", "eno2 10.2.0.5%0"]);
    }

    #[test]
    fn families_and_link_local_scopes() {
        // N3
        let v6 = Wanted { family: Family::V6, ..Wanted::default() };
        assert_eq!(picks(&workstation(), &v6), ["enp5s0 2001:db8::20%0"]);
        assert_eq!(picks(&node(), &v6), ["ib0 fe80::5%3"]);
        let v4 = Wanted { family: Family::V4, ..Wanted::default() };
        assert_eq!(picks(&workstation(), &v4), ["enp5s0 192.168.1.20%0"]);
    }

    #[test]
    fn nothing_to_choose_lists_every_reason() {
        // N4
        let mut all = node();
        all[1].running = false;
        let error = choose(&all, &wanted("eno1")).unwrap_err().to_string();
        assert!(
            error.contains("eno1 10.0.0.5: not used: the interface is down or has no carrier"),
            "{error}"
        );
        assert!(error.contains("lo 127.0.0.1: not used: the setting eno1 leaves it out"), "{error}");
        assert!(choose(&[], &Wanted::default()).unwrap_err().to_string().contains("no interface has one"));
    }
}
