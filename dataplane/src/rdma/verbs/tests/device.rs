//! On real devices, of which soft-RoCE in a guest is one kind. Where there is none, these tests say so and pass.

use super::super::port::{gids_by_index, gids_by_table};
use super::super::*;
use super::rig::*;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

const RC: QueuePairKind = QueuePairKind::ReliableConnection;
const UD: QueuePairKind = QueuePairKind::UnreliableDatagram;

#[test]
fn a_device_says_what_it_is() {
    let Some([site, _]) = sites() else { return };
    let limits = site.context.device().expect("limits");
    assert!(limits.ports >= 1 && limits.max_queue_pairs > 0 && limits.max_requests > 0, "{limits:?}");
    assert!(limits.max_completion_entries > 0 && limits.max_region_bytes > 0, "{limits:?}");
    let port = &site.port;
    assert!(port.active_mtu_bytes >= 256 && port.active_mtu_bytes <= port.max_mtu_bytes, "{port:?}");
    assert!(
        port.max_message_bytes >= 1 << 20 && port.gid_table_len > 0 && port.pkey_table_len > 0,
        "{port:?}"
    );
    let pkey = site.context.pkey(PORT, 0).expect("the default key");
    assert_eq!(pkey & 0x7fff, 0x7fff, "{pkey:#x}");
    let none = site.context.port(limits.ports + 1).expect_err("no such port");
    assert!(none.to_string().contains(site.context.name()), "{none}");
}

#[test]
fn both_ways_to_read_the_gid_table_agree() {
    let Some(sites) = sites() else { return };
    for Site { context, .. } in &sites {
        let by_index = gids_by_index(context, PORT).expect("entry by entry");
        let by_table = gids_by_table(context, PORT);
        assert_eq!(by_table.expect("in one call"), by_index);
        for entry in &by_index {
            assert_eq!(context.gid(PORT, entry.index).expect("an entry"), entry.gid);
        }
        assert!(by_index.iter().all(|entry| entry.kind != GidKind::RoceV2 || entry.interface.is_some()));
    }
}

#[test]
fn sends_fill_receives_in_order() {
    let Some([mut a, mut b]) = pair() else { return };
    a.memory.put(0, b"one, in two pieces");
    let inline = *b"two, inline";
    b.receive(1, 0, 64);
    b.receive(2, 64, 64);
    b.receive(3, 128, 64);
    let pieces = [a.memory.sge(0, 5), a.memory.sge(5, 13)];
    a.send(request(11, SendOp::Send, &pieces));
    // Memory of this test's stack, in no region.
    let piece = [Sge { addr: inline.as_ptr().addr() as u64, len: inline.len() as u32, lkey: 0 }];
    a.send(SendRequest { inline: true, ..request(12, SendOp::SendWithImm(0x0102_0304), &piece) });
    a.send(SendRequest { signaled: false, ..request(13, SendOp::Send, &[]) });
    let sent = a.completions(2);
    assert_eq!(sent.iter().map(|done| done.wr_id).collect::<Vec<_>>(), [11, 12], "the third asked for none");
    assert!(sent.iter().all(|done| done.is_success() && done.opcode == CompletionOpcode::Send), "{sent:?}");
    let got = b.completions(3);
    assert!(got.iter().all(|done| done.is_success() && done.opcode == CompletionOpcode::Receive), "{got:?}");
    assert!(got.iter().all(|done| done.qp_num == b.qp.number()), "{got:?}");
    let seen: Vec<_> = got.iter().map(|done| (done.wr_id, done.byte_len, done.imm)).collect();
    assert_eq!(seen, [(1, 18, None), (2, 11, Some(0x0102_0304)), (3, 0, None)]);
    assert_eq!(b.memory.get(0, 18), b"one, in two pieces");
    assert_eq!(b.memory.get(64, 11), inline);
}

#[test]
fn writes_land_with_notice_and_reads_bring_back() {
    let Some([mut a, mut b]) = pair() else { return };
    let len = 300_000;
    let pattern: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
    a.memory.put(0, &pattern);
    b.receive(1, 0, 0);
    b.receive(2, 0, 0);
    let source = [a.memory.sge(0, len)];
    let (remote, rkey) = (b.memory.address() + 1000, b.memory.rkey());
    a.send(request(21, SendOp::Write { remote, rkey }, &source));
    a.send(request(22, SendOp::WriteWithImm { remote: remote + 400_000, rkey, imm: 9 }, &source));
    a.send(request(23, SendOp::WriteWithImm { remote, rkey, imm: u32::MAX }, &[]));
    let sent = a.completions(3);
    assert!(sent.iter().all(|done| done.is_success() && done.opcode == CompletionOpcode::Write), "{sent:?}");
    let got = b.completions(2);
    let seen: Vec<_> = got.iter().map(|done| (done.wr_id, done.opcode, done.byte_len, done.imm)).collect();
    let kind = CompletionOpcode::ReceiveOfWrite;
    assert_eq!(seen, [(1, kind, len as u32, Some(9)), (2, kind, 0, Some(u32::MAX))]);
    assert_eq!(b.memory.get(1000, len), pattern, "the write without notice came before the others");
    assert_eq!(b.memory.get(401_000, len), pattern);
    let target = [a.memory.sge(500_000, len)];
    a.send(request(24, SendOp::Read { remote: remote + 400_000, rkey }, &target));
    let read = a.completion();
    assert_eq!(
        (read.wr_id, read.status, read.opcode),
        (24, CompletionStatus::Success, CompletionOpcode::Read)
    );
    assert_eq!(a.memory.get(500_000, len), pattern);
}

#[test]
fn long_lists_are_posted_whole_and_a_full_queue_says_how_many_it_took() {
    let Some([mut a, mut b]) = pair() else { return };
    let piece = [b.memory.sge(0, 64)];
    let receives: Vec<_> = (0..50).map(|wr_id| ReceiveRequest { wr_id, sges: &piece }).collect();
    // SAFETY: the piece lies in this end's memory, which outlives its queue pair.
    unsafe { b.qp.post_receive(&receives) }.expect("all fit");
    let from = [a.memory.sge(0, 8)];
    let sends: Vec<_> =
        (0..50).map(|wr_id| request(wr_id, SendOp::SendWithImm(wr_id as u32), &from)).collect();
    // SAFETY: as above.
    unsafe { a.qp.post_send(&sends) }.expect("all fit");
    let got = b.completions(50);
    assert!(got.iter().enumerate().all(|(at, done)| done.wr_id == at as u64 && done.imm == Some(at as u32)));
    assert!(a.completions(50).iter().all(WorkCompletion::is_success));
    let too_many: Vec<_> = (0..5000).map(|wr_id| ReceiveRequest { wr_id, sges: &piece }).collect();
    // SAFETY: as above.
    let refused = unsafe { b.qp.post_receive(&too_many) }.expect_err("not so many");
    assert!(refused.is_full() && refused.accepted >= b.qp.capacity().max_receives as usize, "{refused}");
    b.qp.to_error().expect("error");
    let flushed = b.completions(refused.accepted.min(200));
    assert!(flushed.iter().all(|done| done.status == CompletionStatus::Flushed), "{flushed:?}");
    assert!(flushed.iter().enumerate().all(|(at, done)| done.wr_id == at as u64), "those from the first on");
}

#[test]
fn a_sleeper_is_woken_once_by_what_it_asked_for() {
    let Some([mut a, mut b]) = pair() else { return };
    let piece = [a.memory.sge(0, 8)];
    b.receive(1, 0, 64);
    b.receive(2, 0, 64);
    assert!(!readable(&b.channel.fd(), Duration::ZERO), "nothing was asked for");
    b.queue.request_notify(true).expect("notice");
    a.send(request(1, SendOp::Send, &piece));
    assert!(a.completion().is_success());
    a.send(SendRequest { solicited: true, ..request(2, SendOp::Send, &piece) });
    assert!(readable(&b.channel.fd(), Duration::from_secs(60)), "a solicited completion");
    let mut done = [WorkCompletion::default(); 4];
    assert_eq!(b.queue.poll(&mut done).expect("a poll"), 2, "the first one came before it");
    assert_eq!(b.channel.drain().expect("events"), 1);
    assert!(!readable(&b.channel.fd(), Duration::ZERO), "drained");
    assert_eq!(b.channel.drain().expect("no events"), 0);
    assert_eq!(b.queue.poll(&mut done).expect("a poll"), 0);
    assert_eq!(b.queue.poll(&mut []).expect("a poll of nothing"), 0);
}

#[test]
fn a_wrong_key_is_told_in_words_and_ends_the_connection() {
    let Some([mut a, b]) = pair() else { return };
    let piece = [a.memory.sge(0, 8)];
    let (remote, rkey) = (b.memory.address(), b.memory.rkey() ^ 0x00ff_ff00);
    a.send(request(1, SendOp::Write { remote, rkey }, &piece));
    let refused = a.completion();
    assert_eq!((refused.wr_id, refused.status), (1, CompletionStatus::RemoteAccess));
    assert_eq!(
        refused.status.to_string(),
        "the peer refused access: its key or address was wrong (status 10)"
    );
    a.send(request(2, SendOp::Send, &piece));
    let after = a.completion();
    assert_eq!((after.wr_id, after.status), (2, CompletionStatus::Flushed));
    assert_eq!(a.qp.query_state().expect("a state"), QueuePairState::Error);
}

#[test]
fn a_peer_without_a_receive_and_a_peer_that_is_gone_are_told_apart() {
    let Some([mut a, b]) = pair() else { return };
    let piece = [a.memory.sge(0, 8)];
    a.send(request(1, SendOp::Send, &piece));
    assert_eq!(a.completion().status, CompletionStatus::ReceiverNotReadyExceeded);
    assert_eq!(b.qp.query_state().expect("a state"), QueuePairState::ReadyToSend);
    let Some([mut a, b]) = pair() else { return };
    drop(b);
    a.send(request(1, SendOp::Send, &[]));
    assert_eq!(a.completion().status, CompletionStatus::RetryExceeded);
}

#[test]
fn a_queue_pair_goes_through_its_states() {
    let Some([site, _]) = sites() else { return };
    let mut end = End::new(&site, RC);
    assert_eq!(end.qp.query_state().expect("a state"), QueuePairState::Reset);
    let early = end.qp.to_rts(&ReadyToSend {
        send_psn: 0,
        timeout: 14,
        retry_count: 7,
        rnr_retry: 7,
        max_reads_issued: 1,
    });
    let text = early.expect_err("not from reset").to_string();
    assert!(text.contains("ready to send") && text.contains(site.context.name()), "{text}");
    end.qp.to_init(PORT, 0, Access::LOCAL_WRITE).expect("init");
    assert_eq!(end.qp.query_state().expect("a state"), QueuePairState::Initialized);
    let receive = |path_mtu_bytes| ReadyToReceive {
        route: site.route_to(&site),
        destination_qp: end.qp.number(),
        path_mtu_bytes,
        receive_psn: 0,
        min_rnr_timer: 12,
        max_reads_served: 1,
    };
    let (odd, good) = (receive(1500), receive(256));
    let text = end.qp.to_rtr(&odd).expect_err("no such MTU").to_string();
    assert!(text.contains("1500"), "{text}");
    end.qp.to_rtr(&good).expect("ready to receive");
    assert_eq!(end.qp.query_state().expect("a state"), QueuePairState::ReadyToReceive);
    end.receive(5, 0, 8);
    end.qp.to_error().expect("error");
    let flushed = end.completion();
    assert_eq!((flushed.wr_id, flushed.status), (5, CompletionStatus::Flushed));
    assert_eq!(end.qp.query_state().expect("a state"), QueuePairState::Error);
}

#[test]
fn datagrams_reach_the_queue_pair_that_they_name() {
    /// Bytes of route header before a datagram.
    const HEADER: usize = 40;
    const QKEY: u32 = 0x1234;
    let Some([one, other]) = sites() else { return };
    let (mut a, mut b) = (End::new(&one, UD), End::new(&other, UD));
    a.qp.start_datagrams(PORT, 0, QKEY, 0).expect("ready");
    b.qp.start_datagrams(PORT, 0, QKEY, 0).expect("ready");
    let handle = AddressHandle::create(&a.domain, &one.route_to(&other)).expect("a handle");
    a.memory.put(0, b"hello");
    let piece = [a.memory.sge(0, 5)];
    // SAFETY: the request is refused.
    let refused = unsafe { a.qp.post_send(&[request(1, SendOp::Send, &piece)]) }.expect_err("to nobody");
    assert_eq!((refused.accepted, refused.errno), (0, libc::EDESTADDRREQ), "{refused}");
    b.receive(7, 0, HEADER + 64);
    let to = |qkey| Some(Destination { handle: &handle, qp_num: b.qp.number(), qkey });
    let (wrong, right) = (to(QKEY + 1), to(QKEY));
    a.send(SendRequest { to: wrong, ..request(1, SendOp::SendWithImm(1), &piece) });
    a.send(SendRequest { to: right, ..request(2, SendOp::SendWithImm(2), &piece) });
    assert!(a.completions(2).iter().all(WorkCompletion::is_success), "nobody acknowledges a datagram");
    let got = b.completion();
    assert_eq!(
        (got.wr_id, got.status, got.imm),
        (7, CompletionStatus::Success, Some(2)),
        "not the wrong key's"
    );
    assert_eq!((got.src_qp, got.byte_len), (a.qp.number(), (HEADER + 5) as u32));
    assert_eq!(got.has_route_header, one.gid.is_some());
    assert_eq!(b.memory.get(HEADER, 5), b"hello");
}

#[test]
fn queue_pairs_share_receives_and_a_low_queue_is_an_event() {
    let Some([one, other]) = sites() else { return };
    let domain = ProtectionDomain::new(&other.context).expect("a domain");
    let shared = SharedReceiveQueue::new(&domain, 16, 1).expect("a shared queue");
    let mut ends = Vec::new();
    for _ in 0..2 {
        let with_shared = |queue: &Arc<CompletionQueue>| QueuePairSpec {
            shared_receives: Some(Arc::clone(&shared)),
            ..spec(RC, queue)
        };
        let mut a = End::new(&one, RC);
        let mut b = End::in_domain(&other, Arc::clone(&domain), with_shared);
        assert_eq!((b.qp.capacity().max_receives, b.qp.capacity().max_receive_sges), (0, 0));
        connect(&mut a.qp, &a.site, &b.qp, &b.site);
        connect(&mut b.qp, &b.site, &a.qp, &a.site);
        let piece = [b.memory.sge(0, 64)];
        // SAFETY: the request is refused.
        let refused = unsafe { b.qp.post_receive(&[ReceiveRequest { wr_id: 1, sges: &piece }]) };
        assert_eq!(refused.expect_err("it has no queue of its own").errno, libc::EINVAL);
        ends.push((a, b));
    }
    let memory = Memory::new(&domain, 4096);
    let piece = [memory.sge(0, 64)];
    let receives: Vec<_> = (0..3).map(|wr_id| ReceiveRequest { wr_id, sges: &piece }).collect();
    // SAFETY: the queue pairs are in error, and so take no receive, before the memory is dropped.
    unsafe { shared.post_receive(&receives) }.expect("accepted");
    shared.request_limit_event(2).expect("a limit");
    for (at, (a, b)) in ends.iter_mut().enumerate() {
        let source = [a.memory.sge(0, 8)];
        a.send(request(1, SendOp::SendWithImm(at as u32), &source));
        let got = b.completion();
        assert_eq!((got.wr_id, got.imm, got.qp_num), (at as u64, Some(at as u32), b.qp.number()));
    }
    let low = event(&other.context, |event| event.kind == AsyncEventKind::SharedReceiveLimit);
    assert_eq!(low.subject, AsyncSubject::SharedReceiveQueue(shared.handle()));
    for (_, b) in &mut ends {
        b.qp.to_error().expect("error");
    }
    drop(ends);
    drop((shared, memory));
}

#[test]
fn a_completion_queue_grows_and_keeps_what_it_holds() {
    let Some([mut a, mut b]) = pair() else { return };
    for wr_id in 0..20 {
        b.receive(wr_id, 0, 8);
        a.send(request(wr_id, SendOp::Send, &[]));
    }
    assert_eq!(a.completions(20).len(), 20, "so that all have arrived");
    let before = b.queue.entries();
    b.queue.resize(before * 2).expect("more room");
    assert!(b.queue.entries() >= before * 2, "{}", b.queue.entries());
    let held = b.completions(20);
    assert!(held.iter().enumerate().all(|(at, done)| done.wr_id == at as u64), "{held:?}");
}

#[test]
fn a_device_that_has_less_inline_is_asked_for_less() {
    let Some([site, _]) = sites() else { return };
    let domain = ProtectionDomain::new(&site.context).expect("a domain");
    let much = |queue: &Arc<CompletionQueue>| QueuePairSpec { max_inline_bytes: 1 << 24, ..spec(RC, queue) };
    let end = End::in_domain(&site, domain, much);
    let capacity = end.qp.capacity();
    assert!(capacity.max_inline_bytes < 1 << 24 && capacity.max_sends >= 64, "{capacity:?}");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let Some([one, _]) = sites() else { return };
    let again = Context::open(&Library::load().expect("loaded"), one.context.name()).expect("opened twice");
    let queue = CompletionQueue::new(&again, 8, None).expect("a queue");
    let domain = ProtectionDomain::new(&one.context).expect("a domain");
    let refused = QueuePair::create(&domain, &spec(RC, &queue)).expect_err("two contexts");
    assert!(matches!(refused, VerbsError::Argument { .. }), "{refused}");
    let channel = CompletionChannel::new(&one.context).expect("a channel");
    let refused = CompletionQueue::new(&again, 8, Some(&channel)).expect_err("two contexts");
    assert!(matches!(refused, VerbsError::Argument { .. }), "{refused}");
    let huge = CompletionQueue::new(&again, u32::MAX, None).expect_err("so many entries");
    assert!(huge.to_string().contains(&u32::MAX.to_string()), "{huge}");
}

#[test]
fn memory_that_may_not_be_written_is_not_registered_for_writing() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let Some([site, _]) = sites() else { return };
    let domain = ProtectionDomain::new(&site.context).expect("a domain");
    let (len, flags) = (4096, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ, flags) }.expect("a page");
    let page = NonNull::new(base.cast::<u8>()).expect("a page");
    // SAFETY: the page stays mapped until the region is dropped; nobody looks at it.
    let refused = unsafe { MemoryRegion::register(&domain, page, len, Access::LOCAL_WRITE) };
    let refused = refused.expect_err("read-only");
    assert_eq!(refused.errno(), Some(libc::EFAULT), "{refused}");
    assert!(refused.to_string().contains("read-only"), "{refused}");
    // SAFETY: mapped above, and no region is left.
    unsafe { munmap(base, len) }.expect("unmapped");
}

#[test]
fn owners_may_be_dropped_in_any_order() {
    let Some([one, other]) = sites() else { return };
    let complaints = Complaints::default();
    let count = Arc::clone(&complaints.0);
    let left = tracing::subscriber::with_default(complaints, || {
        let mut left: Vec<Weak<Context>> = Vec::new();
        for turn in 0..24 {
            let library = Library::load().expect("loaded");
            let open = |site: &Site| {
                let context = Context::open(&library, site.context.name()).expect("opened");
                Site { context, ..site.clone() }
            };
            let (one, other) = (open(&one), open(&other));
            left.extend([Arc::downgrade(&one.context), Arc::downgrade(&other.context)]);
            let (mut a, mut b) = (End::new(&one, RC), End::new(&other, RC));
            drop((one, other));
            connect(&mut a.qp, &a.site, &b.qp, &b.site);
            connect(&mut b.qp, &b.site, &a.qp, &a.site);
            b.receive(1, 0, 64);
            a.send(request(1, SendOp::Send, &[]));
            assert!(a.completion().is_success());
            // Each turn another order of what an end holds, some with a receive or a completion left behind.
            let End { qp, queue, channel, domain, memory, site } = b;
            let mut parts: Vec<Box<dyn std::any::Any>> =
                vec![Box::new(queue), Box::new(channel), Box::new(domain), Box::new(site), Box::new(qp)];
            parts.rotate_left(turn % 5);
            if turn % 2 == 1 {
                parts.reverse();
            }
            parts.into_iter().for_each(drop);
            drop(memory);
        }
        left
    });
    assert!(left.iter().all(|context| context.upgrade().is_none()), "a context is still open");
    assert_eq!(count.load(Ordering::Relaxed), 0, "a verb refused to take something down; see above");
}

/// Counts what is logged as an error, and prints it.
#[derive(Default)]
struct Complaints(Arc<AtomicUsize>);

impl tracing::Subscriber for Complaints {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        eprintln!("{event:?}");
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
