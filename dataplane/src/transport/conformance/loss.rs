//! Peers that are closed, crash, or leave (T6, T11).

use super::field::{At, Field, Told, pattern, stamp, tag};
use super::{Mode, Rig, Skip};
use crate::transport::{Cause, CauseKind, Found, Note, OpError, Peer, PostError};

fn lost(result: &Result<(), OpError>, peer: usize) -> bool {
    matches!(result, Err(OpError::PeerLost { peer: p, .. }) if *p == Peer(peer as u32))
}

/// Member `me` was told once that `peer` is lost, after the last of these operations, and takes no more for it.
fn check_lost(f: &mut Field, me: usize, peer: usize, ops: &[At]) {
    f.holds("T6", "lost once, and not left", f.departures(me, peer) == (1, 0));
    let told = &f.told[me];
    let at = told.iter().position(|t| matches!(t, Told::Lost(p, _) if *p == Peer(peer as u32)));
    let last = ops.iter().filter(|o| o.0 == me).map(|o| f.position(*o)).max();
    f.holds("T6", "the loss is told after the operations that it ends", last < at);
    let gone =
        |r: Result<_, PostError>| matches!(r, Err(PostError::Gone { peer: p, .. }) if p.0 == peer as u32);
    let sent = f.try_send((me, peer), tag(90), stamp(0), b"x");
    f.holds("T6", "a send to the lost is refused", gone(sent));
    let received = f.try_recv((me, peer), tag(90), stamp(0), 1);
    f.holds("T6", "a receive from the lost is refused", gone(received));
}

/// T6: `close` completes what is pending with its cause; the other side notices too.
pub(super) fn close_ends_everything_with_the_peer(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    let big = f.caps().eager_bytes as usize + 100_000;
    let ops = [
        f.send((0, 1), tag(0), &pattern(1, big)),
        f.recv((0, 1), tag(1), 10),
        f.send((1, 0), tag(2), &pattern(2, big)),
        f.recv((1, 0), tag(3), 10),
    ];
    f.round_trips(0, 1);
    let cause = Cause::new(CauseKind::Reported, "missed heartbeats for 10 s");
    f.member_mut(0).close(Peer(1), cause.clone());
    f.member_mut(0).close(Peer(1), Cause::new(CauseKind::Local, "once more"));
    f.member_mut(0).close(Peer(55), cause.clone());
    f.until("T6", "both sides to notice", |f| f.departures(0, 1).0 > 0 && f.departures(1, 0).0 > 0);
    for at in ops {
        f.holds("T6", "what was pending is lost", lost(f.ended(at), 1 - at.0));
    }
    let words = Err(OpError::PeerLost { peer: Peer(1), cause: cause.clone() });
    f.holds("T6", "the cause given is the cause told", f.ended(ops[0]) == &words);
    for me in [0, 1] {
        check_lost(&mut f, me, 1 - me, &ops);
    }
    let noticed = |t: &Told| matches!(t, Told::Lost(_, CauseKind::Closed | CauseKind::Reset));
    f.holds("T6", "the other side sees a closed connection", f.told[1].iter().any(noticed));
    f.holds("T6", "still lost once", f.departures(0, 1) == (1, 0));
    Ok(())
}

/// T1, T6: a crash after any number of polls; each of the peer's operations ends one way or the other.
pub(super) fn a_crash_at_every_point_is_noticed(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    for stage in 0..14 {
        let mut f = Field::new(rig, mode, 2)?;
        f.context = format!("crash after {stage} polls");
        let deep = f.caps().depth >= 4;
        let big = f.caps().eager_bytes as usize + (1 << 20);
        // They have met: otherwise a crash before the first connection is nothing that anyone could notice.
        f.round_trips(0, 1);
        let mut ops = vec![f.send((0, 1), tag(0), &pattern(1, big)), f.recv((0, 1), tag(1), big)];
        f.recv((1, 0), tag(0), big);
        f.send((1, 0), tag(1), &pattern(2, big));
        if deep {
            ops.extend([f.send((0, 1), tag(2), &pattern(3, big)), f.recv((0, 1), tag(3), 5)]);
            f.recv((1, 0), tag(4), 5);
        }
        for _ in 0..stage {
            f.poll();
        }
        if let Some(member) = f.members[1].take() {
            rig.crash(member);
        }
        f.until("T6", "the loss", |f| f.departures(0, 1).0 > 0);
        for at in &ops {
            let fair = f.ended(*at).is_ok() || lost(f.ended(*at), 1);
            f.holds("T6", "finished or lost", fair);
        }
        check_lost(&mut f, 0, 1, &ops);
    }
    Ok(())
}

/// T6: the survivors' operations among each other are not touched.
pub(super) fn a_lost_peer_leaves_the_others_alone(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 3)?;
    let big = f.caps().eager_bytes as usize + 500_000;
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        f.round_trips(a, b);
    }
    let content = pattern(9, big);
    let doomed = [f.recv((0, 2), tag(0), 10), f.recv((1, 2), tag(0), 10)];
    let send = f.send((0, 1), tag(0), &content);
    f.poll();
    if let Some(member) = f.members[2].take() {
        rig.crash(member);
    }
    f.until("T6", "the loss at both", |f| f.departures(0, 2).0 > 0 && f.departures(1, 2).0 > 0);
    let receive = f.recv((1, 0), tag(0), big);
    f.succeed("T6", &[send, receive]);
    f.check_bytes("T6", receive, &content);
    for at in doomed {
        f.holds("T6", "lost", lost(f.ended(at), 2));
        check_lost(&mut f, at.0, 2, &doomed);
    }
    f.holds("T6", "the survivors keep each other", f.departures(0, 1) == (0, 0));
    Ok(())
}

/// Lets member `who` leave on a thread of its own, while the others are polled until `until`.
fn leave_meanwhile(f: &mut Field, who: usize, linger_ms: u64, what: &str, until: impl Fn(&Field) -> bool) {
    let mut member = f.members[who].take().unwrap_or_else(|| unreachable!("the member is there"));
    std::thread::scope(|scope| {
        let leaving = scope.spawn(move || {
            member.leave(linger_ms);
            member
        });
        f.until("T11", what, |f| until(f));
        if let Ok(member) = leaving.join() {
            f.members[who] = Some(member);
        }
    });
    // What it had not heard itself when it left.
    f.poll_one(who);
}

/// T11: data that was sent before the goodbye can still be received, also after `Left` was told; it comes once.
pub(super) fn a_goodbye_comes_after_what_was_sent(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    f.need_eager(8)?;
    f.round_trips(0, 1);
    let sent = f.send((0, 1), tag(0), b"the last");
    f.succeed("T5", &[sent]);
    leave_meanwhile(&mut f, 0, 2000, "the goodbye", |f| f.departures(1, 0).1 > 0);
    let receive = f.recv((1, 0), tag(0), 8);
    f.succeed("T11", &[receive]);
    f.check_bytes("T11", receive, b"the last");
    let gone = |r: &Result<_, PostError>| matches!(r, Err(PostError::Gone { cause, .. }) if cause.kind == CauseKind::Left);
    let more = f.try_recv((1, 0), tag(0), stamp(0), 8);
    f.holds("T11", "there is no more to receive", gone(&more));
    let answer = f.try_send((1, 0), tag(0), stamp(0), b"x");
    f.holds("T11", "nobody hears an answer", gone(&answer));
    f.members[0] = None;
    for _ in 0..50 {
        f.poll();
    }
    f.holds("T11", "left once, and not lost", f.departures(1, 0) == (0, 1));
    Ok(())
}

/// T11: a note that was sent before the goodbye is told before it, also where looks for a message have seen both.
pub(super) fn what_a_peer_said_last_is_told_before_its_end(
    rig: &mut dyn Rig,
    mode: Mode,
) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    f.round_trips(0, 1);
    let why = Note::new(b"why").unwrap_or_else(|| unreachable!("3 bytes fit a note"));
    assert_eq!(f.member_mut(0).note(Peer(1), &why), Ok(()), "{}", f.at());
    f.member_mut(0).leave(2000);
    for _ in 0..20 {
        let (found, _) = f.take_now((1, 0), tag(0), 8);
        f.holds("T5", "nothing was sent", found != Found::Message);
    }
    // It may be refused, since the peer is gone (T6).
    let receive = f.try_recv((1, 0), tag(0), stamp(0), 8);
    f.until("T11", "the goodbye", |f| f.departures(1, 0).1 > 0);
    let last = |f: &Field, is: &dyn Fn(&Told) -> bool| f.told[1].iter().rposition(is);
    let said = last(&f, &|t| matches!(t, Told::Note(_, bytes) if bytes == b"why"));
    let left = last(&f, &|t| matches!(t, Told::Left(_)));
    f.holds("T11", "the note is told, and before the end", said.is_some() && said < left);
    if let Ok(id) = receive {
        let cause = |r: &Result<(), OpError>| matches!(r, Err(OpError::PeerLost { cause, .. }) if cause.kind == CauseKind::Left);
        f.holds("T11", "unserved, since the peer left", cause(f.ended((1, id))));
    }
    Ok(())
}

/// T11: pending operations that the goodbye leaves unserved fail before `Left`, and say so.
pub(super) fn a_goodbye_fails_what_it_leaves_unserved(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    let big = f.caps().eager_bytes as usize + 10;
    f.round_trips(0, 1);
    let ops = [f.recv((1, 0), tag(0), 10), f.send((1, 0), tag(1), &pattern(1, big))];
    f.round_trips(0, 1);
    leave_meanwhile(&mut f, 0, 0, "the goodbye", |f| f.departures(1, 0).1 > 0);
    for at in ops {
        let left = matches!(f.ended(at), Err(OpError::PeerLost { peer: Peer(0), cause }) if cause.kind == CauseKind::Left);
        f.holds("T11", "unserved, since the peer left", left);
    }
    f.holds("T11", "left once, and not lost", f.departures(1, 0) == (0, 1));
    Ok(())
}

/// T11: sends that are queued and wanted are flushed within the linger time.
pub(super) fn leaving_flushes_what_is_queued(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    let content = pattern(3, f.caps().eager_bytes as usize + 300_000);
    f.round_trips(0, 1);
    let receive = f.recv((1, 0), tag(0), content.len());
    f.send((0, 1), tag(0), &content);
    leave_meanwhile(&mut f, 0, 10_000, "the goodbye", |f| f.departures(1, 0).1 > 0);
    f.succeed("T11", &[receive]);
    f.check_bytes("T11", receive, &content);
    Ok(())
}
