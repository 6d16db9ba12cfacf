//! Notes: small, in order, outside of every sequence.

use super::field::{Field, Told, pattern, tag};
use super::{Mode, Rig, Skip};
use crate::transport::{Cause, CauseKind, Note, Peer, PostError};

fn note(k: usize) -> Note {
    let len = [0, 1, 33, Note::MAX_BYTES][k % 4];
    let mut bytes = pattern(k as u64, len);
    if let Some(first) = bytes.first_mut() {
        *first = k as u8;
    }
    Note::new(&bytes).unwrap_or_else(|| unreachable!("{len} bytes fit"))
}

fn notes_told(f: &Field, me: usize) -> Vec<Vec<u8>> {
    let content = |t: &Told| match t {
        Told::Note(_, bytes) => Some(bytes.clone()),
        _ => None,
    };
    f.told[me].iter().filter_map(content).collect()
}

/// Notes of all lengths overtake data that is stuck, and keep their order among themselves.
pub(super) fn notes_arrive_in_order_while_data_flows(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    const NOTES: usize = 60;
    let mut f = Field::new(rig, mode, 2)?;
    let big = f.caps().eager_bytes as usize + (1 << 20);
    let stuck = f.send((1, 0), tag(9), &pattern(1, big));
    let mut flowing = Vec::new();
    for k in 0..NOTES {
        if k % 10 == 0 {
            flowing.push(f.send((0, 1), tag(0), &pattern(k as u64, big)));
            flowing.push(f.recv((1, 0), tag(0), big));
        }
        for (me, other) in [(0, 1), (1, 0)] {
            loop {
                match f.member_mut(me).note(Peer(other), &note(k)) {
                    Ok(()) => break,
                    Err(e) => {
                        f.holds("T8", "a full queue of notes is full", e == PostError::Full(Peer(other)))
                    }
                }
                let before = notes_told(&f, other as usize).len();
                f.until("T8", "room for a note", |f| notes_told(f, other as usize).len() > before);
            }
        }
        f.poll();
    }
    f.until("T8", "all notes", |f| (0..2).all(|i| notes_told(f, i).len() == NOTES));
    let sent: Vec<Vec<u8>> = (0..NOTES).map(|k| note(k).bytes().to_vec()).collect();
    for me in 0..2 {
        f.holds("T8", "notes are whole and in order", notes_told(&f, me) == sent);
    }
    f.succeed("T2", &flowing);
    f.holds("T5", "the stuck message is still there", f.result(stuck).is_none());
    let unstuck = f.recv((0, 1), tag(9), big);
    f.succeed("T2", &[stuck, unstuck]);
    Ok(())
}

/// T8, T9: a peer that takes no notes fills a bounded queue, of which all arrives; strangers and the lost get none.
pub(super) fn notes_are_bounded_and_refused_to_the_lost(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    const MANY: usize = 200_000;
    let mut f = Field::new(rig, mode, 2)?;
    f.round_trips(0, 1);
    let before = notes_told(&f, 1).len();
    let mut taken = 0;
    // Only the sender polls, so that nothing is received.
    while taken < MANY && f.member_mut(0).note(Peer(1), &note(taken)).is_ok() {
        taken += 1;
        if taken % 8 == 0 {
            f.poll_one(0);
        }
    }
    f.holds("T9", "a queue of notes has an end", taken < MANY);
    f.until("T8", "every note that was taken", |f| notes_told(f, 1).len() - before >= taken);
    f.holds("T8", "and no other", notes_told(&f, 1).len() - before == taken);
    let stranger = f.member_mut(0).note(Peer(9), &note(0));
    f.holds("T8", "strangers get no notes", stranger == Err(PostError::Unknown(Peer(9))));
    f.member_mut(0).close(Peer(1), Cause::new(CauseKind::Local, "done"));
    let gone = f.member_mut(0).note(Peer(1), &note(0));
    f.holds("T6", "the lost get no notes", matches!(gone, Err(PostError::Gone { peer: Peer(1), .. })));
    Ok(())
}

/// T8: whoever has given a note polls for as long as something is unsent, and that is enough, also where there is no connection yet.
pub(super) fn a_note_that_waits_for_a_connection_is_unsent(
    rig: &mut dyn Rig,
    mode: Mode,
) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    assert_eq!(f.member_mut(0).note(Peer(1), &note(1)), Ok(()), "{}", f.at());
    while notes_told(&f, 1).is_empty() {
        if f.member(0).has_unsent() {
            f.poll_one(0);
        }
        f.poll_one(1);
        f.in_time("T8", "a note to a peer that was not connected");
    }
    Ok(())
}
