//! The coordination service as the program starts it: inside `ringway run`, and alone as `ringway serve`.
use ringway_control::settings::{HostPort, Secret, Settings};
use std::net::{Ipv4Addr, TcpListener};
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CoordinatorError(std::io::Error);
pub(crate) struct Coordinator {
    _l: TcpListener,
    address: HostPort,
}
impl Coordinator {
    pub(crate) fn start_local(
        _s: &Settings,
        _id: &str,
        _secret: &Secret,
        _ranks: u32,
    ) -> Result<Self, CoordinatorError> {
        let l = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(CoordinatorError)?;
        let port = l.local_addr().unwrap().port();
        Ok(Coordinator { _l: l, address: HostPort { host: "127.0.0.1".into(), port } })
    }
    pub(crate) fn address(&self) -> &HostPort {
        &self.address
    }
}
