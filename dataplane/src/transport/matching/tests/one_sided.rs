//! What is different where the device writes: announcements are kept back, and writes carry no frame.

use super::super::{Agreed, FRAME_BYTES, Frame, Kind, Place};
use super::{How, Plan, SPAN, Side, stamp};
use crate::memory::Pool;
use crate::transport::Tag;

#[test]
fn large_sends_are_announced_when_nobody_asks() {
    // M2, M3
    let pool = Pool::default();
    let next = |side: &mut Side| side.matcher.next_frame(|_, _| 9).map(|(frame, _)| (frame.kind, frame.seq));
    let cts = |seq, length| Frame {
        tag: Tag { group: 1, lane: 0 }.to_u64(),
        stamp: stamp(1),
        seq,
        length,
        slot: 1 << 32,
        ..Frame::bare(Kind::Cts)
    };
    let mut side = Side::new(0, 4, &pool, How::OneSided);
    side.matcher.open(Agreed { eager_bytes: 64, their_window: 2, our_window: 2 }, &mut Vec::new());
    for (k, len) in [65, 66, 67, 64].into_iter().enumerate() {
        assert!(side.post(Plan { lane: 0, k: k as u32, send: true, stamp: 1, len }));
    }
    // What goes eagerly does; nothing is said of the others.
    assert_eq!(next(&mut side), Some((Kind::Eager, 3)));
    assert_eq!(next(&mut side), None);
    // One is asked for, one turns out not to match, one is announced.
    for frame in [cts(0, 65), cts(1, 99)] {
        side.matcher.accept(&frame, &side.retired, &mut side.events).unwrap();
    }
    side.collect();
    assert_eq!(next(&mut side), Some((Kind::Rts, 1)));
    assert!(side.matcher.has_unsaid());
    side.matcher.announce();
    assert_eq!(next(&mut side), Some((Kind::Rts, 2)));
    assert_eq!(next(&mut side), Some((Kind::Data, 0)));
    assert!(!side.matcher.has_unsaid());
    // One that lacks credit is announced at once: its receiver counts on an eager message.
    let mut side = Side::new(0, 4, &pool, How::OneSided);
    side.matcher.open(Agreed { eager_bytes: 64, their_window: 1, our_window: 1 }, &mut Vec::new());
    assert!(side.post(Plan { lane: 0, k: 0, send: true, stamp: 1, len: 64 }));
    assert_eq!(next(&mut side), Some((Kind::Rts, 0)));
    // What has gone on does not pile up.
    for k in 1..100 {
        assert!(side.post(Plan { lane: 0, k, send: true, stamp: 1, len: 65 }));
        side.matcher.accept(&cts(k, 65), &side.retired, &mut side.events).unwrap();
        let (frame, payload) = side.matcher.next_frame(|_, _| FRAME_BYTES).unwrap();
        assert_eq!((frame.kind, frame.seq), (Kind::Data, k));
        side.matcher.sent(payload.unwrap().slot, 65, &mut side.events);
        side.collect();
        assert!(side.matcher.unsaid.len() <= side.matcher.most_unsaid());
    }
}

#[test]
fn a_write_carries_no_credit() {
    // M3: credit is given back by frames that travel.
    let pool = Pool::default();
    let mut side = Side::new(0, 4, &pool, How::OneSided);
    side.matcher.open(Agreed { eager_bytes: 64, their_window: 8, our_window: 8 }, &mut Vec::new());
    assert!(side.post(Plan { lane: 0, k: 0, send: true, stamp: 1, len: SPAN }));
    assert!(side.post(Plan { lane: 1, k: 0, send: false, stamp: 1, len: 0 }));
    let place = Place { address: 1, keys: [1; 4] };
    let tag = |lane| Tag { group: 1, lane }.to_u64();
    let eager = Frame { tag: tag(1), stamp: stamp(1), ..Frame::bare(Kind::Eager) };
    let cts = Frame {
        tag: tag(0),
        stamp: stamp(1),
        length: SPAN as u64,
        slot: 1 << 32,
        place,
        ..Frame::bare(Kind::Cts)
    };
    for frame in [eager, cts] {
        side.matcher.accept(&frame, &side.retired, &mut side.events).unwrap();
    }
    side.collect();
    let (data, _) = side.matcher.next_frame(|_, _| FRAME_BYTES).unwrap();
    assert_eq!((data.kind, data.credit), (Kind::Data, 0));
    assert_eq!(side.matcher.owed, 1);
}
