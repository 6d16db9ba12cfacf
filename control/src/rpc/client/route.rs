//! The way to the coordinator: one address, or those of several candidates of which one leads.
//!
//! - W1. Whoever is told, or sees, that the coordinator is not where the way leads, moves the way on: to the leader that was
//!   named, else to the next candidate. Of several who see it at once, one does.
//! - W2. A call that waits when the way moves is asked again at the new place, and so is the stream of losses: the old place
//!   may be cut off without a word. Calls that change something carry a number, by which the coordinator knows that it has
//!   been asked before.
//! - W3. Where the service does not say that another goes on when it ends, a call whose connection breaks fails.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tonic::{Request, Status};

use super::connect::{self, Sight};
use crate::rpc::convert;
use crate::rpc::credentials::{Credentials, SecureChannel};
use crate::settings::HostPort;

/// First pause before a call is asked again.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause before a call is asked again.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Candidates that an address may name.
const ADDRESSES_LIMIT: usize = 64;

/// Where the way leads.
#[derive(Clone)]
struct Place {
    /// How often it was moved.
    moves: u64,
    address: String,
    channel: SecureChannel,
}

/// The way. Clones are the same.
#[derive(Clone)]
pub(super) struct Route(Arc<Inner>);

struct Inner {
    /// In the order in which they are tried.
    addresses: Vec<String>,
    place: watch::Sender<Place>,
    sight: Sight,
    credentials: Credentials,
    /// How long the service may be away, in milliseconds; 0: its end is the end.
    failover_ms: AtomicU64,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    last: u64,
    open: BTreeSet<u64>,
}

impl Route {
    /// A way to "host:port", or to several with commas between them. Must be made within a runtime.
    ///
    /// # Errors
    /// In words, when one of them is no address.
    pub(super) fn new(given: &str, credentials: Credentials) -> Result<Route, String> {
        let addresses: Vec<String> = given.split(',').map(|address| address.trim().to_owned()).collect();
        if addresses.len() > ADDRESSES_LIMIT {
            return Err(format!("{} addresses, and the limit is {ADDRESSES_LIMIT}", addresses.len()));
        }
        if addresses.iter().any(|address| HostPort::parse(address).is_none()) {
            return Err("no host, or no port from 1 to 65535".to_owned());
        }
        let sight = Sight::new();
        let channel =
            connect::channel(&addresses[0], &sight, &credentials).map_err(|error| error.to_string())?;
        let (place, _) = watch::channel(Place { moves: 0, address: addresses[0].clone(), channel });
        let (failover_ms, calls) = (AtomicU64::new(0), Mutex::default());
        Ok(Route(Arc::new(Inner { addresses, place, sight, credentials, failover_ms, calls })))
    }

    /// What was seen on the way.
    pub(super) fn sight(&self) -> &Sight {
        &self.0.sight
    }

    /// The service says how long it may be away before another goes on.
    pub(super) fn bear(&self, failover: Duration) {
        let span = u64::try_from(failover.as_millis()).unwrap_or(u64::MAX);
        self.0.failover_ms.store(span, Ordering::Relaxed);
    }

    /// Whether another goes on when the service ends.
    pub(super) fn goes_on(&self) -> bool {
        self.0.failover_ms.load(Ordering::Relaxed) > 0
    }

    /// Where the way leads now, and how often it was moved.
    pub(super) fn place(&self) -> (u64, SecureChannel) {
        let place = self.0.place.borrow();
        (place.moves, place.channel.clone())
    }

    /// The coordinator was not where the way led after so many moves (W1). Must be called within a runtime.
    pub(super) fn moved(&self, moves: u64, leader: Option<&str>) {
        self.0.place.send_if_modified(|place| {
            if place.moves != moves {
                return false;
            }
            let addresses = &self.0.addresses;
            let next = || {
                let at = addresses.iter().position(|address| *address == place.address);
                &addresses[at.map_or(0, |at| (at + 1) % addresses.len())]
            };
            let to = leader.filter(|leader| *leader != place.address).unwrap_or_else(|| next());
            // The channel connects again by itself.
            if to == place.address {
                return false;
            }
            let Ok(channel) = connect::channel(to, &self.0.sight, &self.0.credentials) else {
                tracing::debug!("{to:?}, which is said to lead, is no address");
                return false;
            };
            tracing::debug!("the way to the coordinator goes from {} to {to}", place.address);
            *place = Place { moves: moves + 1, address: to.to_owned(), channel };
            true
        });
    }

    /// Returns when the way has been moved more often than that.
    pub(super) async fn moved_past(&self, moves: u64) {
        // The sender is here.
        let _ = self.0.place.subscribe().wait_for(|place| place.moves > moves).await;
    }

    /// Looks at why a call failed, and moves the way on if the coordinator is not there. Whether it may be asked again.
    pub(super) fn look(&self, moves: u64, status: &Status) -> bool {
        if let Some(leader) = convert::elsewhere(status) {
            self.moved(moves, leader.as_deref());
            return true;
        }
        // Made on this side, since no answer came.
        if std::error::Error::source(status).is_some() {
            self.moved(moves, None);
            return self.goes_on();
        }
        false
    }

    /// Makes a call, and makes it again until it has an answer of the coordinator (W2, W3). Whoever drops it gives it up.
    pub(super) async fn call<T, F>(&self, call: impl Fn(SecureChannel) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            let (moves, channel) = self.place();
            let result = tokio::select! {
                biased;
                result = call(channel) => result,
                () = self.moved_past(moves) => continue,
            };
            match result {
                Err(status) if self.look(moves, &status) => tokio::time::sleep(pause).await,
                result => return result,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Numbers a request that changes something.
    pub(super) fn number(&self) -> Numbered {
        let mut calls = self.0.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.last += 1;
        let sequence = calls.last;
        calls.open.insert(sequence);
        Numbered { sequence, route: self.clone() }
    }
}

/// The number of a request, until it is done with.
pub(super) struct Numbered {
    sequence: u64,
    route: Route,
}

impl Numbered {
    /// The request under its number.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let calls = self.route.0.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = calls.open.first().copied().unwrap_or(self.sequence);
        let mut request = Request::new(message);
        convert::number((self.sequence, oldest), request.metadata_mut());
        request
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        let mut calls = self.route.0.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.open.remove(&self.sequence);
    }
}
