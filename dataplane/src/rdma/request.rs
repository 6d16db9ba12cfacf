//! The numbers that requests have, and that come back with their completions: pure.
#![forbid(unsafe_code)]

/// Completions taken from a device at a time.
pub(super) const BATCH: usize = 32;

/// What a request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A receive of a connection; `aux` is its slot.
    Receive = 1,
    /// A message; `aux` is the low bits of its number. All before it are done as well.
    Send = 2,
    /// A write of payload: the oldest of its queue pair.
    Write = 3,
    /// An empty write that asks whether the peer is there.
    Pulse = 4,
    /// A receive of a hello; `aux` is its slot.
    HelloHeard = 5,
    /// A hello; `aux` is its slot.
    HelloLeft = 6,
    /// A message about rails.
    About = 7,
    /// What tells that all before it on its rail is there: see `ends`.
    Fence = 8,
}

/// Most links of a transport, and most of what `aux` counts, in bits.
const AUX_BITS: u32 = 24;
const LINK_BITS: u32 = 24;
const GENERATION_BITS: u32 = 12;

/// A request's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrId {
    pub(super) kind: Kind,
    /// Which connection of its link, modulo 2^12: late completions of one that is over find nothing.
    pub(super) generation: u16,
    pub(super) link: u32,
    pub(super) aux: u32,
}

impl WrId {
    pub(super) fn of_device(kind: Kind, aux: u32) -> WrId {
        WrId { kind, generation: 0, link: 0, aux }
    }

    #[inline]
    pub(super) fn pack(self) -> u64 {
        let low = |n: u32, bits: u32| u64::from(n) & ((1 << bits) - 1);
        (self.kind as u64) << (AUX_BITS + LINK_BITS + GENERATION_BITS)
            | low(self.generation.into(), GENERATION_BITS) << (AUX_BITS + LINK_BITS)
            | low(self.link, LINK_BITS) << AUX_BITS
            | low(self.aux, AUX_BITS)
    }

    #[inline]
    pub(super) fn unpack(id: u64) -> Option<WrId> {
        let field = |from: u32, bits: u32| (id >> from) as u32 & ((1 << bits) - 1);
        let kind = match id >> (AUX_BITS + LINK_BITS + GENERATION_BITS) {
            1 => Kind::Receive,
            2 => Kind::Send,
            3 => Kind::Write,
            4 => Kind::Pulse,
            5 => Kind::HelloHeard,
            6 => Kind::HelloLeft,
            7 => Kind::About,
            8 => Kind::Fence,
            _ => return None,
        };
        Some(WrId {
            kind,
            generation: field(AUX_BITS + LINK_BITS, GENERATION_BITS) as u16,
            link: field(AUX_BITS, LINK_BITS),
            aux: field(0, AUX_BITS),
        })
    }
}

/// How many of a wrapping count of [`WrId::aux`] lie between an older and a newer number.
pub(super) fn distance(older: u32, newer: u32) -> u32 {
    newer.wrapping_sub(older) & ((1 << AUX_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_were() {
        let of_links = [Kind::Receive, Kind::Send, Kind::Write, Kind::Pulse, Kind::About, Kind::Fence];
        for kind in of_links.into_iter().chain([Kind::HelloHeard, Kind::HelloLeft]) {
            let id = WrId { kind, generation: 0xabc, link: 0xfed_cba, aux: 0x123_456 };
            assert_eq!(WrId::unpack(id.pack()), Some(id));
        }
        assert_eq!(WrId::unpack(0), None);
        assert_eq!(WrId::unpack(u64::MAX), None);
        assert_eq!(distance(0xff_fffe, 3), 5);
    }
}
