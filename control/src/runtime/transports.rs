//! The data plane's transports, as the settings want them.

use crate::settings::{CongestionControl, IoDriver, NameList, Settings};
use ringway_dataplane::fabric::interface::{self, Choice, NoInterface, Picked, ReadError};
use ringway_dataplane::fabric::{Endpoint, EndpointError, Policy};
use ringway_dataplane::transport::Transport;
use ringway_dataplane::uring::{Bind, Config, Congestion, DriverChoice, OpenError, TcpTransport};
use ringway_topology::Incarnation;

/// Names in `RINGWAY_NET`: TCP, and its two drivers.
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
    /// The settings leave nothing.
    #[error("RINGWAY_NET leaves no transport: {0}")]
    Endpoint(#[from] EndpointError),
}

/// What this process is to others on the data plane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) rank: u32,
    pub(super) token: [u8; 16],
    pub(super) life: Incarnation,
}

/// The interfaces and addresses that the settings choose. `all_local`: all ranks are known to be on this host.
///
/// # Errors
/// When the interfaces cannot be listed, or none may be used; the error says why per address.
pub fn interfaces(settings: &Settings, all_local: bool) -> Result<Choice, TransportsError> {
    Ok(interface::choose(&interface::read()?, &settings.interfaces(all_local))?)
}

/// Opens the transports.
pub(super) fn open(
    me: Identity,
    all_local: bool,
    settings: &Settings,
) -> Result<Box<dyn Transport>, TransportsError> {
    let driver = driver(settings);
    let policy = if driver.is_some() { Policy::Prefer } else { Policy::Off };
    let picked = interfaces(settings, all_local)?.picked;
    let tcp = TcpTransport::new(config(me, picked, driver.unwrap_or_default(), settings))?;
    Ok(Box::new(Endpoint::new(vec![(Box::new(tcp), policy)])?))
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

fn config(me: Identity, picked: Vec<Picked>, driver: DriverChoice, settings: &Settings) -> Config {
    let bind = |p: Picked| Bind { ip: p.ip, scope: p.scope, interface: p.interface };
    let mut config = Config::new(me.rank, me.token, me.life.0, picked.into_iter().map(bind).collect());
    config.driver = driver;
    config.congestion = match &settings.congestion_control {
        CongestionControl::Auto => Congestion::Auto,
        CongestionControl::System => Congestion::System,
        CongestionControl::Named(name) => Congestion::Named(name.clone()),
    };
    config.connect_timeout_ms = u64::try_from(settings.connect_timeout.as_millis()).unwrap_or(u64::MAX);
    if let Some(bytes) = settings.eager_bytes {
        config.eager_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn net_and_driver_settings_are_kept_together() {
        let given = |pairs: &[(&str, &str)]| driver(&Settings::from_pairs(pairs.iter().copied()).unwrap());
        assert_eq!(given(&[]), Some(DriverChoice::Auto));
        assert_eq!(given(&[("RINGWAY_NET", "tcp")]), Some(DriverChoice::Auto));
        assert_eq!(given(&[("RINGWAY_NET", "epoll")]), Some(DriverChoice::Epoll));
        assert_eq!(given(&[("RINGWAY_NET", "^epoll")]), Some(DriverChoice::Uring));
        assert_eq!(given(&[("RINGWAY_NET", "^tcp")]), None);
        assert_eq!(given(&[("RINGWAY_IO_DRIVER", "epoll")]), Some(DriverChoice::Epoll));
        assert_eq!(given(&[("RINGWAY_NET", "uring"), ("RINGWAY_IO_DRIVER", "epoll")]), None);
    }
}
