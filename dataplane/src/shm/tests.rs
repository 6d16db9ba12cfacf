//! Transports of one process, and peers that break the rules, over real queues.
#![forbid(unsafe_code)]

use super::device::{Connected, Published, Shown, dial};
use super::handshake::{Heard, fds, hear, say};
use super::segment::{Inlet, Outlet, Segment};
use super::wire::{self, Greeting, Identity, Offer, Refusal};
use super::{Config, MAX_EAGER_BYTES, ShmTransport};
use crate::memory::{Pool, Region, SharedBytes, UniqueBytes, with_borrowed};
use crate::transport::authentication::{Key, Nonce, Proof};
use crate::transport::complaints::counted::Warnings;
use crate::transport::matching::{Frame, Kind};
use crate::transport::{
    CauseKind, Completion, Event, Found, Keyring, Note, Op, OpError, OpId, Peer, Stamp, Tag, Transport,
};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);
const SECRET: [u8; 32] = [9; 32];
const TAG: Tag = Tag { group: 1, lane: 3 };

fn config(me: u32) -> Config {
    Config { connect_timeout_ms: 5_000, ..Config::new(me, Keyring::of(SECRET), 100 + u64::from(me)) }
}

fn pair(of: impl Fn(u32) -> Config) -> [ShmTransport; 2] {
    let [mut a, mut b] = [0, 1].map(|me| ShmTransport::new(of(me)).unwrap());
    a.connect(Peer(1), &b.address()).unwrap();
    b.connect(Peer(0), &a.address()).unwrap();
    [a, b]
}

/// Polls until as many events have come, from all of them together.
fn events(of: &mut [&mut ShmTransport], count: usize) -> Vec<(usize, Event)> {
    let (began, mut all) = (Instant::now(), Vec::new());
    while all.len() < count {
        for (i, t) in of.iter_mut().enumerate() {
            let mut out = Vec::new();
            t.poll(&mut out);
            all.extend(out.into_iter().map(|e| (i, e)));
        }
        assert!(began.elapsed() < DEADLINE, "nothing more happens: {all:?}");
    }
    all
}

fn completion(event: Event) -> Completion {
    match event {
        Event::Done(c) => c,
        other => panic!("not a completion: {other:?}"),
    }
}

fn filled(pool: &Pool, len: usize) -> SharedBytes {
    let mut bytes = UniqueBytes::new(len, pool).unwrap();
    bytes.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7 + i / 251) as u8);
    bytes.freeze()
}

/// Sends from the first to the second.
fn send([a, b]: &mut [ShmTransport; 2], bytes: &SharedBytes, into: &mut Region) {
    let (len, stamp) = (bytes.len(), Stamp::default());
    let lease = into.lend_write(0..len).unwrap();
    a.post(OpId(1), Op::Send { to: Peer(1), tag: TAG, stamp, bytes: bytes.lend() }).unwrap();
    b.post(OpId(2), Op::Recv { from: Peer(0), tag: TAG, stamp, into: lease }).unwrap();
    for (i, event) in events(&mut [a, b], 2) {
        let c = completion(event);
        assert_eq!(c.result, Ok(()));
        if i == 1 {
            into.restore(c.lease).unwrap();
        }
    }
    assert!(into.bytes(0..len).unwrap() == &bytes[..], "{len} bytes differ");
}

#[test]
fn each_way_of_large_messages_is_what_why_and_copies_say() {
    const LEN: usize = 3_000_001;
    for (map_blocks, attach) in [(true, true), (false, true), (false, false)] {
        let mut both = pair(|me| Config { map_blocks, attach, ..config(me) });
        let pool = Pool::default();
        let (bytes, mut into) = (filled(&pool, LEN), pool.region(LEN).unwrap());
        for _ in 0..3 {
            send(&mut both, &bytes, &mut into);
        }
        let why = both[1].why(Peer(0)).unwrap();
        let attached = why.contains("by process_vm_readv");
        assert_eq!(why.contains("its blocks are mapped"), map_blocks, "{why}");
        assert!(!attached || attach, "{why}");
        let [sent, received] = [both[0].copies(), both[1].copies()];
        let all = 3 * LEN as u64;
        // The receiver copies; the sender does only where it has to put pieces into the queue.
        assert_eq!((received.copied_bytes, received.placed_bytes), (all, 0), "{why}");
        let by_sender = if map_blocks || attached { (0, all) } else { (all, 0) };
        assert_eq!((sent.copied_bytes, sent.placed_bytes), by_sender, "{why}");
    }
}

#[test]
fn a_small_message_is_taken_out_of_the_queue_where_it_is_next() {
    let [mut a, mut b] = pair(config);
    let (stamp, other) = (Stamp([1; 24]), Tag { lane: 4, ..TAG });
    a.note(Peer(1), &Note::new(b"dial").unwrap()).unwrap();
    assert!(matches!(events(&mut [&mut a, &mut b], 1)[..], [(1, Event::Note { .. })]));
    let mut got = Vec::new();
    let mut look = |b: &mut ShmTransport, tag, stamp: &Stamp, len| {
        b.take_now(Peer(0), tag, (stamp, len), 3, &mut |bytes| got.push(bytes.to_vec()))
    };
    assert_eq!(look(&mut b, TAG, &stamp, 100), Found::Nothing);
    assert!(a.send_now(Peer(1), TAG, &stamp, &[5; 100]));
    assert_eq!(look(&mut b, other, &stamp, 100), Found::Behind);
    assert_eq!(look(&mut b, TAG, &Stamp([2; 24]), 100), Found::Other);
    assert_eq!(look(&mut b, TAG, &stamp, 99), Found::Other);
    assert_eq!(look(&mut b, TAG, &stamp, 100), Found::Message);
    // What a poll has parked is found too.
    assert!(a.send_now(Peer(1), other, &stamp, &[5; 100]) && b.poll(&mut Vec::new()));
    assert_eq!(look(&mut b, other, &stamp, 100), Found::Message);
    // Many of them, over more than a ring, in both directions; room comes back without a poll.
    assert_eq!(look(&mut b, TAG, &stamp, 1000), Found::Nothing);
    for round in 0..2000 {
        let content = [round as u8; 1000];
        assert!(a.send_now(Peer(1), TAG, &stamp, &content), "round {round}");
        assert_eq!(look(&mut b, TAG, &stamp, 1000), Found::Message, "round {round}");
        assert!(b.send_now(Peer(0), TAG, &stamp, &content), "round {round}");
        let mut back = 0;
        let found = a.take_now(Peer(1), TAG, (&stamp, 1000), 3, &mut |bytes| back += bytes.len());
        assert_eq!((found, back), (Found::Message, 1000), "round {round}");
    }
    assert_eq!((got.len(), got[0].as_slice(), got[1].as_slice()), (2002, &[5; 100][..], &[5; 100][..]));
    assert!(got[2..].iter().enumerate().all(|(round, bytes)| *bytes == [round as u8; 1000]));
}

#[test]
fn what_is_sent_at_once_may_be_longer_than_what_is_posted() {
    let [mut a, mut b] = pair(config);
    let (stamp, long) = (Stamp([1; 24]), vec![5; MAX_EAGER_BYTES]);
    a.note(Peer(1), &Note::new(b"dial").unwrap()).unwrap();
    assert!(matches!(events(&mut [&mut a, &mut b], 1)[..], [(1, Event::Note { .. })]));
    assert!(long.len() as u64 > a.caps().eager_bytes);
    for round in 0..20 {
        // As many as the queue holds; the rest is for a post.
        let mut sent = 0;
        while a.send_now(Peer(1), TAG, &stamp, &long) {
            sent += 1;
        }
        assert!((2..=4).contains(&sent), "{sent}");
        if round % 2 == 0 {
            b.poll(&mut Vec::new());
        }
        for _ in 0..sent {
            let mut got = 0;
            let found = b.take_now(Peer(0), TAG, (&stamp, long.len()), 3, &mut |bytes| got += bytes.len());
            assert_eq!((found, got), (Found::Message, long.len()), "round {round}");
        }
    }
    assert!(!a.send_now(Peer(1), TAG, &stamp, &vec![5; MAX_EAGER_BYTES + 1]));
    let [mut a, mut b] = pair(|me| Config { eager_bytes: 0, ..config(me) });
    a.note(Peer(1), &Note::new(b"dial").unwrap()).unwrap();
    assert!(matches!(events(&mut [&mut a, &mut b], 1)[..], [(1, Event::Note { .. })]));
    assert!(!a.send_now(Peer(1), TAG, &stamp, &long) && !a.send_now(Peer(1), TAG, &stamp, &[5]));
}

#[test]
fn memory_that_is_no_pools_travels_too() {
    const LEN: usize = 700_000;
    let mut mine: Vec<u8> = (0..LEN).map(|i| i as u8).collect();
    let [mut a, mut b] = pair(config);
    let pool = Pool::default();
    let mut into = pool.region(LEN).unwrap();
    let stamp = Stamp::default();
    with_borrowed(&mut mine, |mut region| {
        let (bytes, lease) = (region.lend_read(0..LEN).unwrap(), into.lend_write(0..LEN).unwrap());
        a.post(OpId(1), Op::Send { to: Peer(1), tag: TAG, stamp, bytes }).unwrap();
        b.post(OpId(2), Op::Recv { from: Peer(0), tag: TAG, stamp, into: lease }).unwrap();
        for (i, event) in events(&mut [&mut a, &mut b], 2) {
            let c = completion(event);
            assert_eq!(c.result, Ok(()));
            if i == 0 { region.restore(c.lease) } else { into.restore(c.lease) }.unwrap();
        }
        (region, ())
    });
    assert!(into.bytes(0..LEN).unwrap() == mine);
}

#[test]
fn sides_number_each_other_as_they_like_and_both_may_dial() {
    // S1
    let [mut a, mut b] = [3_000_000_001, 17].map(|me| ShmTransport::new(config(me)).unwrap());
    assert!(a.connect(Peer(5), &a.address()).is_err(), "its own address");
    a.connect(Peer(0), &b.address()).unwrap();
    b.connect(Peer(0), &a.address()).unwrap();
    for round in 0..3 {
        for t in [&mut a, &mut b] {
            t.note(Peer(0), &Note::new(&[round]).unwrap()).unwrap();
        }
        let heard = events(&mut [&mut a, &mut b], 2);
        let right = |e: &(usize, Event)| matches!(&e.1, Event::Note { from: Peer(0), note } if note.bytes() == [round]);
        assert!(heard.iter().all(right) && heard[0].0 != heard[1].0, "{heard:?}");
    }
    assert_eq!((a.live.len(), b.live.len()), (1, 1));
}

#[test]
fn a_peer_that_is_gone_is_named_with_evidence() {
    let [mut a, mut b] = pair(config);
    a.note(Peer(1), &Note::new(b"x").unwrap()).unwrap();
    events(&mut [&mut a, &mut b], 1);
    drop(b);
    let lost = events(&mut [&mut a], 1).remove(0).1;
    let Event::Lost { peer: Peer(1), cause } = lost else { panic!("{lost:?}") };
    assert_eq!(cause.kind, CauseKind::Closed);
    assert!(cause.evidence.contains(&format!("process {}", std::process::id())), "{cause}");
    // One that was never met and listens no more is lost at once.
    let c = ShmTransport::new(config(2)).unwrap();
    a.connect(Peer(2), &c.address()).unwrap();
    drop(c);
    a.note(Peer(2), &Note::new(b"x").unwrap()).unwrap();
    let lost = events(&mut [&mut a], 1).remove(0).1;
    assert!(
        matches!(&lost, Event::Lost { peer: Peer(2), cause } if cause.kind == CauseKind::Unreachable),
        "{lost:?}"
    );
}

/// A peer that plays by no rules: peer 1, with the raw ends of a queue.
struct Rogue {
    socket: OwnedFd,
    shown: Shown,
    out: Outlet,
    into: Inlet,
}

/// What peer 1 says of itself to peer 0.
fn identity(to_incarnation: u64) -> Identity {
    Identity { from: 1, to: 0, from_incarnation: 101, to_incarnation, nonce: [4; 16] }
}

const OFFER: Offer = Offer { eager_bytes: 16 << 10, window_units: 1 << 12, probe_address: 0, probe: 0 };

/// Connects and knocks.
fn knock(t: &mut ShmTransport, id: Identity) -> OwnedFd {
    let name = Published::decode(&t.address()).unwrap().name;
    let Connected::Yes(socket) = dial(&name).unwrap() else { panic!("busy") };
    say(&socket, &Greeting::Knock(id), &[]).unwrap();
    look(t);
    socket
}

/// What `t` says next, and what it shows.
fn heard(t: &mut ShmTransport, socket: &OwnedFd) -> (Greeting, usize) {
    let began = Instant::now();
    loop {
        look(t);
        match hear(socket) {
            Heard::Greeting(greeting, shown) => return (greeting, shown.len()),
            Heard::Nothing => assert!(began.elapsed() < DEADLINE),
            _ => panic!("no answer"),
        }
    }
}

/// Knocks, and answers the challenge with this proof.
fn rogue(t: &mut ShmTransport, id: Identity, prove: impl Fn(&Nonce, &Proof) -> Proof) -> Rogue {
    let socket = knock(t, id);
    // S6: nothing is shown to who has not proven itself.
    let (Greeting::Challenge(nonce, theirs), 0) = heard(t, &socket) else { panic!("not challenged") };
    let shown = Shown::new(false).unwrap();
    let (segment, queue) = Segment::new().unwrap();
    let hello = Greeting::Hello(OFFER, prove(&nonce, &theirs));
    say(&socket, &hello, &fds(Some(&queue), &shown)).unwrap();
    let (out, into) = segment.ends(true);
    Rogue { socket, shown, out, into }
}

type Prove = dyn Fn(&Nonce, &Proof) -> Proof;

fn right(nonce: &Nonce, _: &Proof) -> Proof {
    identity(100).prove_dialler(&Key::new(SECRET), nonce, &OFFER)
}

/// Peer 1, said to be of this process.
fn introduce(t: &mut ShmTransport) {
    let home = Published::decode(&t.address()).unwrap().home;
    let published = Published { number: 1, incarnation: 101, home, pid: std::process::id(), name: [0; 16] };
    t.connect(Peer(1), &published.encode()).unwrap();
}

fn introduced() -> (ShmTransport, Rogue) {
    let mut t = ShmTransport::new(config(0)).unwrap();
    introduce(&mut t);
    let rogue = rogue(&mut t, identity(100), right);
    assert!(matches!(heard(&mut t, &rogue.socket), (Greeting::Welcome(_), 3)));
    (t, rogue)
}

#[test]
fn a_peer_that_breaks_the_rules_is_lost_with_what_it_did() {
    // S3
    let bad = |kind| wire::encode(&Frame { length: 5000, slot: 77, ..Frame::bare(kind) }).0;
    let mut long = bad(Kind::Eager);
    long[40..48].copy_from_slice(&(1u64 << 40).to_le_bytes());
    let cases: [(&[u8; 64], &str); 6] = [
        (&[0xff; 64], "no known kind"),
        (&bad(Kind::Data), "published 64 bytes"),
        (&bad(Kind::Taken), "place 0x4d"),
        (&bad(Kind::Landed), "place 0x4d"),
        (&bad(Kind::Rail), "out of place"),
        (&long, "over the limit"),
    ];
    for (header, words) in cases {
        let (mut t, mut rogue) = introduced();
        let pool = Pool::default();
        let mut region = pool.region(100).unwrap();
        let into = region.lend_write(0..100).unwrap();
        t.post(OpId(5), Op::Recv { from: Peer(1), tag: TAG, stamp: Stamp::default(), into }).unwrap();
        rogue.out.push(header, &[]);
        let mut told = events(&mut [&mut t], 2);
        let (lost, ended) = (told.remove(1).1, completion(told.remove(0).1));
        assert!(matches!(ended.result, Err(OpError::PeerLost { .. })), "{ended:?}");
        let Event::Lost { peer: Peer(1), cause } = lost else { panic!("{lost:?}") };
        assert_eq!(cause.kind, CauseKind::Protocol);
        assert!(cause.evidence.contains(words), "{cause}");
        assert!(matches!(hear(&rogue.socket), Heard::Ended));
    }
}

#[test]
fn a_place_that_is_not_there_is_asked_for_instead() {
    // S3: a place beyond what is shown, and an address that is nobody's.
    for keys in [[wire::IN_BLOCKS, 0, 0, 0], [wire::IN_MEMORY, 0, 0, 0], [99, 0, 0, 0]] {
        let (mut t, mut rogue) = introduced();
        let pool = Pool::default();
        let mut region = pool.region(100_000).unwrap();
        let into = region.lend_write(0..100_000).unwrap();
        t.post(OpId(5), Op::Recv { from: Peer(1), tag: TAG, stamp: Stamp::default(), into }).unwrap();
        let place = crate::transport::matching::Place { address: u64::MAX - 4096, keys };
        let rts =
            Frame { tag: TAG.to_u64(), length: 100_000, slot: 1 << 32, place, ..Frame::bare(Kind::Rts) };
        rogue.out.push(&wire::encode(&rts).0, &wire::encode_place(&place));
        let began = Instant::now();
        let asked = loop {
            t.poll(&mut Vec::new());
            if let Some(header) = rogue.into.header().unwrap() {
                break wire::decode(&header).unwrap().0;
            }
            assert!(began.elapsed() < DEADLINE);
        };
        assert_eq!((asked.kind, asked.length), (Kind::Cts, 100_000));
    }
}

/// A poll that looks at sockets too.
fn look(t: &mut ShmTransport) {
    t.must_look = true;
    t.poll(&mut Vec::new());
}

#[test]
fn strangers_are_refused_or_wait() {
    // S4
    let mut t = ShmTransport::new(config(0)).unwrap();
    let socket = knock(&mut t, identity(7));
    assert_eq!(heard(&mut t, &socket), (Greeting::Refuse(Ok(Refusal::Peer)), 0));
    // One that is not introduced yet waits, however many others come and go.
    let patient = knock(&mut t, identity(100));
    let name = Published::decode(&t.address()).unwrap().name;
    for _ in 0..super::MAX_STRANGERS - 1 {
        let Connected::Yes(_silent) = dial(&name).unwrap() else { panic!("busy") };
        look(&mut t);
    }
    assert!(matches!(hear(&patient), Heard::Nothing) && t.listener.is_some());
    introduce(&mut t);
    assert!(matches!(hear(&patient), Heard::Greeting(Greeting::Challenge(..), _)));
}

#[test]
fn only_a_fresh_proof_of_the_right_key_is_taken() {
    // A1 to A3, S6: refused, warned of once, and whoever is connected stays so.
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let mut t = ShmTransport::new(config(0)).unwrap();
    introduce(&mut t);
    let [mut a, mut b] = pair(|me| config(me + 2));
    a.note(Peer(1), &Note::new(b"x").unwrap()).unwrap();
    events(&mut [&mut a, &mut b], 1);

    let recorded = right(&[1; 16], &[0; 32]);
    let cases: [&Prove; 4] = [
        &|nonce, _| identity(100).prove_dialler(&Key::new([8; 32]), nonce, &OFFER),
        // Of another time; what this side itself has just said; of an offer that is not made.
        &move |_, _| recorded,
        &|_, theirs| *theirs,
        &|nonce, _| identity(100).prove_dialler(&Key::new(SECRET), nonce, &Offer { probe: 1, ..OFFER }),
    ];
    for prove in cases {
        let rogue = rogue(&mut t, identity(100), prove);
        assert_eq!(heard(&mut t, &rogue.socket), (Greeting::Refuse(Ok(Refusal::Unproven)), 0));
        drop(rogue.shown);
    }
    assert_eq!(warnings.count(), 1);

    let mut member = rogue(&mut t, identity(100), right);
    assert!(matches!(heard(&mut t, &member.socket), (Greeting::Welcome(_), 3)));
    // A number that is taken.
    let socket = knock(&mut t, identity(100));
    assert_eq!(heard(&mut t, &socket), (Greeting::Refuse(Ok(Refusal::Duplicate)), 0));
    t.note(Peer(1), &Note::new(b"still there").unwrap()).unwrap();
    look(&mut t);
    assert!(member.into.header().unwrap().is_some());
    a.note(Peer(1), &Note::new(b"y").unwrap()).unwrap();
    events(&mut [&mut a, &mut b], 1);
}

#[test]
fn another_process_cannot_take_a_peers_number() {
    // S6: whatever it has, the kernel says who it is.
    let mut t = ShmTransport::new(config(0)).unwrap();
    let home = Published::decode(&t.address()).unwrap().home;
    let published = Published { number: 1, incarnation: 101, home, pid: 1, name: [0; 16] };
    t.connect(Peer(1), &published.encode()).unwrap();
    let socket = knock(&mut t, identity(100));
    assert_eq!(heard(&mut t, &socket), (Greeting::Refuse(Ok(Refusal::Credentials)), 0));
}

#[test]
fn a_peer_without_the_key_is_shown_nothing_on_either_side() {
    // A1: both say so, and neither has mapped anything of the other's.
    for dialler in 0..2 {
        let of = |me| Config { keys: Keyring::of([me as u8; 32]), ..config(me) };
        let mut both = pair(of);
        both[dialler].note(Peer(1 - dialler as u32), &Note::new(b"x").unwrap()).unwrap();
        let [a, b] = &mut both;
        let lost = events(&mut [a, b], 1).remove(0);
        let (at, Event::Lost { cause, .. }) = lost else { panic!("{lost:?}") };
        assert_eq!((at, cause.kind), (dialler, CauseKind::Refused), "{cause}");
        assert!(cause.evidence.contains("different tokens"), "{cause}");
        assert!(both.iter().all(|t| t.live.is_empty()));
    }
}

#[test]
fn a_peer_may_be_admitted_after_it_was_introduced() {
    // As in a group, whose secret comes with its membership; on the side that dials, and on the other.
    for dialler in 0..2 {
        let keys = Keyring::default();
        let of = |me| match me {
            0 => config(0),
            _ => Config { keys: keys.clone(), ..config(1) },
        };
        let mut both = pair(of);
        both[dialler].note(Peer(1 - dialler as u32), &Note::new(b"x").unwrap()).unwrap();
        for _ in 0..100 {
            for t in &mut both {
                look(t);
                assert!(t.done.is_empty() && t.live.is_empty());
            }
        }
        assert!(both.iter().any(|t| t.next_timer_ms().is_some_and(|ms| ms <= 10)));
        keys.admit(100, Key::new(SECRET));
        let [a, b] = &mut both;
        assert!(matches!(events(&mut [a, b], 1)[..], [(_, Event::Note { .. })]));
    }
}
