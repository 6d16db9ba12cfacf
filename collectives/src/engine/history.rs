//! Which call it was, when two ranks find that their earlier calls differ.
//!
//! Calls that differ and exchange no message (two roots that both finish by eager sends) show only in the digest of a
//! later call's stamp. Whoever sees that sends its digests of the calls before ([`Word::Histories`]); the other side
//! finds the first call after which they part, and asks about that one as inquiries do, so that both sides of it are
//! compared and named. The communicator dies without that knowledge when no answer comes: the other rank may be between
//! calls, or not remember that far.

#![forbid(unsafe_code)]

use super::core::Core;
use super::error::CollectiveError;
use super::fingerprint::Call;
use super::group::{Group, Remembered};
use super::word::{MAX_HISTORIES, Word};

/// How long an answer is waited for, in milliseconds: of the second in which a mismatch is to be told, what leaves time to
/// tell it. It is counted in looks at the clock, an inquiry's time apart, so that a rank which gets no processor for a while
/// does not take its own absence for the other's silence.
const DOUBTED_MS: u64 = 700;
/// Looks at the clock that an answer is waited for at the least, however far apart they are.
const MIN_DOUBTED_TICKS: u64 = 2;

/// A mismatch whose cause is an earlier call.
#[derive(Debug)]
pub(super) struct Doubt {
    /// What the communicator dies of when no better is found.
    error: CollectiveError,
    ticks_left: u32,
}

impl Group {
    /// The digests before each remembered call up to `seq`, oldest first, as many as a note holds.
    fn histories(&self, seq: u32) -> Vec<u16> {
        let numbers = (0..MAX_HISTORIES as u32).map(|back| seq.wrapping_sub(back));
        let mut newest_first: Vec<u16> =
            numbers.map_while(|n| self.numbers.call(n)).map(|kept| kept.call().history).collect();
        newest_first.reverse();
        newest_first
    }

    /// The first call that another rank made otherwise, whose digests up to call `seq` are `theirs`; `None` where they
    /// do not part within what both remember.
    fn first_difference(&self, seq: u32, theirs: &[u16]) -> Option<&Remembered> {
        let mut agreed = None;
        for (back, their_history) in (0..theirs.len() as u32).rev().zip(theirs) {
            let Some(ours) = self.numbers.call(seq.wrapping_sub(back)) else { continue };
            if ours.call().history != *their_history {
                return agreed;
            }
            agreed = Some(ours);
        }
        None
    }
}

impl Core {
    /// Two ranks made different calls of one number. If they already differed before it, the first difference is
    /// looked for, else that is it.
    pub(super) fn mismatched(&mut self, index: usize, ours: Call, rank: u32, theirs: Call) {
        let Some(group) = self.groups[index].as_mut() else { return };
        let (ours_who, theirs_who) = (group.who(group.info.my_rank), group.who(rank));
        let error = CollectiveError::Mismatch { ours_who, ours, theirs_who, theirs };
        if ours.history == theirs.history || ours.seq != theirs.seq || ours.seq == 0 {
            return self.fail(index, error, None);
        }
        if group.doubt.is_some() {
            return;
        }
        let histories = group.histories(ours.seq);
        let word = Word::Histories { group: group.info.id, seq: ours.seq, histories };
        let asked = self.transport.note(group.peers[rank as usize], &word.note());
        match asked {
            Ok(()) => {
                let ticks = (DOUBTED_MS / self.options.inquiry_ms.max(1)).max(MIN_DOUBTED_TICKS);
                group.doubt = Some(Doubt { error, ticks_left: u32::try_from(ticks).unwrap_or(u32::MAX) });
            }
            Err(_) => self.fail(index, error, None),
        }
    }

    /// Another rank has found that its calls before `seq` and this rank's differ.
    pub(super) fn on_histories(&mut self, index: usize, rank: u32, seq: u32, theirs: &[u16]) {
        let Some(group) = self.groups[index].as_ref() else { return };
        let id = group.info.id;
        let answer = match group.first_difference(seq, theirs) {
            Some(Remembered::Made(call)) => Word::Asks { group: id, stamp: call.stamp() },
            Some(Remembered::Refused(call, why)) => {
                Word::Refused { group: id, stamp: call.stamp(), why: why.clone() }
            }
            None => return,
        };
        let _ = self.transport.note(group.peers[rank as usize], &answer.note());
    }

    /// Ends the communicators whose doubts nobody has answered.
    pub(super) fn settle_doubts(&mut self) {
        for index in 0..self.groups.len() {
            let Some(doubt) = self.groups[index].as_mut().and_then(|g| g.doubt.as_mut()) else { continue };
            doubt.ticks_left = doubt.ticks_left.saturating_sub(1);
            if doubt.ticks_left == 0 {
                let error = doubt.error.clone();
                self.fail(index, error, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::{GroupInfo, Member, REMEMBERED_CALLS};
    use super::*;
    use crate::schedule::Collective;
    use ringway_dataplane::transport::Peer;
    use ringway_topology::model::order::Site;

    fn group() -> Group {
        let member = |p: u32| Member {
            peer: Peer(p),
            host: "h".into(),
            pid: 1,
            incarnation: 1,
            site: Site::default(),
        };
        Group::new(GroupInfo { id: 1, my_rank: 0, members: (0..2).map(member).collect() }).unwrap()
    }

    fn broadcast(root: u32) -> Call {
        Call {
            collective: Some(Collective::Broadcast),
            dtype: None,
            op: None,
            algorithm: None,
            form: Default::default(),
            root,
            count: 8,
            seq: 0,
            history: 0,
        }
    }

    /// Two groups that have made `calls` calls alike but for those in `other`.
    fn pair(calls: u32, other: &[u32]) -> (Group, Group) {
        let (mut a, mut b) = (group(), group());
        for n in 0..calls {
            a.numbers.take(broadcast(0), None);
            b.numbers.take(broadcast(u32::from(other.contains(&n))), None);
        }
        (a, b)
    }

    #[test]
    fn the_first_difference_is_found_as_far_back_as_a_note_tells() {
        for calls in [2, 3, 100, 256, 257, 1000] {
            let reach = (MAX_HISTORIES as u32 - 1).min(calls - 1);
            for back in 1..calls.min(REMEMBERED_CALLS as u32 + 10) {
                let culprit = calls - 1 - back;
                let (a, b) = pair(calls, &[culprit, calls - 1]);
                let found = b.first_difference(calls - 1, &a.histories(calls - 1));
                let seq = found.map(|kept| kept.call().seq);
                assert_eq!(seq, (back <= reach).then_some(culprit), "{calls} calls, {back} back");
            }
        }
    }

    #[test]
    fn histories_that_agree_or_share_nothing_name_no_call() {
        let (a, b) = pair(10, &[]);
        assert!(b.first_difference(9, &a.histories(9)).is_none());
        assert!(b.first_difference(9, &[]).is_none());
        assert!(b.first_difference(u32::MAX, &a.histories(9)).is_none());
        assert!(group().first_difference(9, &a.histories(9)).is_none());
    }
}
