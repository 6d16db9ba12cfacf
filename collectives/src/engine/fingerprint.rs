//! What a call is, in 24 bytes: the stamp that both sides of every message must share.
//!
//! ```text
//! byte  0      kind of call            1..=11 collectives, 16 point to point; top bits: form, bits 0 and 1
//!       1      element type, or 0      upper half: form, bits 2 to 5
//!       2      reduction, or 0
//!       3      algorithm, or 0
//!       4..8   root, or the user's tag of a point-to-point message, or a digest of unequal blocks
//!       8..16  elements
//!      16..20  number of the call on its communicator, from 0
//!      20..22  slice of the call, modulo 2^16
//!      22..24  digest of all earlier calls on the communicator
//! ```
//! Integers are little-endian. The digest makes the next message after a mismatch that no message has shown (two
//! broadcasts from different roots, both finished by eager sends) fail instead of silently going on. It begins with
//! [`cutting`], so that ranks which would cut the same call differently find out in the first one, not by waiting for
//! messages that never come.

#![forbid(unsafe_code)]

use super::options::EngineOptions;
use crate::reduce::ReduceOp;
use crate::schedule::{Algorithm, Collective, Costs, LinkCosts};
use ringway_dataplane::memory::DType;
use ringway_dataplane::transport::Stamp;
use std::fmt;

/// What sets a call apart from the plain one of its kind, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Form(u8);

impl Form {
    /// Blocks are of unequal lengths: the v forms.
    pub const BLOCKS: Form = Form(1);
    /// Operands are combined in rank order: a function that does not commute.
    pub const IN_ORDER: Form = Form(1 << 1);
    /// The operation is a function of the user's.
    pub const FUNCTION: Form = Form(1 << 2);
    /// Operands are combined one after the other ([`Numerics::reproducible`](super::Numerics)).
    pub const IN_SEQUENCE: Form = Form(1 << 3);
    /// Elements travel as f32.
    pub const AS_F32: Form = Form(1 << 4);
    /// Elements travel as bf16.
    pub const AS_BF16: Form = Form(1 << 5);

    /// Both of them, if `too` says so.
    #[must_use]
    pub const fn and(self, other: Form, too: bool) -> Form {
        if too { Form(self.0 | other.0) } else { self }
    }

    /// Whether it has the other's bit.
    pub const fn has(self, other: Form) -> bool {
        self.0 & other.0 != 0
    }
}

/// Wire code of a point-to-point message.
const POINT_TO_POINT: u8 = 16;

/// One call on a communicator, as stamps and error messages tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// Which collective, or `None` for a point-to-point message.
    pub collective: Option<Collective>,
    /// Type of the elements; `None` for a barrier.
    pub dtype: Option<DType>,
    /// The reduction of a collective that has one.
    pub op: Option<ReduceOp>,
    /// How it is run; `None` for a point-to-point message.
    pub algorithm: Option<Algorithm>,
    /// What sets it apart from the plain call of its kind.
    pub form: Form,
    /// Root of a rooted collective, tag of a point-to-point message, digest of the counts of unequal blocks, else 0.
    pub root: u32,
    /// Elements, in the collective's own measure: of the whole buffer, or of one rank's block; of unequal blocks, of all
    /// together, or in an `all_to_all_v` of the block concerned.
    pub count: u64,
    /// Number of the call on its communicator, from 0, modulo 2^32. 0 for point-to-point messages.
    pub seq: u32,
    /// Digest of the calls before it.
    pub history: u16,
}

impl Call {
    /// The stamp of the call's messages of slice 0; see [`slice_stamp`].
    pub(crate) fn stamp(&self) -> Stamp {
        let mut b = [0u8; 24];
        b[0] = self.collective.map_or(POINT_TO_POINT, |c| c as u8 + 1);
        b[0] |= (self.form.0 & 0b11) << 6;
        b[1] = self.dtype.map_or(0, |d| d as u8) | (self.form.0 >> 2) << 4;
        b[2] = self.op.map_or(0, |o| o as u8);
        b[3] = self.algorithm.map_or(0, |a| a as u8 + 1);
        b[4..8].copy_from_slice(&self.root.to_le_bytes());
        b[8..16].copy_from_slice(&self.count.to_le_bytes());
        b[16..20].copy_from_slice(&self.seq.to_le_bytes());
        b[22..24].copy_from_slice(&self.history.to_le_bytes());
        Stamp(b)
    }

    /// Reads a stamp, or `None` when it is none of ours.
    pub(crate) fn from_stamp(stamp: &Stamp) -> Option<Call> {
        let b = &stamp.0;
        let listed = |code: u8| (code > 0).then(|| usize::from(code) - 1);
        let form = Form(b[0] >> 6 | (b[1] >> 4) << 2);
        let collective = match b[0] & 0x3f {
            POINT_TO_POINT => None,
            code => Some(*Collective::ALL.get(listed(code)?)?),
        };
        let dtype = match b[1] & 0x0f {
            0 => None,
            code => Some(DType::from_code(code)?),
        };
        let op = if b[2] == 0 { None } else { Some(ReduceOp::from_code(b[2])?) };
        let algorithm = match listed(b[3]) {
            None => None,
            Some(index) => Some(*Algorithm::ALL.get(index)?),
        };
        let (root, count) = (u32::from_le_bytes(b[4..8].try_into().ok()?), b[8..16].try_into().ok()?);
        Some(Call {
            collective,
            dtype,
            op,
            algorithm,
            form,
            root,
            count: u64::from_le_bytes(count),
            seq: u32::from_le_bytes(b[16..20].try_into().ok()?),
            history: u16::from_le_bytes([b[22], b[23]]),
        })
    }

    /// The digest of all calls up to and including this one.
    pub(crate) fn history_after(&self) -> u16 {
        // The stamp holds the digest so far.
        let stamp = self.stamp();
        let (words, _) = stamp.0.as_chunks::<8>();
        digest(words.iter().map(|word| u64::from_le_bytes(*word)))
    }

    /// Whether two calls of one number are the same call, so that only what came before them may differ.
    pub(crate) fn same_but_history(&self, other: &Call) -> bool {
        Call { history: 0, ..*self } == Call { history: 0, ..*other }
    }

    /// Whether two calls differ in no more than their algorithm and what came before them.
    pub(crate) fn same_but_algorithm(&self, other: &Call) -> bool {
        Call { algorithm: None, ..*self }.same_but_history(&Call { algorithm: None, ..*other })
    }
}

/// Words multiplied into one another; all of their bits reach the upper 16 of the last product. The factor is the golden
/// ratio's, as in Fibonacci hashing.
fn digest(words: impl IntoIterator<Item = u64>) -> u16 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |h: u64, word: u64| {
        let mixed = (h ^ word).wrapping_mul(FACTOR);
        mixed ^ (mixed >> 32)
    };
    let digest = words.into_iter().fold(0xcbf2_9ce4_8422_2325u64, mix);
    (digest.wrapping_mul(FACTOR) >> 48) as u16
}

/// Digest of what, besides the call itself, decides how a call is cut into messages and which tags they have: all ranks
/// of a communicator must have it in common. `costs` are its links', and those that decide among equal bits, `depth` is the
/// transport's.
pub(crate) fn cutting(
    options: &EngineOptions,
    (costs, here): (&Costs, Option<&LinkCosts>),
    depth: u32,
) -> u16 {
    let EngineOptions { slice_bytes, slices_in_flight, tuning, .. } = options;
    let slice_bytes = slice_bytes.map_or(0, |bytes| bytes as u64);
    let numbers = [costs.inside, costs.between].into_iter().chain(here.copied()).flat_map(|link| {
        let numbers = [
            link.latency_us,
            link.message_us,
            link.eager_message_us,
            link.bytes_per_us,
            link.reduce_bytes_per_us,
        ];
        numbers.map(f64::to_bits).into_iter().chain([u64::from(link.offloaded)])
    });
    let tuned = tuning.as_ref().map_or(0, |tuning| tuning.digest());
    let in_flight = u64::from(slices_in_flight.unwrap_or(0));
    let words = [slice_bytes, in_flight, u64::from(depth), tuned].into_iter();
    digest(words.chain(numbers))
}

/// Writes the length of one message in place of the call's.
pub(crate) fn count_stamp(stamp: &mut Stamp, count: u64) {
    stamp.0[8..16].copy_from_slice(&count.to_le_bytes());
}

/// The stamp of slice `slice` of the call whose slice 0 has the stamp `call`.
pub(crate) fn slice_stamp(call: &Stamp, slice: u32) -> Stamp {
    let mut stamp = *call;
    stamp.0[20..22].copy_from_slice(&(slice as u16).to_le_bytes());
    stamp
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(collective) = self.collective else {
            write!(f, "a message with tag {}", self.root)?;
            return self.dtype.map_or(Ok(()), |d| write!(f, ", {d} x {}", self.count));
        };
        let ragged = if self.form.has(Form::BLOCKS) { "_v" } else { "" };
        write!(f, "{collective}{ragged} #{}", self.seq)?;
        if let Some(dtype) = self.dtype {
            write!(f, " {dtype} x {}", self.count)?;
        }
        if let Some(op) = self.op {
            write!(f, " {op}")?;
        }
        if self.form.has(Form::FUNCTION) {
            f.write_str(if self.form.has(Form::IN_ORDER) { " own, in order" } else { " own" })?;
        }
        for (form, words) in [
            (Form::IN_SEQUENCE, " reproducible"),
            (Form::AS_F32, " sent as f32"),
            (Form::AS_BF16, " sent as bf16"),
        ] {
            f.write_str(if self.form.has(form) { words } else { "" })?;
        }
        if collective.is_rooted() {
            write!(f, " root {}", self.root)?;
        } else if self.form.has(Form::BLOCKS) && collective != Collective::AllToAll {
            write!(f, " in counts of digest {:08x}", self.root)?;
        }
        match self.algorithm {
            Some(algorithm) => write!(f, " ({algorithm})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Call {
        Call {
            collective: Some(Collective::Reduce),
            dtype: Some(DType::F32),
            op: Some(ReduceOp::Avg),
            algorithm: Some(Algorithm::Tree),
            form: Form::default(),
            root: 3,
            count: 1 << 40,
            seq: 17,
            history: 0xabcd,
        }
    }

    #[test]
    fn stamps_read_back() {
        for collective in Collective::ALL {
            let c = Call { collective: Some(collective), ..call() };
            assert_eq!(Call::from_stamp(&slice_stamp(&c.stamp(), 70_000)), Some(c));
        }
        for bit in 0..6 {
            let c = Call { form: Form(1 << bit), ..call() };
            assert_eq!(Call::from_stamp(&c.stamp()), Some(c));
        }
        let message = Call { collective: None, op: None, algorithm: None, ..call() };
        assert_eq!(Call::from_stamp(&message.stamp()), Some(message));
    }

    #[test]
    fn foreign_stamps_are_none() {
        let no_algorithm = Algorithm::ALL.len() as u8 + 1;
        for (at, code) in [(0, 0), (0, 12), (0, 255), (1, 14), (2, 9), (3, no_algorithm)] {
            let mut stamp = call().stamp();
            stamp.0[at] = code;
            assert_eq!(Call::from_stamp(&stamp), None, "byte {at} = {code}");
        }
    }

    #[test]
    fn every_part_of_a_call_tells_in_its_stamp_and_in_the_digest() {
        let c = call();
        let others = [
            Call { collective: Some(Collective::Broadcast), ..c },
            Call { dtype: Some(DType::F64), ..c },
            Call { op: Some(ReduceOp::Sum), ..c },
            Call { algorithm: Some(Algorithm::Ring), ..c },
            Call { form: Form::FUNCTION, ..c },
            Call { root: 2, ..c },
            Call { count: 1000, ..c },
            Call { seq: 18, ..c },
            Call { history: 1, ..c },
        ];
        for other in others {
            assert_ne!(other.stamp(), c.stamp());
            assert_ne!(other.history_after(), c.history_after(), "{other}");
        }
        assert_eq!(c.to_string(), "reduce #17 f32 x 1099511627776 avg root 3 (Tree)");
    }
}
