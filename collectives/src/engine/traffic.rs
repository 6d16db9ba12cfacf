//! How much was exchanged with each peer.
//!
//! - **X1** The table grows when a message with a new peer first ends, and never otherwise: it holds those that were
//!   reached, not all members, and once every connection is used, counting allocates nothing.

#![forbid(unsafe_code)]

use ringway_dataplane::transport::Peer;

/// Messages exchanged with one peer, by all communicators of an endpoint. What was cancelled or lost counts nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// Sends that ended well.
    pub sends: u64,
    /// Payload of these, in bytes.
    pub sent_bytes: u64,
    /// Receives that ended well.
    pub receives: u64,
    /// Payload of these, in bytes.
    pub received_bytes: u64,
}

/// Places of a table that holds something, at first.
const FIRST_PLACES: usize = 16;

/// Peers by number, at the place of their number or the next free ones after it; at most half of the places are taken.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    places: Vec<Option<(u32, Exchanged)>>,
    taken: usize,
}

impl Traffic {
    /// Counts a message. Returns whether it is the first with that peer.
    pub(super) fn count(&mut self, peer: Peer, sends: bool, bytes: u64) -> bool {
        if self.taken * 2 >= self.places.len() {
            self.grow();
        }
        let at = self.place(peer.0);
        let new = self.places[at].is_none();
        self.taken += usize::from(new);
        let (_, n) = self.places[at].get_or_insert((peer.0, Exchanged::default()));
        if sends {
            (n.sends, n.sent_bytes) = (n.sends + 1, n.sent_bytes + bytes);
        } else {
            (n.receives, n.received_bytes) = (n.receives + 1, n.received_bytes + bytes);
        }
        new
    }

    /// Where a peer is, or would be.
    fn place(&self, peer: u32) -> usize {
        let mask = self.places.len() - 1;
        let mut at = peer as usize & mask;
        while self.places[at].is_some_and(|(other, _)| other != peer) {
            at = (at + 1) & mask;
        }
        at
    }

    fn grow(&mut self) {
        let places = (self.places.len() * 2).max(FIRST_PLACES);
        let old = std::mem::replace(&mut self.places, vec![None; places]);
        for (peer, exchanged) in old.into_iter().flatten() {
            let at = self.place(peer);
            self.places[at] = Some((peer, exchanged));
        }
    }

    /// All peers that anything was exchanged with, by number.
    pub(super) fn all(&self) -> Vec<(Peer, Exchanged)> {
        let mut all: Vec<_> = self.places.iter().flatten().map(|(peer, n)| (Peer(*peer), *n)).collect();
        all.sort_unstable_by_key(|(peer, _)| *peer);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_is_counted_by_itself() {
        let mut traffic = Traffic::default();
        // Numbers that share places in small tables.
        let peers: Vec<u32> = (0..200).map(|i| i * 16).chain([3, u32::MAX]).collect();
        for round in 1..=3u64 {
            for peer in &peers {
                assert_eq!(traffic.count(Peer(*peer), true, u64::from(*peer)), round == 1);
                assert!(!traffic.count(Peer(*peer), false, 1));
            }
        }
        let all = traffic.all();
        assert_eq!(all.len(), peers.len());
        assert!(all.is_sorted_by_key(|(peer, _)| *peer));
        for (Peer(peer), n) in all {
            let expected =
                Exchanged { sends: 3, sent_bytes: u64::from(peer) * 3, receives: 3, received_bytes: 3 };
            assert_eq!(n, expected, "peer {peer}");
        }
    }

    #[test]
    fn known_peers_need_no_further_memory() {
        // X1
        let mut traffic = Traffic::default();
        (0..100).for_each(|peer| assert!(traffic.count(Peer(peer), true, 1)));
        let places = traffic.places.len();
        (0..10_000).for_each(|i| assert!(!traffic.count(Peer(i % 100), i % 2 == 0, 1)));
        assert_eq!(traffic.places.len(), places);
    }
}
