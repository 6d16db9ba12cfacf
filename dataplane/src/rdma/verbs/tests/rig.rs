//! Ends of connections on the machine's first two devices, or on its one device twice.

use super::super::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for a completion or an event. A guest on a busy machine may stand still for a while.
const DEADLINE: Duration = Duration::from_secs(60);

/// Says why a test did not run; a failure where the environment promises a device.
pub(super) fn skip(reason: &str) {
    crate::rdma::tests::may_be_missing(&reason);
    eprintln!("skipped, no RDMA here: {reason}");
}

/// A port that carries traffic, and the address to use there.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) context: Arc<Context>,
    pub(super) port: PortState,
    pub(super) gid: Option<GidEntry>,
}

pub(super) const PORT: u8 = 1;

impl Site {
    fn of(context: Arc<Context>) -> Option<Site> {
        let port = context.port(PORT).expect("a port");
        let mut gids = context.gids(PORT).expect("a GID table");
        // IPv4 before link-local addresses, which two devices may have on different links.
        gids.retain(|entry| entry.kind == GidKind::RoceV2);
        gids.sort_by_key(|entry| (entry.gid[..2] == [0xfe, 0x80], entry.index));
        let gid = gids.into_iter().next();
        let usable = port.link_layer != LinkLayer::Ethernet || gid.is_some();
        (port.status == PortStatus::Active && usable).then_some(Site { context, port, gid })
    }

    pub(super) fn route_to(&self, other: &Site) -> Route {
        Route {
            port: PORT,
            destination_lid: other.port.lid,
            source_path_bits: 0,
            service_level: 0,
            global: self.gid.as_ref().zip(other.gid.as_ref()).map(|(own, other)| GlobalRoute {
                destination_gid: other.gid,
                source_gid_index: own.index as u8,
                hop_limit: 64,
                traffic_class: 0,
                flow_label: 0,
            }),
        }
    }
}

/// Two sites, or the reason why there are none.
pub(super) fn sites() -> Option<[Site; 2]> {
    match find_sites() {
        Ok(sites) => Some(sites),
        Err(reason) => {
            skip(&reason);
            None
        }
    }
}

fn find_sites() -> Result<[Site; 2], String> {
    let library = Library::load().map_err(|error| error.to_string())?;
    let names = library.device_names().map_err(|error| error.to_string())?;
    if names.is_empty() {
        return Err("libibverbs lists no device".to_owned());
    }
    let mut sites = Vec::new();
    for name in &names {
        let context = Context::open(&library, name).map_err(|error| error.to_string())?;
        sites.extend(Site::of(context));
    }
    let first = sites.first().ok_or(format!("no active port with a RoCE v2 GID or a LID on {names:?}"))?;
    Ok([first.clone(), sites.get(1).unwrap_or(first).clone()])
}

/// Registered memory that peers may write.
pub(super) struct Memory {
    // The region goes before its bytes.
    region: MemoryRegion,
    bytes: Bytes,
}

struct Bytes(NonNull<[u8]>);

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: leaked from a box in `Memory::new`, and given back once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Memory {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, len: usize) -> Memory {
        let bytes = Box::leak(vec![0u8; len].into_boxed_slice());
        let bytes = Bytes(NonNull::from(bytes));
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        // SAFETY: the bytes outlive the region, by the order of the fields, and are looked at through copies only.
        let region = unsafe { MemoryRegion::register(domain, bytes.0.cast(), len, access) };
        Memory { region: region.expect("a region"), bytes }
    }

    pub(super) fn address(&self) -> u64 {
        self.bytes.0.cast::<u8>().as_ptr().addr() as u64
    }

    pub(super) fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    pub(super) fn sge(&self, at: usize, len: usize) -> Sge {
        assert!(at + len <= self.region.len());
        Sge { addr: self.address() + at as u64, len: len as u32, lkey: self.region.lkey() }
    }

    pub(super) fn put(&mut self, at: usize, text: &[u8]) {
        assert!(at + text.len() <= self.region.len());
        // SAFETY: inside of the bytes, which no request under way covers.
        unsafe {
            self.bytes.0.cast::<u8>().add(at).copy_from_nonoverlapping(NonNull::from(text).cast(), text.len())
        };
    }

    pub(super) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.region.len());
        let mut copy = vec![0; len];
        // SAFETY: inside of the bytes, which no request under way writes.
        unsafe {
            self.bytes.0.cast::<u8>().add(at).copy_to_nonoverlapping(NonNull::from(&mut copy[..]).cast(), len)
        };
        copy
    }
}

/// One end: a queue pair with a completion queue of its own that can be slept on, and memory.
pub(super) struct End {
    // The queue pair goes before the memory that its requests use.
    pub(super) qp: QueuePair,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) channel: Arc<CompletionChannel>,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) memory: Memory,
    pub(super) site: Site,
}

pub(super) fn spec(kind: QueuePairKind, queue: &Arc<CompletionQueue>) -> QueuePairSpec {
    QueuePairSpec {
        kind,
        send_queue: Arc::clone(queue),
        receive_queue: Arc::clone(queue),
        shared_receives: None,
        max_sends: 64,
        max_receives: 64,
        max_send_sges: 4,
        max_receive_sges: 4,
        max_inline_bytes: 128,
        signal_all: false,
    }
}

impl End {
    pub(super) fn new(site: &Site, kind: QueuePairKind) -> End {
        let domain = ProtectionDomain::new(&site.context).expect("a domain");
        End::in_domain(site, domain, |queue| spec(kind, queue))
    }

    pub(super) fn in_domain(
        site: &Site,
        domain: Arc<ProtectionDomain>,
        spec: impl FnOnce(&Arc<CompletionQueue>) -> QueuePairSpec,
    ) -> End {
        let channel = CompletionChannel::new(&site.context).expect("a channel");
        let queue = CompletionQueue::new(&site.context, 256, Some(&channel)).expect("a queue");
        let qp = QueuePair::create(&domain, &spec(&queue)).expect("a queue pair");
        let memory = Memory::new(&domain, 1 << 20);
        End { qp, queue, channel, domain, memory, site: site.clone() }
    }

    pub(super) fn send(&mut self, request: SendRequest<'_>) {
        // SAFETY: the pieces lie in this end's memory, which outlives its queue pair; tests look at them only after
        // the completion.
        unsafe { self.qp.post_send(&[request]) }.expect("accepted");
    }

    pub(super) fn receive(&mut self, wr_id: u64, at: usize, len: usize) {
        let sges = [self.memory.sge(at, len)];
        // SAFETY: as above.
        unsafe { self.qp.post_receive(&[ReceiveRequest { wr_id, sges: &sges }]) }.expect("accepted");
    }

    /// Sleeps until `count` requests have ended.
    pub(super) fn completions(&self, count: usize) -> Vec<WorkCompletion> {
        completions(&self.queue, &self.channel, count)
    }

    /// The one request that ends next.
    pub(super) fn completion(&self) -> WorkCompletion {
        self.completions(1)[0]
    }
}

pub(super) fn completions(
    queue: &CompletionQueue,
    channel: &CompletionChannel,
    count: usize,
) -> Vec<WorkCompletion> {
    let mut done = Vec::new();
    let started = Instant::now();
    while done.len() < count {
        queue.request_notify(false).expect("notice");
        let mut batch = vec![WorkCompletion::default(); count - done.len()];
        let got = queue.poll(&mut batch).expect("a poll");
        done.extend(&batch[..got]);
        if got == 0 {
            assert!(started.elapsed() < DEADLINE, "{} of {count} completions: {done:?}", done.len());
            readable(&channel.fd(), DEADLINE);
            channel.drain().expect("events");
        }
    }
    done
}

/// Waits until a file is readable, or no longer than `limit`; whether it is.
pub(super) fn readable(fd: &impl std::os::fd::AsFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).expect("a short time");
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).expect("poll") == 1
}

/// The next event of a device that `wanted` is after; others are passed over.
pub(super) fn event(context: &Context, wanted: impl Fn(&AsyncEvent) -> bool) -> AsyncEvent {
    let started = Instant::now();
    let mut others = Vec::new();
    loop {
        match context.next_async_event().expect("events") {
            Some(event) if wanted(&event) => return event,
            Some(event) => others.push(event),
            None => {
                assert!(started.elapsed() < DEADLINE, "no such event; seen: {others:?}");
                readable(&context.async_fd(), DEADLINE);
            }
        }
    }
}

/// A request with nothing special about it.
pub(super) fn request(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendRequest<'_> {
    SendRequest { wr_id, op, sges, signaled: true, inline: false, fence: false, solicited: false, to: None }
}

pub(super) fn connect(a: &mut QueuePair, from: &Site, b: &QueuePair, to: &Site) {
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    a.to_init(PORT, 0, rights).expect("init");
    let path_mtu_bytes = from.port.active_mtu_bytes.min(to.port.active_mtu_bytes);
    let (route, destination_qp) = (from.route_to(to), b.number());
    // 0.01 ms until a receive that is missing is asked for again; once, so that its lack is found out soon.
    let (min_rnr_timer, max_reads_served) = (1, 1);
    let receive_psn = 7;
    a.to_rtr(&ReadyToReceive {
        route,
        destination_qp,
        path_mtu_bytes,
        receive_psn,
        min_rnr_timer,
        max_reads_served,
    })
    .expect("ready to receive");
    // Not 7: soft-RoCE takes that as without end.
    let (send_psn, timeout, retry_count, rnr_retry, max_reads_issued) = (7, 16, 6, 1, 1);
    a.to_rts(&ReadyToSend { send_psn, timeout, retry_count, rnr_retry, max_reads_issued })
        .expect("ready to send");
}

/// Two connected ends.
pub(super) fn pair() -> Option<[End; 2]> {
    let [one, other] = sites()?;
    let kind = QueuePairKind::ReliableConnection;
    let (mut a, mut b) = (End::new(&one, kind), End::new(&other, kind));
    connect(&mut a.qp, &a.site, &b.qp, &b.site);
    connect(&mut b.qp, &b.site, &a.qp, &a.site);
    Some([a, b])
}
