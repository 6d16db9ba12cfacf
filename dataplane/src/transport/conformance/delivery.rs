//! That messages arrive, whole, at the receive that they belong to (T2, T3).

use super::field::{At, Field, UNTOUCHED, pattern, stamp, tag};
use super::{MODES, Mode, Rig, Skip};
use crate::transport::seed::Seeded;
use crate::transport::{Found, OpError, Tag};

/// T2, T3, T5: 0, 1, odd, around the eager limit, several MiB; both directions at once, either side first.
pub(super) fn every_size_arrives_whole(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    let eager = f.caps().eager_bytes as usize;
    let mut sizes = vec![0, 1, 7, 64, 1001, 65_537, (4 << 20) + 3];
    sizes.extend([eager.saturating_sub(1), eager, eager + 1]);
    for (k, len) in sizes.into_iter().enumerate() {
        f.context = format!("{len} bytes");
        let (ab, ba) = (pattern(k as u64, len), pattern(100 + k as u64, len));
        let receives_first = k % 2 == 0;
        let mut receives = Vec::new();
        if receives_first {
            receives = vec![f.recv((0, 1), tag(0), len), f.recv((1, 0), tag(0), len)];
        }
        let sends = [f.send((0, 1), tag(0), &ab), f.send((1, 0), tag(0), &ba)];
        if !receives_first {
            f.poll();
            receives = vec![f.recv((0, 1), tag(0), len), f.recv((1, 0), tag(0), len)];
        }
        f.succeed("T2", &sends);
        f.succeed("T2", &receives);
        f.check_bytes("T3", receives[0], &ba);
        f.check_bytes("T3", receives[1], &ab);
    }
    Ok(())
}

/// T2: messages of one tag keep their order, whichever side is ahead, whatever their sizes.
pub(super) fn the_kth_send_matches_the_kth_receive(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    for seed in 0..8 {
        let mut f = Field::new(rig, mode, 2)?;
        f.context = format!("seed {seed}");
        let mut random = Seeded::new(seed);
        let eager = f.caps().eager_bytes;
        let contents: Vec<Vec<u8>> = (0..30u64)
            .map(|k| {
                let len = if random.once_in(4) { eager + random.below(50_000) } else { random.below(200) };
                pattern(seed * 100 + k, len as usize)
            })
            .collect();
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        while sends.len() < contents.len() || receives.len() < contents.len() {
            let sending = if random.once_in(2) { sends.len() < contents.len() } else { receives.len() >= 30 };
            if sending {
                let content = &contents[sends.len()];
                if let Ok(id) = f.try_send((0, 1), tag(3), stamp(0), content) {
                    sends.push((0, id));
                }
            } else if let Some(content) = contents.get(receives.len())
                && let Ok(id) = f.try_recv((1, 0), tag(3), stamp(0), content.len())
            {
                receives.push((1, id));
            }
            f.poll();
            f.in_time("T4", "every operation to be taken");
        }
        f.succeed("T2", &sends);
        f.succeed("T2", &receives);
        for (at, content) in receives.into_iter().zip(&contents) {
            f.check_bytes("T2", at, content);
        }
    }
    Ok(())
}

/// T2, T5: messages that go or are taken at once and messages that are posted keep their order on one tag, whichever side
/// is ahead.
pub(super) fn what_goes_at_once_keeps_its_place(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut at_once = 0;
    for seed in 0..8 {
        let mut f = Field::new(rig, mode, 2)?;
        f.context = format!("seed {seed}");
        let mut random = Seeded::new(seed);
        let eager = f.caps().eager_bytes;
        let len =
            |random: &mut Seeded| if random.once_in(6) { eager + 1 } else { random.below(200) } as usize;
        let contents: Vec<Vec<u8>> = (0..40).map(|k| pattern(seed * 100 + k, len(&mut random))).collect();
        let (mut sent, mut received) = (0, 0);
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        while sent < contents.len() || received < contents.len() {
            if random.once_in(2)
                && let Some(content) = contents.get(sent)
            {
                if random.once_in(2) && f.send_now((0, 1), tag(3), content) {
                    at_once += 1;
                    sent += 1;
                } else if let Ok(id) = f.try_send((0, 1), tag(3), stamp(0), content) {
                    sends.push((0, id));
                    sent += 1;
                }
            } else if let Some(content) = contents.get(received) {
                let len = content.len();
                if random.once_in(2)
                    && let (Found::Message, Some(got)) = f.take_now((1, 0), tag(3), len)
                {
                    assert!(got == *content, "T2: message {received} {}", f.at());
                    received += 1;
                } else if let Ok(id) = f.try_recv((1, 0), tag(3), stamp(0), len) {
                    receives.push(((1, id), content));
                    received += 1;
                }
            }
            if random.once_in(3) {
                f.poll();
            }
            f.in_time("T4", "every operation to be taken");
        }
        f.succeed("T2", &sends);
        f.succeed("T2", &receives.iter().map(|(at, _)| *at).collect::<Vec<_>>());
        for (at, content) in receives {
            f.check_bytes("T2", at, content);
        }
        what_is_not_expected_is_not_taken(&mut f);
    }
    match mode.eager && at_once == 0 {
        true => Err(Skip::new("sending at once")),
        false => Ok(()),
    }
}

/// T3, T5: a message of another length or tag than asked for stays for its receive.
fn what_is_not_expected_is_not_taken(f: &mut Field) {
    let content = pattern(7, 24);
    let sent = f.send((0, 1), tag(4), &content);
    f.poll();
    for (other, len) in [(tag(4), 23), (tag(5), 24)] {
        assert_ne!(f.take_now((1, 0), other, len).0, Found::Message, "T3 {}", f.at());
    }
    let at = f.recv((1, 0), tag(4), 24);
    f.succeed("T5", &[sent, at]);
    f.check_bytes("T5", at, &content);
}

/// T2: large and small messages that nobody receives on one tag do not stop another.
pub(super) fn tags_do_not_hold_each_other_up(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    f.need_depth(4)?;
    let (large, small) = (pattern(1, 3 << 20), pattern(2, 40));
    let stuck = [f.send((0, 1), tag(0), &large), f.send((0, 1), tag(1), &small)];
    for k in 0..6 {
        let content = pattern(10 + k, if k % 2 == 0 { 100 } else { 1 << 20 });
        let send = f.send((0, 1), tag(2), &content);
        let receive = f.recv((1, 0), tag(2), content.len());
        f.succeed("T2", &[send, receive]);
        f.check_bytes("T2", receive, &content);
    }
    f.holds("T2", "a send over the eager limit finished unmatched", f.result(stuck[0]).is_none());
    let receives = [f.recv((1, 0), tag(1), small.len()), f.recv((1, 0), tag(0), large.len())];
    f.succeed("T2", &stuck);
    f.succeed("T2", &receives);
    f.check_bytes("T2", receives[0], &small);
    f.check_bytes("T2", receives[1], &large);
    Ok(())
}

/// T2: a late message of one group never matches another group's receive on the same lane.
pub(super) fn groups_are_apart(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    f.need_depth(2)?;
    let (old, new) = (Tag { group: 1, lane: 5 }, Tag { group: 2, lane: 5 });
    let stale = f.send((0, 1), old, b"stale");
    let wanted = f.recv((1, 0), new, 5);
    f.round_trips(0, 1);
    f.holds("T2", "another group's message was received", f.result(wanted).is_none());
    let fresh = f.send((0, 1), new, b"fresh");
    f.succeed("T2", &[fresh, wanted]);
    f.check_bytes("T2", wanted, b"fresh");
    let rest = f.recv((1, 0), old, 5);
    f.succeed("T2", &[stale, rest]);
    f.check_bytes("T2", rest, b"stale");
    Ok(())
}

/// T1 to T5: four members, random tags, sizes and order of posts, everybody to everybody.
pub(super) fn random_traffic_between_all(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    const N: usize = 4;
    for seed in 0..6 {
        let mut f = Field::new(rig, mode, N as u32)?;
        f.context = format!("seed {seed}");
        let mut random = Seeded::new(seed);
        let limit = 2 * f.caps().eager_bytes + 30_000;
        // The k-th entry of a pair of members is their k-th message; each side posts them in this order.
        let mut plans = Vec::new();
        for (a, b) in (0..N * N).map(|i| (i / N, i % N)).filter(|(a, b)| a != b) {
            let messages: Vec<(u32, Vec<u8>)> = (0..12u64)
                .map(|k| {
                    let longest = if random.once_in(3) { limit } else { 100 };
                    let len = random.below(longest) as usize;
                    (random.below(3) as u32, pattern(seed ^ (a * 64 + b) as u64 ^ (k << 20), len))
                })
                .collect();
            plans.push(((a, b), messages, (0usize, 0usize)));
        }
        let (mut all, mut receives): (Vec<At>, Vec<(At, usize, usize)>) = (Vec::new(), Vec::new());
        let mut left = plans.len() * 24;
        while left > 0 {
            let i = random.below(plans.len() as u64) as usize;
            let ((a, b), messages, (sent, received)) = &mut plans[i];
            let (a, b) = (*a, *b);
            if random.once_in(2) {
                if let Some((lane, content)) = messages.get(*sent)
                    && let Ok(id) = f.try_send((a, b), tag(*lane), stamp(*lane as u8), content)
                {
                    *sent += 1;
                    left -= 1;
                    all.push((a, id));
                }
            } else if let Some((lane, content)) = messages.get(*received)
                && let Ok(id) = f.try_recv((b, a), tag(*lane), stamp(*lane as u8), content.len())
            {
                receives.push(((b, id), i, *received));
                *received += 1;
                left -= 1;
                all.push((b, id));
            }
            if random.once_in(3) {
                f.poll_one(random.below(N as u64) as usize);
            }
            f.in_time("T4", "every operation to be taken");
        }
        f.succeed("T2", &all);
        for (at, plan, k) in receives {
            f.check_bytes("T2", at, &plans[plan].1[k].1);
        }
    }
    Ok(())
}

/// T3: another stamp or length fails both sides that have not finished, delivers nothing, and the next pair matches.
pub(super) fn stamps_and_lengths_are_compared(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    let big = f.caps().eager_bytes as usize + 5000;
    // (sender's stamp and length, receiver's stamp and length)
    let cases = [
        ((1, 50), (2, 50)),
        ((1, 50), (1, 51)),
        ((1, 51), (1, 50)),
        ((1, 0), (1, 9)),
        ((1, 9), (1, 0)),
        ((1, big), (2, big)),
        ((1, big), (1, big + 1)),
        ((1, 3), (1, big)),
        ((1, big), (1, 3)),
    ];
    for (k, ((s, sent), (r, wanted))) in cases.into_iter().enumerate() {
        for receive_first in [true, false] {
            f.context = format!("case {k}, receive first: {receive_first}");
            let content = pattern(k as u64, sent);
            let full = "an idle queue takes an operation";
            let early = receive_first.then(|| f.try_recv((1, 0), tag(0), stamp(r), wanted).expect(full));
            if receive_first {
                f.round_trips(0, 1);
            }
            let send = (0, f.try_send((0, 1), tag(0), stamp(s), &content).expect(full));
            if !receive_first {
                f.round_trips(0, 1);
            }
            let receive = early.unwrap_or_else(|| f.try_recv((1, 0), tag(0), stamp(r), wanted).expect(full));
            let receive = (1, receive);
            f.finish("T3", &[send, receive]);
            let theirs = OpError::Mismatch { theirs: stamp(s), their_bytes: sent as u64 };
            f.holds("T3", "the receive says what was sent", f.ended(receive) == &Err(theirs));
            let theirs = OpError::Mismatch { theirs: stamp(r), their_bytes: wanted as u64 };
            let finished_early = sent as u64 <= f.caps().eager_bytes && f.caps().eager_bytes > 0;
            let ended = f.ended(send);
            let says_so = ended == &Err(theirs) || (finished_early && ended == &Ok(()));
            f.holds("T3", "the send says what was wanted, or had finished", says_so);
            let untouched = f.bytes(receive).iter().all(|b| *b == UNTOUCHED);
            f.holds("T3", "no byte of a mismatch is delivered", untouched);
            let next = [f.send((0, 1), tag(0), b"next"), f.recv((1, 0), tag(0), 4)];
            f.succeed("T3", &next);
            f.check_bytes("T3", next[1], b"next");
        }
    }
    Ok(())
}

/// T2: one message of over 4 GiB. Only its ends and its middle are looked at.
pub(super) fn over_four_gib_arrive_whole(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    if !rig.huge() {
        return Err(Skip::new("leave to use 9 GB of memory (Rig::huge)"));
    }
    if mode != MODES[0] {
        return Err(Skip::new("a reason to repeat it in another mode"));
    }
    let mut f = Field::new(rig, mode, 2)?;
    let len = (1usize << 32) + 4099;
    if f.caps().max_message_bytes < len as u64 {
        return Err(Skip::new("a message length of over 4 GiB"));
    }
    let mut content = vec![0u8; len];
    let marks = [0, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, len - 1];
    for (i, at) in marks.iter().enumerate() {
        content[*at] = 1 + i as u8;
    }
    let receive = f.recv((1, 0), tag(0), len);
    let send = f.send((0, 1), tag(0), &content);
    f.succeed("T2", &[send, receive]);
    let got = f.bytes(receive);
    let kept = marks.iter().enumerate().all(|(i, at)| got[*at] == 1 + i as u8);
    f.holds("T2", "every mark is in its place", kept && got.len() == len);
    Ok(())
}
