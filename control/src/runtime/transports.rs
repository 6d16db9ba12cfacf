//! The data plane's transports, as the settings want them.

use super::pinning::Binding;
use super::rdma::{self, Lack, Plan, RDMA, RdmaUnusable};
use crate::settings::{CongestionControl, IoDriver, NameList, Settings};
use ringway_dataplane::fabric::interface::{self, Choice, NoInterface, Picked, ReadError};
use ringway_dataplane::fabric::route::{Offers, Withheld, write_offers};
use ringway_dataplane::fabric::{Endpoint, EndpointError, Policy};
use ringway_dataplane::rdma::RdmaTransport;
use ringway_dataplane::shm::{self, ShmTransport};
use ringway_dataplane::transport::{Address, Keyring, Transport};
use ringway_dataplane::uring::{Bind, Config, Congestion, DriverChoice, OpenError, TcpTransport};
use ringway_topology::Incarnation;
use std::time::Duration;

/// Names in `RINGWAY_NET`: shared memory, TCP, and its two drivers.
const SHM: &str = "shm";
const TCP: &str = "tcp";
const DRIVERS: [&str; 2] = ["uring", "epoll"];

/// Why no transport could be opened.
#[derive(Debug, thiserror::Error)]
pub enum TransportsError {
    /// The interfaces could not be listed.
    #[error(transparent)]
    List(#[from] ReadError),
    /// None of the interfaces may be used.
    #[error(transparent)]
    None(#[from] NoInterface),
    /// TCP could not be opened.
    #[error(transparent)]
    Tcp(#[from] OpenError),
    /// RDMA is required and cannot be used.
    #[error(transparent)]
    Rdma(#[from] RdmaUnusable),
    /// Shared memory is required and cannot be used.
    #[error(
        "shared memory is required (RINGWAY_SHM=require, or RINGWAY_NET=shm) and cannot be used here: {0}"
    )]
    Shm(shm::OpenError),
    /// The settings leave nothing.
    #[error(
        "the settings leave no transport: name one in RINGWAY_NET, or unset it, RINGWAY_IO_DRIVER, RINGWAY_SHM \
         and RINGWAY_RDMA"
    )]
    Nothing,
    /// Those that were opened do not go together.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// What this process is to others on the data plane.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    /// What it calls itself: its rank, or any number that no other process of the job has.
    pub(super) number: u32,
    /// By what others prove themselves; filled when the control plane has told who they are.
    pub(super) keys: Keyring,
    pub(super) life: Incarnation,
}

/// The interfaces and addresses that the settings choose. `all_local`: all ranks are known to be on this host.
///
/// # Errors
/// When the interfaces cannot be listed, or none may be used; the error says why per address.
pub fn interfaces(settings: &Settings, all_local: bool) -> Result<Choice, TransportsError> {
    Ok(interface::choose(&interface::read()?, &settings.interfaces(all_local))?)
}

/// What this rank has to move data with.
pub(super) enum Opened {
    /// Its transports, as one endpoint.
    Endpoint(Box<dyn Transport>),
    /// RDMA is required and cannot be used. The rank fails by that once it has told its peers why, by this address.
    Unusable(RdmaUnusable, Address),
}

impl Opened {
    /// What the others learn.
    pub(super) fn address(&self) -> Address {
        match self {
            Opened::Endpoint(endpoint) => endpoint.address(),
            Opened::Unusable(_, address) => address.clone(),
        }
    }
}

/// Opens the transports, and makes one endpoint of them. `all_local`: all processes of the job are known to be on this
/// host.
pub(super) fn open(
    me: &Identity,
    all_local: bool,
    binding: &Binding,
    settings: &Settings,
) -> Result<Opened, TransportsError> {
    let (rdma, without) = match open_rdma(me, binding, settings) {
        Ok(Ok(transport)) => (Some(transport), None),
        Ok(Err(lack)) => (None, Some(lack)),
        Err(unusable) => {
            let address = apology(&unusable);
            return Ok(Opened::Unusable(unusable, address));
        }
    };
    let has_rdma = rdma.is_some();
    let (shm, without_shm) = match open_shm(me, settings)? {
        Ok(transport) => (Some(transport), None),
        Err(lack) => (None, Some(lack)),
    };
    let tcp = open_tcp(me, all_local, settings)?;
    let has_tcp = tcp.is_some();
    let mut ways: Vec<(&str, Box<dyn Transport>, Policy)> = Vec::new();
    ways.extend(shm.map(|transport| (SHM, transport, settings.shm_policy())));
    ways.extend(rdma.map(|transport| (RDMA, transport, settings.rdma_policy())));
    ways.extend(tcp.map(|transport| (TCP, transport, Policy::Prefer)));
    if ways.is_empty() {
        return Err(TransportsError::Nothing);
    }
    ways.sort_by_key(|(name, ..)| place(&settings.net, name));
    let mut endpoint = Endpoint::new(ways.into_iter().map(|(_, way, policy)| (way, policy)).collect())?;
    for (name, lack) in [(SHM, without_shm), (RDMA, without)] {
        match lack {
            Some(Lack { why, missed: true }) => endpoint.miss(name, why),
            Some(Lack { why, missed: false }) => endpoint.withhold(name, why),
            None => {}
        }
    }
    if !has_tcp {
        endpoint.withhold(TCP, "RINGWAY_NET leaves it out: settle on one setting for all ranks");
    }
    if has_rdma && has_tcp && place(&settings.net, RDMA) < place(&settings.net, TCP) {
        endpoint.hope_for(RDMA);
    }
    Ok(Opened::Endpoint(Box::new(endpoint)))
}

/// The address of a rank that offers nothing, and why.
fn apology(unusable: &RdmaUnusable) -> Address {
    let withheld = |name: &str, why: &str| Withheld { name: name.to_owned(), why: why.to_owned() };
    write_offers(&Offers {
        offered: Vec::new(),
        withheld: vec![
            withheld(RDMA, &unusable.in_short),
            withheld(TCP, &format!("RDMA is required there, and cannot be used: {}", unusable.in_short)),
            withheld(SHM, &format!("RDMA is required there, and cannot be used: {}", unusable.in_short)),
        ],
    })
}

/// RDMA, or why this rank goes without it.
fn open_rdma(
    me: &Identity,
    binding: &Binding,
    settings: &Settings,
) -> Result<Result<Box<dyn Transport>, Lack>, RdmaUnusable> {
    let (choice, wanted) = match rdma::plan(settings, binding)? {
        (Plan::Open(choice), config) => (choice, config),
        (Plan::Without(lack), _) => return Ok(Err(lack)),
    };
    let mut config = ringway_dataplane::rdma::Config::new(me.number, me.keys.clone(), me.life.0);
    config.rdma = wanted;
    config.connect_timeout_ms = millis(settings.connect_timeout);
    if let Some(bytes) = settings.eager_bytes {
        config.eager_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    }
    match RdmaTransport::open(config, &choice) {
        Ok(transport) => Ok(Ok(Box::new(transport))),
        Err(error) => {
            let why = error.to_string();
            rdma::without(settings.rdma_policy(), why.clone(), why, false).map(Err)
        }
    }
}

/// TCP, unless the settings leave none of its drivers.
fn open_tcp(
    me: &Identity,
    all_local: bool,
    settings: &Settings,
) -> Result<Option<Box<dyn Transport>>, TransportsError> {
    let Some(driver) = driver(settings) else { return Ok(None) };
    let picked = interfaces(settings, all_local)?.picked;
    Ok(Some(Box::new(TcpTransport::new(config(me, picked, driver, settings))?)))
}

/// Shared memory, or why this rank goes without it: what peers that want it hear.
fn open_shm(me: &Identity, settings: &Settings) -> Result<Result<Box<dyn Transport>, Lack>, TransportsError> {
    let policy = settings.shm_policy();
    if policy == Policy::Off {
        let by = if settings.shm == Policy::Off { "RINGWAY_SHM=off" } else { "RINGWAY_NET leaves it out" };
        return Ok(Err(Lack { why: format!("{by}: settle on one setting for all ranks"), missed: false }));
    }
    let mut config = shm::Config::new(me.number, me.keys.clone(), me.life.0);
    config.connect_timeout_ms = millis(settings.connect_timeout);
    config.attach = settings.shm_cma;
    if let Some(bytes) = settings.eager_bytes {
        config.eager_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    }
    match ShmTransport::new(config) {
        Ok(transport) => Ok(Ok(Box::new(transport))),
        Err(error) if policy == Policy::Require => Err(TransportsError::Shm(error)),
        Err(error) => {
            tracing::warn!("{error}; until then other transports reach the processes of this host");
            Ok(Err(Lack { why: error.to_string(), missed: true }))
        }
    }
}

/// Where a transport stands in the order of preference: that of the list, or the fastest first.
fn place(net: &NameList, name: &str) -> usize {
    let is = |listed: &&str| *listed == name || (name == TCP && DRIVERS.contains(listed));
    let default = [SHM, RDMA, TCP];
    let found = match net {
        NameList::Only(names) => names.iter().position(is),
        NameList::Auto | NameList::Except(_) => default.iter().position(is),
    };
    found.unwrap_or(default.len())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The drivers that both `RINGWAY_NET` and `RINGWAY_IO_DRIVER` leave; `None` for none.
fn driver(settings: &Settings) -> Option<DriverChoice> {
    let permitted = DRIVERS.map(|driver| match &settings.net {
        NameList::Except(_) => settings.net.permits(TCP) && settings.net.permits(driver),
        NameList::Auto | NameList::Only(_) => settings.net.permits(TCP) || settings.net.permits(driver),
    });
    match (permitted, settings.io_driver) {
        ([true, true], IoDriver::Auto) => Some(DriverChoice::Auto),
        ([true, _], IoDriver::Auto | IoDriver::Uring) => Some(DriverChoice::Uring),
        ([_, true], IoDriver::Auto | IoDriver::Epoll) => Some(DriverChoice::Epoll),
        _ => None,
    }
}

fn config(me: &Identity, picked: Vec<Picked>, driver: DriverChoice, settings: &Settings) -> Config {
    let bind = |p: Picked| Bind { ip: p.ip, scope: p.scope, interface: p.interface };
    let mut config =
        Config::new(me.number, me.keys.clone(), me.life.0, picked.into_iter().map(bind).collect());
    config.driver = driver;
    config.congestion = match &settings.congestion_control {
        CongestionControl::Auto => Congestion::Auto,
        CongestionControl::System => Congestion::System,
        CongestionControl::Named(name) => Congestion::Named(name.clone()),
    };
    config.connect_timeout_ms = millis(settings.connect_timeout);
    if let Some(bytes) = settings.eager_bytes {
        config.eager_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_dataplane::fabric::route::read_offers;

    #[test]
    fn a_rank_that_cannot_do_what_it_requires_tells_its_peers() {
        let unusable = RdmaUnusable { why: String::new(), in_short: "port rxe0:1 is down".to_owned() };
        let said = read_offers(&apology(&unusable)).unwrap();
        assert!(said.offered.is_empty());
        assert!(said.withheld.iter().all(|w| w.why.ends_with("port rxe0:1 is down")), "{said:?}");
    }

    #[test]
    fn net_and_driver_settings_are_kept_together() {
        let given = |pairs: &[(&str, &str)]| driver(&Settings::from_pairs(pairs.iter().copied()).unwrap());
        assert_eq!(given(&[]), Some(DriverChoice::Auto));
        assert_eq!(given(&[("RINGWAY_NET", "tcp")]), Some(DriverChoice::Auto));
        assert_eq!(given(&[("RINGWAY_NET", "epoll")]), Some(DriverChoice::Epoll));
        assert_eq!(given(&[("RINGWAY_NET", "^epoll")]), Some(DriverChoice::Uring));
        assert_eq!(given(&[("RINGWAY_NET", "^tcp")]), None);
        assert_eq!(given(&[("RINGWAY_NET", "rdma")]), None);
        assert_eq!(given(&[("RINGWAY_NET", "tcp,rdma")]), Some(DriverChoice::Auto));
        assert_eq!(given(&[("RINGWAY_IO_DRIVER", "epoll")]), Some(DriverChoice::Epoll));
        assert_eq!(given(&[("RINGWAY_NET", "uring"), ("RINGWAY_IO_DRIVER", "epoll")]), None);
        let order = |list| {
            let net = Settings::from_pairs([("RINGWAY_NET", list)]).unwrap().net;
            let mut names = [TCP, RDMA, SHM];
            names.sort_by_key(|name| place(&net, name));
            names
        };
        assert_eq!([order("auto"), order("^epoll")], [[SHM, RDMA, TCP]; 2]);
        assert_eq!(order("rdma,tcp,shm"), [RDMA, TCP, SHM]);
        assert_eq!(order("uring,rdma")[..2], [TCP, RDMA]);
    }
}
