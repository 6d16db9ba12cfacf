//! This host's side: listening addresses, what is published of them, and socket options.
#![forbid(unsafe_code)]

use super::{Config, Congestion};
use crate::transport::Address;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

/// Silence on an idle connection before the kernel asks whether the other host is still there.
pub const KEEPALIVE_IDLE_MS: u64 = 10_000;
/// Between such questions.
pub const KEEPALIVE_INTERVAL_MS: u64 = 5_000;
/// Unanswered questions before the connection counts as dead.
pub const KEEPALIVE_RETRIES: u32 = 3;
/// Connections that may wait to be accepted.
pub const BACKLOG: i32 = 1024;
/// Most addresses that one peer publishes.
pub const MAX_ADDRESSES: usize = 32;

const ADDRESS_MAGIC: [u8; 4] = *b"RWT2";

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The address.
    pub ip: IpAddr,
    /// Index of the interface; needed for link-local IPv6, else 0.
    pub scope: u32,
    /// Name of the interface, for people.
    pub interface: String,
}

impl Bind {
    /// An address without a scope.
    pub fn new(ip: IpAddr, interface: impl Into<String>) -> Bind {
        Bind { ip, scope: 0, interface: interface.into() }
    }

    fn socket_address(&self) -> SocketAddr {
        with_scope(self.ip, 0, self.scope)
    }
}

fn with_scope(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, scope).into(),
    }
}

fn is_link_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.segments()[0] & 0xffc0 == 0xfe80)
}

/// This host's identity: its boot id, or 0 where that cannot be read.
pub fn host_identity() -> u128 {
    let host = ringway_topology::host::host_id().ok();
    host.and_then(|host| u128::from_str_radix(&host.boot().replace('-', ""), 16).ok()).unwrap_or(0)
}

/// What [`Address`] holds for this transport.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Published {
    /// What the process calls itself ([`Config::me`]), whatever its peers number it.
    pub(super) number: u32,
    pub(super) incarnation: u64,
    pub(super) host: u128,
    pub(super) at: Vec<SocketAddr>,
}

impl Published {
    pub(super) fn encode(&self) -> Address {
        let mut bytes = ADDRESS_MAGIC.to_vec();
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.incarnation.to_le_bytes());
        bytes.extend(self.host.to_le_bytes());
        bytes.push(self.at.len() as u8);
        for at in &self.at {
            match at.ip() {
                IpAddr::V4(ip) => {
                    bytes.push(4);
                    bytes.extend(ip.octets());
                }
                IpAddr::V6(ip) => {
                    bytes.push(6);
                    bytes.extend(ip.octets());
                }
            }
            bytes.extend(at.port().to_le_bytes());
        }
        Address(bytes)
    }

    /// Decodes, or says what is wrong.
    pub(super) fn decode(address: &Address) -> Result<Published, String> {
        let mut bytes = address.0.as_slice();
        let mut take = |n: usize| -> Result<&[u8], String> {
            let (head, rest) = bytes.split_at_checked(n).ok_or("it is cut short")?;
            bytes = rest;
            Ok(head)
        };
        let short = |_| "it is cut short".to_string();
        if take(4)? != ADDRESS_MAGIC {
            return Err("it does not begin with RWT2".into());
        }
        let number = u32::from_le_bytes(take(4)?.try_into().map_err(short)?);
        let incarnation = u64::from_le_bytes(take(8)?.try_into().map_err(short)?);
        let host = u128::from_le_bytes(take(16)?.try_into().map_err(short)?);
        let count = usize::from(take(1)?[0]);
        if count > MAX_ADDRESSES {
            return Err(format!("it lists {count} addresses, over the limit of {MAX_ADDRESSES}"));
        }
        let mut at = Vec::with_capacity(count);
        for _ in 0..count {
            let ip: IpAddr = match take(1)?[0] {
                4 => <[u8; 4]>::try_from(take(4)?).map_err(short)?.into(),
                6 => <[u8; 16]>::try_from(take(16)?).map_err(short)?.into(),
                other => return Err(format!("it has an address of unknown family {other}")),
            };
            let port = u16::from_le_bytes(take(2)?.try_into().map_err(short)?);
            at.push(SocketAddr::new(ip, port));
        }
        if bytes.is_empty() {
            Ok(Published { number, incarnation, host, at })
        } else {
            Err("it is too long".into())
        }
    }
}

/// Where to dial, in the publisher's order: what this host's own addresses can reach.
///
/// # Errors
/// In words: what was looked at and why none fits.
pub(super) fn candidates(ours: &[Bind], host: u128, theirs: &Published) -> Result<Vec<SocketAddr>, String> {
    let same_host = host != 0 && host == theirs.host;
    let mut found = Vec::new();
    for at in &theirs.at {
        let ours = ours.iter().filter(|b| b.ip.is_ipv4() == at.is_ipv4());
        if at.ip().is_loopback() {
            found.extend((same_host && ours.count() > 0).then_some(*at));
        } else if is_link_local(&at.ip()) {
            found.extend(ours.filter(|b| b.scope != 0).map(|b| with_scope(at.ip(), at.port(), b.scope)));
        } else if ours.count() > 0 {
            found.push(*at);
        }
    }
    if found.is_empty() {
        let ours: Vec<_> = ours.iter().map(|b| format!("{} on {}", b.ip, b.interface)).collect();
        return Err(format!(
            "it publishes {:?}, we have {ours:?}, {}",
            theirs.at,
            if same_host { "on the same host" } else { "on different hosts" }
        ));
    }
    Ok(found)
}

fn socket(domain: Domain) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A listening socket on a free port.
pub(super) fn listen(bind: &Bind, buffer_bytes: Option<u32>) -> io::Result<(Socket, SocketAddr)> {
    let at = bind.socket_address();
    let socket = socket(Domain::for_address(at))?;
    if at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    set_buffers(&SockRef::from(&socket), buffer_bytes);
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    let local = socket.local_addr()?.as_socket().ok_or_else(|| io::Error::other("no local address"))?;
    Ok((socket, local))
}

/// Begins to dial. The socket is connected, or becomes writable when it is or has failed.
pub(super) fn dial(to: SocketAddr, buffer_bytes: Option<u32>) -> io::Result<Socket> {
    let socket = socket(Domain::for_address(to))?;
    set_buffers(&SockRef::from(&socket), buffer_bytes);
    match socket.connect(&to.into()) {
        Ok(()) => Ok(socket),
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Ok(socket),
        Err(e) => Err(e),
    }
}

fn set_buffers(socket: &SockRef<'_>, bytes: Option<u32>) {
    if let Some(bytes) = bytes {
        // Sizes beyond the system's limits are clamped by the kernel; anything else is only slower.
        let _ = socket.set_send_buffer_size(bytes as usize);
        let _ = socket.set_recv_buffer_size(bytes as usize);
    }
}

/// Sets what every connection needs; returns what `why` says of congestion control.
pub(super) fn tune(socket: &Socket, config: &Config, same_host: bool) -> String {
    let reference = SockRef::from(socket);
    if let Err(e) = reference.set_tcp_nodelay(true) {
        tracing::warn!("TCP_NODELAY was refused ({e}): small messages will be slow");
    }
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_millis(KEEPALIVE_IDLE_MS))
        .with_interval(Duration::from_millis(KEEPALIVE_INTERVAL_MS))
        .with_retries(KEEPALIVE_RETRIES);
    if let Err(e) = reference.set_tcp_keepalive(&keepalive) {
        tracing::warn!("keepalive was refused ({e}): a dead link is noticed late");
    }
    let wanted = match &config.congestion {
        Congestion::Auto if same_host => Some("reno"),
        Congestion::Auto | Congestion::System => None,
        Congestion::Named(name) => Some(name.as_str()),
    };
    let in_force = || {
        let name = reference.tcp_congestion().unwrap_or_default();
        String::from_utf8_lossy(&name).trim_end_matches('\0').to_string()
    };
    match wanted.map(|name| (name, reference.set_tcp_congestion(name.as_bytes()))) {
        Some((name, Ok(()))) => name.to_string(),
        Some((name, Err(e))) => format!("{} ({name} refused: {e})", in_force()),
        None => format!("{} (the system's)", in_force()),
    }
}

/// An IPv6 address that carries an IPv4 one, as that one: for comparing and for people.
pub(super) fn plain(at: SocketAddr) -> SocketAddr {
    match at.ip() {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) if v6 != Ipv6Addr::LOCALHOST => SocketAddr::new(v4.into(), at.port()),
            _ => at,
        },
        IpAddr::V4(_) => at,
    }
}
