//! Several transports as one.
//!
//! An endpoint's address lists what each of its transports offers. When a peer is introduced, the transports that both
//! sides offer are tried in an order on which both agree ([`order`]); the first that takes the peer's
//! address carries everything exchanged with it from then on, and why it is that one stays on [`record`](Endpoint::record).
//!
//! - **E1** A peer's messages, notes and loss come from one transport. Both sides choose the same one: a transport
//!   refuses an address (`NoRoute`) for reasons that hold in both directions.
//! - **E2** With one transport nothing is added but a look into a table: its fd, waker and limits are the endpoint's.
//! - **E3** With several, a thread sleeps on one epoll fd that holds theirs, which must stay the same for life.

use super::route::{MAX_OFFERS, Offer, Offers, Policy, Withheld, order, read_offers, write_offers};
use super::why::Record;
use crate::memory::{ForeignBytes, ReadLease, Region, RegionId};
use crate::transport::limits::in_words;
use crate::transport::{
    Address, Caps, Cause, ConnectError, Copies, Event, Found, Note, Op, OpId, Peer, PostError, RegionKey,
    RegisterError, Sight, Stamp, Tag, Transport, Waker,
};
use rustix::event::epoll;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Highest peer number that an endpoint takes.
pub const MAX_PEER: u32 = 1 << 20;

/// An endpoint was not made.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Nothing is left to reach anybody by.
    #[error("no transport is on ({off}): turn one on")]
    NoTransport {
        /// Those that are off.
        off: String,
    },
    /// Two speak the same, so that a peer could not tell them apart.
    #[error("there are two transports that speak {name}")]
    Twice {
        /// What they speak.
        name: &'static str,
    },
    /// One cannot be slept on, or the system is out of file descriptors.
    #[error("{name} cannot be waited for together with others: {why}")]
    Unsleepable {
        /// The transport.
        name: &'static str,
        /// Why not.
        why: String,
    },
}

/// What several transports need to be slept on together.
#[derive(Debug)]
struct Together {
    epoll: OwnedFd,
    waker: Waker,
}

#[derive(Debug)]
struct Route {
    /// Index of the transport, or `None` where no way was found.
    way: Option<usize>,
    address: Address,
    record: Record,
    gone: bool,
}

struct Way {
    transport: Box<dyn Transport>,
    /// What people read.
    name: &'static str,
    /// What is offered to peers ([`Caps::speaks`]).
    speaks: &'static str,
    required: bool,
    /// Whether it has ever been the way to a peer.
    used: bool,
}

/// Several transports that act as one.
pub struct Endpoint {
    ways: Vec<Way>,
    withheld: Vec<Withheld>,
    /// Names of withheld transports that every record mentions.
    missed: Vec<&'static str>,
    /// A transport whose absence is worth a warning, until one was given.
    hoped_for: Option<&'static str>,
    routes: Vec<Option<Route>>,
    together: Option<Together>,
    polls: u32,
    /// Whether a thread may have slept since the last poll: then all may have something to say.
    slept: bool,
}

/// A transport that reaches nobody so far is polled this rarely: it has only strangers to hear of, and may need a system
/// call for that.
const UNUSED_EVERY: u32 = 1024;

impl Endpoint {
    /// An endpoint of these transports, most preferred first, each with its policy.
    ///
    /// # Errors
    /// [`EndpointError`] when none is on, two speak the same, or several cannot be slept on together.
    pub fn new(transports: Vec<(Box<dyn Transport>, Policy)>) -> Result<Endpoint, EndpointError> {
        let (mut ways, mut withheld): (Vec<Way>, Vec<Withheld>) = (Vec::new(), Vec::new());
        for (transport, policy) in transports {
            let Caps { name, speaks, .. } = transport.caps();
            if ways.iter().any(|w| w.speaks == speaks) {
                return Err(EndpointError::Twice { name: speaks });
            }
            match policy {
                Policy::Off => {
                    let why = "it is switched off".to_owned();
                    withheld.push(Withheld { name: speaks.to_owned(), why });
                }
                Policy::Require | Policy::Prefer => {
                    ways.push(Way {
                        transport,
                        name,
                        speaks,
                        required: policy == Policy::Require,
                        used: false,
                    });
                }
            }
        }
        if ways.is_empty() {
            let off: Vec<String> = withheld.into_iter().map(|w| w.name).collect();
            return Err(EndpointError::NoTransport { off: off.join(", ") });
        }
        let together = if ways.len() > 1 { Some(Together::of(&ways)?) } else { None };
        Ok(Endpoint {
            ways,
            withheld,
            missed: Vec::new(),
            hoped_for: None,
            routes: Vec::new(),
            together,
            polls: 0,
            slept: true,
        })
    }

    /// Says why a transport is not among those of this endpoint, to peers that want it: before they are introduced.
    /// Once there are as many as an address holds, more are not said.
    pub fn withhold(&mut self, speaks: &'static str, why: impl Into<String>) {
        if self.withheld.len() < MAX_OFFERS {
            self.withheld.push(Withheld { name: speaks.to_owned(), why: why.into() });
        }
    }

    /// As [`withhold`](Self::withhold), for a transport that was wanted: the record of every peer says why it is not used.
    pub fn miss(&mut self, speaks: &'static str, why: impl Into<String>) {
        self.withhold(speaks, why);
        self.missed.push(speaks);
    }

    /// Asks for one warning when a peer is reached by a less preferred transport than this one, which the endpoint has.
    pub fn hope_for(&mut self, speaks: &'static str) {
        self.hoped_for = Some(speaks);
    }

    /// How a peer is reached and what was rejected, or `None` before it was introduced.
    pub fn record(&self, peer: Peer) -> Option<&Record> {
        self.routes.get(peer.0 as usize)?.as_ref().map(|r| &r.record)
    }

    fn offers(&self) -> Offers {
        let offer = |w: &Way| Offer {
            name: w.speaks.to_owned(),
            required: w.required,
            address: w.transport.address(),
        };
        Offers { offered: self.ways.iter().map(offer).collect(), withheld: self.withheld.clone() }
    }

    #[inline]
    fn route(&self, peer: Peer) -> Option<usize> {
        self.routes.get(peer.0 as usize)?.as_ref()?.way
    }

    #[inline]
    fn way(&mut self, peer: Peer) -> Option<&mut Box<dyn Transport>> {
        let way = self.route(peer)?;
        Some(&mut self.ways[way].transport)
    }

    /// Tries what both offer; the record says how it went.
    fn try_ways(&mut self, peer: Peer, theirs: &Offers) -> (Option<usize>, Record) {
        let mut record = Record::default();
        for missed in self.withheld.iter().filter(|w| self.missed.iter().any(|missed| *missed == w.name)) {
            // Where the peer offers it, the order says so below.
            if theirs.offered.iter().all(|offer| offer.name != missed.name) {
                record.reject(&missed.name, &missed.why);
            }
        }
        let places: Vec<&str> = self.ways.iter().map(|way| way.speaks).collect();
        for (mine, their) in order(&self.offers(), theirs, &mut record) {
            let way = &mut self.ways[mine];
            match way.transport.connect(peer, &theirs.offered[their].address) {
                Ok(()) => {
                    way.used = true;
                    record.chosen = Some(way.name.to_owned());
                    let better = self.hoped_for.and_then(|name| places.iter().position(|p| *p == name));
                    if better.is_some_and(|better| better < mine) {
                        self.hoped_for = None;
                        tracing::warn!("rank {} is reached by {record}; so others may be", peer.0);
                    }
                    return (Some(mine), record);
                }
                Err(why) => record.reject(way.speaks, why.to_string()),
            }
        }
        (None, record)
    }

    fn note_departures(&mut self, events: &[Event]) {
        for event in events {
            if let Event::Lost { peer, .. } | Event::Left { peer } = event
                && let Some(Some(route)) = self.routes.get_mut(peer.0 as usize)
            {
                route.gone = true;
            }
        }
    }
}

impl Together {
    fn of(ways: &[Way]) -> Result<Together, EndpointError> {
        let failed =
            |name| move |e: rustix::io::Errno| EndpointError::Unsleepable { name, why: in_words(&e.into()) };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("fabric"))?;
        let waker =
            Waker::new().map_err(|e| EndpointError::Unsleepable { name: "fabric", why: in_words(&e) })?;
        let add =
            |fd: BorrowedFd<'_>| epoll::add(&epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        add(waker.fd()).map_err(failed("fabric"))?;
        for way in ways {
            let fd = way.transport.sleep_fd().ok_or_else(|| EndpointError::Unsleepable {
                name: way.name,
                why: "it has no file descriptor to sleep on".to_owned(),
            })?;
            add(fd).map_err(failed(way.name))?;
        }
        Ok(Together { epoll, waker })
    }
}

impl Transport for Endpoint {
    /// With several transports: what all of them can do.
    /// The limits are those of all transports together. The name is that of the one that reaches every peer so far,
    /// where it is one.
    fn caps(&self) -> Caps {
        let one = |a: Caps, b: Caps| Caps {
            name: "fabric",
            speaks: "fabric",
            max_message_bytes: a.max_message_bytes.min(b.max_message_bytes),
            eager_bytes: a.eager_bytes.min(b.eager_bytes),
            depth: a.depth.min(b.depth),
            registers: a.registers || b.registers,
            sleepable: a.sleepable && b.sleepable,
            withdraws_alone: a.withdraws_alone && b.withdraws_alone,
            in_process: a.in_process && b.in_process,
        };
        let all = self.ways.iter().map(|w| w.transport.caps());
        let mut caps = all.reduce(one).unwrap_or_else(|| unreachable!("an endpoint has a transport"));
        let mut used = self.routes.iter().flatten().filter_map(|route| route.way);
        if let Some(first) = used.next()
            && used.all(|way| way == first)
        {
            caps.name = self.ways[first].name;
        }
        caps
    }

    fn address(&self) -> Address {
        write_offers(&self.offers())
    }

    /// Registers with every transport; the key is that of the first that has a use for it.
    fn register(&mut self, region: &Region) -> Result<RegionKey, RegisterError> {
        let mut answer = Err(RegisterError::Useless);
        for way in &mut self.ways {
            match (way.transport.register(region), &answer) {
                (Ok(key), Err(_)) => answer = Ok(key),
                (Err(why), Err(RegisterError::Useless)) => answer = Err(why),
                _ => {}
            }
        }
        answer
    }

    fn deregister(&mut self, region: RegionId) {
        self.ways.iter_mut().for_each(|w| w.transport.deregister(region));
    }

    fn reaches_devices(&self, with: Peer) -> Result<Vec<String>, String> {
        let way = self.route(with).ok_or_else(|| "it is not reached at all".to_owned())?;
        self.ways[way].transport.reaches_devices(with)
    }

    /// With every transport that has a use for it; one at least.
    fn keep_registered(&mut self, region: &Region) -> Result<(), RegisterError> {
        let mut kept = Vec::new();
        for way in &mut self.ways {
            match way.transport.keep_registered(region) {
                Err(RegisterError::Useless) => kept.push(false),
                Ok(()) => kept.push(true),
                Err(why) => {
                    let those = self.ways.iter_mut().zip(&kept).filter(|(_, kept)| **kept);
                    those.for_each(|(way, _)| way.transport.release_registered(region.id()));
                    return Err(why);
                }
            }
        }
        if kept.contains(&true) { Ok(()) } else { Err(RegisterError::Useless) }
    }

    fn release_registered(&mut self, region: RegionId) {
        self.ways.iter_mut().for_each(|w| w.transport.release_registered(region));
    }

    fn connect(&mut self, peer: Peer, to: &Address) -> Result<(), ConnectError> {
        let bad = |why: &str| ConnectError::BadAddress { peer, why: why.to_owned() };
        let theirs = read_offers(to).map_err(bad)?;
        if peer.0 > MAX_PEER {
            return Err(bad("the peer's number is too high"));
        }
        let slot = peer.0 as usize;
        if self.routes.len() <= slot {
            self.routes.resize_with(slot + 1, || None);
        }
        if let Some(route) = &self.routes[slot]
            && route.way.is_some()
        {
            if route.address == *to {
                return Ok(());
            }
            if !route.gone {
                return Err(bad("the peer is reached under another address already"));
            }
        }
        let (way, record) = self.try_ways(peer, &theirs);
        let answer = match way {
            Some(_) => Ok(()),
            None => Err(ConnectError::NoRoute { peer, why: no_way(&self.ways, &theirs, &record) }),
        };
        self.routes[slot] = Some(Route { way, address: to.clone(), record, gone: false });
        answer
    }

    fn close(&mut self, peer: Peer, why: Cause) {
        if let Some(way) = self.way(peer) {
            way.close(peer, why);
        }
    }

    fn post(&mut self, id: OpId, op: Op) -> Result<(), (PostError, Op)> {
        match self.route(op.peer()) {
            Some(way) => self.ways[way].transport.post(id, op),
            None => Err((PostError::Unknown(op.peer()), op)),
        }
    }

    fn send_now(&mut self, to: Peer, tag: Tag, stamp: &Stamp, bytes: &[u8]) -> bool {
        self.way(to).is_some_and(|way| way.send_now(to, tag, stamp, bytes))
    }

    fn take_now(
        &mut self,
        from: Peer,
        tag: Tag,
        expected: (&Stamp, usize),
        looks: u32,
        take: &mut dyn FnMut(&[u8]),
    ) -> Found {
        self.way(from).map_or(Found::Other, |way| way.take_now(from, tag, expected, looks, take))
    }

    fn cancel(&mut self, id: OpId) {
        self.ways.iter_mut().for_each(|w| w.transport.cancel(id));
    }

    fn note(&mut self, to: Peer, note: &Note) -> Result<(), PostError> {
        self.way(to).ok_or(PostError::Unknown(to))?.note(to, note)
    }

    fn show(&mut self, to: Peer, bytes: &ReadLease) -> Option<Sight> {
        self.way(to)?.show(to, bytes)
    }

    fn view(&mut self, from: Peer, sight: Sight) -> Option<ForeignBytes> {
        self.way(from)?.view(from, sight)
    }

    fn shares_memory(&self, with: Peer) -> bool {
        self.route(with).is_some_and(|way| self.ways[way].transport.shares_memory(with))
    }

    fn poll(&mut self, out: &mut Vec<Event>) -> bool {
        let from = out.len();
        let mut moved = false;
        self.polls = self.polls.wrapping_add(1);
        let unused = self.polls.is_multiple_of(UNUSED_EVERY) || !self.ways.iter().any(|w| w.used);
        let all = std::mem::take(&mut self.slept) || unused;
        for way in self.ways.iter_mut().filter(|w| w.used || all) {
            moved |= way.transport.poll(out);
        }
        self.note_departures(&out[from..]);
        moved
    }

    fn has_unsent(&self) -> bool {
        self.ways.iter().any(|w| w.used && w.transport.has_unsent())
    }

    fn prepare_sleep(&mut self) -> bool {
        if self.together.as_ref().is_some_and(|t| t.waker.take()) {
            return false;
        }
        self.slept = true;
        self.ways.iter_mut().all(|w| w.transport.prepare_sleep())
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.together {
            Some(together) => Some(together.epoll.as_fd()),
            None => self.ways[0].transport.sleep_fd(),
        }
    }

    fn waker(&self) -> Waker {
        match &self.together {
            Some(together) => together.waker.clone(),
            None => self.ways[0].transport.waker(),
        }
    }

    fn next_timer_ms(&self) -> Option<u64> {
        self.ways.iter().filter_map(|w| w.transport.next_timer_ms()).min()
    }

    fn retire(&mut self, group: u32) {
        self.ways.iter_mut().for_each(|w| w.transport.retire(group));
    }

    fn leave(&mut self, linger_ms: u64) {
        let deadline = Instant::now() + Duration::from_millis(linger_ms);
        for way in &mut self.ways {
            let left = deadline.saturating_duration_since(Instant::now());
            way.transport.leave(left.as_millis() as u64);
        }
    }

    fn why(&self, peer: Peer) -> Option<String> {
        let record = self.record(peer)?;
        let inner = self.route(peer).and_then(|w| self.ways[w].transport.why(peer));
        Some(match inner {
            Some(inner) => format!("{record}: {inner}"),
            None => record.to_string(),
        })
    }

    /// Of all transports together.
    fn copies(&self) -> Copies {
        let mut all = Copies::default();
        self.ways.iter().for_each(|way| all += way.transport.copies());
        all
    }

    fn pending(&self, peer: Peer) -> (usize, usize) {
        self.route(peer).map_or((0, 0), |w| self.ways[w].transport.pending(peer))
    }
}

/// For the error: both lists, and what was wrong with each.
fn no_way(ways: &[Way], theirs: &Offers, record: &Record) -> String {
    let list = |names: Vec<&str>| if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    format!(
        "this side offers {}, the peer {}: {record}",
        list(ways.iter().map(|w| w.speaks).collect()),
        list(theirs.offered.iter().map(|o| o.name.as_str()).collect())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{WaitOutcome, Waiter};
    use crate::memory::Pool;
    use crate::transport::{CauseKind, Hub, Keyring, LoopbackConfig, Named};
    use crate::uring::{Bind, Config, DriverChoice, TcpTransport};

    fn endpoint(ways: &[(&Hub, &'static str, Policy)], me: u32) -> Endpoint {
        let way = |(hub, name, policy): &(&Hub, &'static str, Policy)| {
            (Box::new(Named::new(hub.join(Peer(me)).unwrap(), name)) as Box<dyn Transport>, *policy)
        };
        Endpoint::new(ways.iter().map(way).collect()).unwrap()
    }

    fn hubs() -> [Hub; 3] {
        [0; 3].map(|_| Hub::new(LoopbackConfig::default()))
    }

    #[test]
    fn each_peer_gets_the_best_that_both_have() {
        // E1: shm reaches the peer on this host alone; the other one is reached by tcp.
        let [shm, other_host, tcp] = hubs();
        let both = |shm| [(shm, "shm", Policy::Prefer), (&tcp, "tcp", Policy::Prefer)];
        let mut here = endpoint(&both(&shm), 0);
        let mut near = endpoint(&both(&shm), 1);
        let mut far = endpoint(&both(&other_host), 2);
        let addresses = [here.address(), near.address(), far.address()];
        for (me, endpoint) in [&mut here, &mut near, &mut far].into_iter().enumerate() {
            for (peer, address) in addresses.iter().enumerate().filter(|(p, _)| *p != me) {
                endpoint.connect(Peer(peer as u32), address).unwrap();
                endpoint.connect(Peer(peer as u32), address).unwrap();
            }
        }
        assert_eq!(here.record(Peer(1)).unwrap().to_string(), "shm");
        assert_eq!([here.caps().name, far.caps().name], ["fabric", "tcp"]);
        let why = here.why(Peer(2)).unwrap();
        assert!(why.starts_with("tcp (not shm: peer 2: no way from here"), "{why}");
        assert_eq!(far.record(Peer(0)).unwrap().chosen.as_deref(), Some("tcp"));
        // Messages with both, at once, on one tag; the far peer is lost and the near one is not.
        let (pool, tag, stamp) = (Pool::default(), Tag { group: 1, lane: 1 }, Stamp::default());
        let (mut out, mut keep) = (Vec::new(), Vec::new());
        for (id, peer) in [(1, &mut near), (2, &mut far)] {
            let (mut r, mut q) = (pool.region(5).unwrap(), pool.region(5).unwrap());
            let into = r.lend_write(0..5).unwrap();
            here.post(OpId(id), Op::Recv { from: Peer(id as u32), tag, stamp, into }).unwrap();
            let bytes = q.lend_read(0..5).unwrap();
            peer.post(OpId(9), Op::Send { to: Peer(0), tag, stamp, bytes }).unwrap();
            peer.poll(&mut Vec::new());
            keep.extend([r, q]);
        }
        here.poll(&mut out);
        let done = |e: &Event| matches!(e, Event::Done(c) if c.result.is_ok());
        assert_eq!(out.iter().filter(|e| done(e)).count(), 2, "{out:?}");
        drop(far);
        out.clear();
        here.poll(&mut out);
        assert!(matches!(out[..], [Event::Lost { peer: Peer(2), .. }]), "{out:?}");
        here.note(Peer(1), &Note::new(b"still here").unwrap()).unwrap();
    }

    #[test]
    fn one_fd_and_one_waker_for_all() {
        // E3
        let [a, b, _] = hubs();
        let mut x = endpoint(&[(&a, "a", Policy::Prefer), (&b, "b", Policy::Prefer)], 0);
        let mut y = endpoint(&[(&b, "b", Policy::Prefer)], 1);
        x.connect(Peer(1), &y.address()).unwrap();
        y.connect(Peer(0), &x.address()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let (waiter, mut events) = (Waiter::new(0), Vec::new());
        while waiter.wait(&mut x, &mut events, Instant::now()) == WaitOutcome::Woken {}
        std::thread::scope(|scope| {
            scope.spawn(|| y.note(Peer(0), &Note::new(b"up").unwrap()).unwrap());
            while events.is_empty() {
                assert_ne!(waiter.wait(&mut x, &mut events, deadline), WaitOutcome::TimedOut);
            }
        });
        while waiter.wait(&mut x, &mut events, Instant::now()) == WaitOutcome::Woken {}
        let waker = x.waker();
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            assert_eq!(waiter.wait(&mut x, &mut events, deadline), WaitOutcome::Woken);
        });
        assert_eq!(events.len(), 1);
    }

    #[test]
    fn what_was_wanted_and_is_missing_is_in_every_record() {
        let [a, b, _] = hubs();
        let mut x = endpoint(&[(&a, "tcp", Policy::Prefer)], 0);
        x.miss("rdma", "port rxe0:1 is down");
        x.withhold("shm", "it is switched off");
        let without = endpoint(&[(&a, "tcp", Policy::Prefer)], 1);
        let with = endpoint(&[(&a, "tcp", Policy::Prefer), (&b, "rdma", Policy::Prefer)], 2);
        for (peer, other) in [(1, &without), (2, &with)] {
            x.connect(Peer(peer), &other.address()).unwrap();
            assert_eq!(
                x.record(Peer(peer)).unwrap().to_string(),
                "tcp (not rdma: port rxe0:1 is down)",
                "said once, whether the peer offers it or not"
            );
        }
    }

    #[test]
    fn no_common_way_names_both_lists() {
        let [a, b, _] = hubs();
        let mut x = endpoint(&[(&a, "rdma", Policy::Require), (&b, "uring", Policy::Off)], 0);
        let mut y = endpoint(&[(&b, "uring", Policy::Prefer)], 1);
        y.withhold("rdma", "no device");
        let error = x.connect(Peer(1), &y.address()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "peer 1: no way from here to any of its addresses: this side offers rdma, the peer uring: no transport \
             (not rdma: the peer does not offer it, it says: no device; not uring: it is switched off)"
        );
        assert!(x.record(Peer(1)).unwrap().chosen.is_none());
        assert!(matches!(x.connect(Peer(2), &Address(vec![7])), Err(ConnectError::BadAddress { .. })));
        let off: Vec<(Box<dyn Transport>, Policy)> = vec![(Box::new(a.join(Peer(5)).unwrap()), Policy::Off)];
        assert!(matches!(Endpoint::new(off), Err(EndpointError::NoTransport { .. })));
    }

    #[test]
    fn drivers_of_tcp_reach_each_other() {
        // E1: io_uring where this kernel allows it, epoll on the other side.
        let open = |me, driver| {
            let bind = Bind::new(std::net::Ipv4Addr::LOCALHOST.into(), "lo");
            let config =
                Config { driver, ..Config::new(me, Keyring::of([7; 32]), 40 + u64::from(me), vec![bind]) };
            Endpoint::new(vec![(Box::new(TcpTransport::new(config).unwrap()), Policy::Prefer)]).unwrap()
        };
        let (mut x, mut y) = (open(0, DriverChoice::Auto), open(1, DriverChoice::Epoll));
        assert_eq!(y.caps().name, "epoll");
        x.connect(Peer(1), &y.address()).unwrap();
        y.connect(Peer(0), &x.address()).unwrap();
        y.note(Peer(0), &Note::new(b"hello").unwrap()).unwrap();
        let (mut events, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(60));
        while events.is_empty() {
            assert!(Instant::now() < deadline, "{:?} {:?}", x.why(Peer(1)), y.why(Peer(0)));
            x.poll(&mut events);
            y.poll(&mut Vec::new());
        }
        assert!(matches!(events[..], [Event::Note { from: Peer(1), .. }]), "{events:?}");
        assert!(y.why(Peer(0)).unwrap().starts_with("epoll: "), "{:?}", y.why(Peer(0)));
    }

    #[test]
    fn a_lost_peer_may_come_back_under_another_address() {
        let [a, _, _] = hubs();
        let mut x = endpoint(&[(&a, "a", Policy::Prefer)], 0);
        let y = endpoint(&[(&a, "a", Policy::Prefer)], 1);
        let again = endpoint(&[(&a, "a", Policy::Prefer)], 1);
        x.connect(Peer(1), &y.address()).unwrap();
        assert!(matches!(x.connect(Peer(1), &again.address()), Err(ConnectError::BadAddress { .. })));
        x.close(Peer(1), Cause::new(CauseKind::Reported, "its host is down"));
        let mut out = Vec::new();
        x.poll(&mut out);
        assert!(matches!(out[..], [Event::Lost { peer: Peer(1), .. }]));
        x.connect(Peer(1), &again.address()).unwrap();
        x.note(Peer(1), &Note::new(b"welcome").unwrap()).unwrap();
    }
}
