//! Posting and polling are the verbs of the hot path: on a real device, they allocate nothing. Where there is none,
//! the test says so and passes, unless `RINGWAY_TEST_RDMA=require`.

mod counting_allocator;

use counting_allocator::allocations;
use ringway_dataplane::rdma::verbs::*;
use std::ptr::NonNull;
use std::sync::Arc;

const PORT: u8 = 1;
/// Bytes of each message.
const LEN: usize = 64;
/// Sends and receives in each round.
const REQUESTS: usize = 40;

/// Memory that outlives what is made after it.
struct Bytes(NonNull<[u8]>);

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: leaked from a box, and given back once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

fn open() -> Result<Arc<Context>, String> {
    let library = Library::load().map_err(|error| error.to_string())?;
    let names = library.device_names().map_err(|error| error.to_string())?;
    let name = names.first().ok_or("libibverbs lists no device")?;
    Context::open(&library, name).map_err(|error| error.to_string())
}

/// Connects a queue pair to itself.
fn connect(qp: &mut QueuePair, context: &Context) {
    let port = context.port(PORT).expect("a port");
    let gids = context.gids(PORT).expect("a GID table");
    let gid = gids.iter().rfind(|entry| entry.kind == GidKind::RoceV2);
    let global = gid.map(|entry| GlobalRoute {
        destination_gid: entry.gid,
        source_gid_index: entry.index as u8,
        hop_limit: 1,
        traffic_class: 0,
        flow_label: 0,
    });
    let route =
        Route { port: PORT, destination_lid: port.lid, source_path_bits: 0, service_level: 0, global };
    qp.to_init(PORT, 0, Access::LOCAL_WRITE).expect("init");
    qp.to_rtr(&ReadyToReceive {
        route,
        destination_qp: qp.number(),
        path_mtu_bytes: port.active_mtu_bytes,
        receive_psn: 0,
        min_rnr_timer: 12,
        max_reads_served: 1,
    })
    .expect("ready to receive");
    let (timeout, retry_count, rnr_retry) = (16, 6, 6);
    qp.to_rts(&ReadyToSend { send_psn: 0, timeout, retry_count, rnr_retry, max_reads_issued: 1 })
        .expect("ready to send");
}

#[test]
fn posting_and_polling_allocate_nothing() {
    let context = match open() {
        Ok(context) => context,
        Err(reason) => {
            let required = std::env::var_os("RINGWAY_TEST_RDMA").is_some_and(|value| value == "require");
            assert!(!required, "RINGWAY_TEST_RDMA=require, and no RDMA here: {reason}");
            return eprintln!("skipped, no RDMA here: {reason}");
        }
    };
    let bytes = Bytes(NonNull::from(Box::leak(vec![7u8; 2 * LEN].into_boxed_slice())));
    let domain = ProtectionDomain::new(&context).expect("a domain");
    // SAFETY: the bytes outlive the region, as they were made before it, and nobody looks at them.
    let region = unsafe { MemoryRegion::register(&domain, bytes.0.cast(), 2 * LEN, Access::LOCAL_WRITE) };
    let region = region.expect("a region");
    let queue = CompletionQueue::new(&context, 4 * REQUESTS as u32, None).expect("a queue");
    let mut qp = QueuePair::create(
        &domain,
        &QueuePairSpec {
            kind: QueuePairKind::ReliableConnection,
            send_queue: Arc::clone(&queue),
            receive_queue: Arc::clone(&queue),
            shared_receives: None,
            max_sends: REQUESTS as u32,
            max_receives: REQUESTS as u32,
            max_send_sges: 1,
            max_receive_sges: 1,
            max_inline_bytes: 0,
            signal_all: false,
        },
    )
    .expect("a queue pair");
    connect(&mut qp, &context);

    let at = bytes.0.cast::<u8>().as_ptr().addr() as u64;
    let (from, into) = (
        [Sge { addr: at, len: LEN as u32, lkey: region.lkey() }],
        [Sge { addr: at + LEN as u64, len: LEN as u32, lkey: region.lkey() }],
    );
    let receives = [ReceiveRequest { wr_id: 1, sges: &into }; REQUESTS];
    let send = SendRequest {
        wr_id: 2,
        op: SendOp::SendWithImm(3),
        sges: &from,
        signaled: true,
        inline: false,
        fence: false,
        solicited: false,
        to: None,
    };
    let sends = [send; REQUESTS];
    let before = allocations();
    for _ in 0..8 {
        // SAFETY: the pieces lie in the region, which outlives the queue pair, and nobody looks at them.
        unsafe { qp.post_receive(&receives) }.expect("accepted");
        // SAFETY: as above.
        unsafe { qp.post_send(&sends) }.expect("accepted");
        let mut done = [WorkCompletion::default(); 2 * REQUESTS];
        let mut count = 0;
        while count < 2 * REQUESTS {
            let got = queue.poll(&mut done[count..]).expect("a poll");
            count += got;
            if got == 0 {
                std::thread::yield_now();
            }
        }
        assert!(done.iter().all(WorkCompletion::is_success));
        assert!(done.iter().all(|done| done.wr_id == 2 || (done.wr_id == 1 && done.imm == Some(3))));
    }
    // SAFETY: nothing is posted.
    let nothing = unsafe { qp.post_send(&[]) };
    assert_eq!(nothing, Ok(()));
    assert_eq!(allocations(), before);
    assert!(before.is_some(), "the allocator counts");
    drop((qp, region));
}
