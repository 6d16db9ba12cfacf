//! Where the bytes of a chunk are: maps (span of chunks, slice) to a region and a range of bytes in it.
//!
//! Two cuts exist. Where chunks are parts of one buffer (all-reduce, broadcast, reduce), which part is which does not
//! matter, and every slice is one run of the buffer with its own chunks side by side in it: any span of chunks is
//! contiguous. Where chunks are the blocks of ranks, slice `s` is the `s`-th piece of each block: a span of several
//! blocks is contiguous only if there is one slice, or if the pieces are gathered in a work area first.

#![forbid(unsafe_code)]

use super::slice::near_equal;
use crate::schedule::Span;
use std::ops::Range;
use std::sync::Arc;

/// A region of a run, by number.
pub(super) type Place = usize;
/// The caller's input, or the one buffer of an in-place call.
pub(super) const INPUT: Place = 0;
/// The caller's output.
pub(super) const OUTPUT: Place = 1;
/// Memory of the run's own, for blocks that pass through or are combined on the way.
pub(super) const WORK: Place = 2;
/// Number of places.
pub(super) const PLACES: usize = 3;

/// Chunks that lie in one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// Near-equal parts of each slice's run of the buffer.
    Parts { place: Place, chunks: u32 },
    /// Block `c` is at `(c - first) * block`.
    Blocks { place: Place, first: u32 },
    /// Chunk `c` is list `list`'s range `c`, of its own length.
    Listed { place: Place, list: usize },
    /// Near-equal parts of each slice's run of the buffer, `lane_bytes` per lane, made and emptied slice by slice.
    StagedParts { chunks: u32, lane_bytes: usize },
    /// Block `c` is at `c * block`, but block `own` is all that is at another place. Spans are of one block.
    Except { place: Place, own: u32, at: Place },
    /// Pieces of `chunks` blocks side by side, `lane_bytes` per lane, made and emptied slice by slice.
    Staged { chunks: u32, lane_bytes: usize },
}

impl Area {
    /// Whether it lies in the run's own memory.
    pub(super) fn is_work(&self) -> bool {
        match *self {
            Area::Staged { .. } | Area::StagedParts { .. } => true,
            Area::Parts { place, .. } | Area::Blocks { place, .. } | Area::Listed { place, .. } => {
                place == WORK
            }
            Area::Except { place, at, .. } => place == WORK || at == WORK,
        }
    }
}

/// Copies between areas that each slice begins or ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) from: Area,
    pub(super) to: Area,
    /// Chunks copied, as `from` numbers them.
    pub(super) span: Span,
    /// The first of them as `to` numbers them.
    pub(super) to_first: u32,
}

/// Ranges of elements, one per rank.
pub(super) type List = Arc<[Range<usize>]>;
/// Lists that a layout may refer to.
pub(super) const LISTS: usize = 3;

/// Where all chunks of a call are.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Chunks below `split`.
    pub(super) low: Area,
    /// Chunks from `split` on, numbered from 0 again.
    pub(super) high: Area,
    pub(super) split: u32,
    /// Elements of the buffer (`Parts`) or of one block.
    pub(super) elements: usize,
    /// Bytes of an element as it is sent and combined: in the work area, and in messages.
    pub(super) element_bytes: usize,
    /// Bytes of an element in the caller's buffers.
    pub(super) caller_bytes: usize,
    /// Lists of [`Area::Listed`].
    pub(super) lists: [Option<List>; LISTS],
    pub(super) slices: u32,
    pub(super) before: Option<Copy>,
    pub(super) after: Option<Copy>,
    /// What an average is finished on, at the end of each slice.
    pub(super) total: Option<(Area, Span)>,
}

/// A range of bytes of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) place: Place,
    pub(super) bytes: Range<usize>,
}

impl Layout {
    /// A layout of one area.
    pub(super) fn of(area: Area, elements: usize, element_bytes: usize) -> Layout {
        Layout {
            low: area,
            high: area,
            split: u32::MAX,
            elements,
            element_bytes,
            caller_bytes: element_bytes,
            lists: [None, None, None],
            slices: 1,
            before: None,
            after: None,
            total: None,
        }
    }

    /// Where `span` of a slice lies. A span never crosses `split`.
    #[inline]
    pub(super) fn locate(&self, span: Span, slice: u32, lane: usize) -> Spot {
        if span.first < self.split {
            self.in_area(&self.low, span, slice, lane)
        } else {
            self.in_area(&self.high, Span::new(span.first - self.split, span.count), slice, lane)
        }
    }

    /// Where `span` of an area lies.
    #[inline]
    pub(super) fn in_area(&self, area: &Area, span: Span, slice: u32, lane: usize) -> Spot {
        let piece = near_equal(self.elements, self.slices as usize, slice as usize);
        let (place, elements) = match *area {
            Area::Parts { place, chunks } => {
                let first = near_equal(piece.len(), chunks as usize, span.first as usize);
                let end = match span.count {
                    1 => first.end,
                    _ => near_equal(piece.len(), chunks as usize, span.end() as usize - 1).end,
                };
                (place, piece.start + first.start..piece.start + end)
            }
            Area::Listed { place, list } => {
                let range = self.lists[list].as_ref().and_then(|list| list.get(span.first as usize));
                let range = range.cloned().unwrap_or(0..0);
                let piece = near_equal(range.len(), self.slices as usize, slice as usize);
                (place, range.start + piece.start..range.start + piece.end)
            }
            Area::StagedParts { chunks, lane_bytes } => {
                let first = near_equal(piece.len(), chunks as usize, span.first as usize).start;
                let end = near_equal(piece.len(), chunks as usize, span.end() as usize - 1).end;
                let start = lane * lane_bytes / self.element_bytes;
                (WORK, start + first..start + end)
            }
            Area::Blocks { place, first } => {
                let start = (span.first - first) as usize * self.elements + piece.start;
                (place, start..start + (span.count as usize - 1) * self.elements + piece.len())
            }
            Area::Except { own, at, .. } if span.first == own => (at, piece),
            Area::Except { place, .. } => {
                let start = span.first as usize * self.elements;
                (place, start + piece.start..start + piece.end)
            }
            Area::Staged { lane_bytes, .. } => {
                let start = lane * lane_bytes / self.element_bytes + span.first as usize * piece.len();
                (WORK, start..start + span.count as usize * piece.len())
            }
        };
        let each = if place == WORK { self.element_bytes } else { self.caller_bytes };
        Spot { place, bytes: elements.start * each..elements.end * each }
    }

    /// Bytes of the longest message of `chunks` chunks, over all slices.
    pub(super) fn longest_bytes(&self, chunks: u32) -> usize {
        let piece = self.elements.div_ceil(self.slices as usize);
        let elements = match self.low {
            Area::Parts { chunks: all, .. } | Area::StagedParts { chunks: all, .. } => {
                (piece.div_ceil(all as usize) * chunks as usize).min(piece)
            }
            Area::Blocks { .. } | Area::Listed { .. } | Area::Except { .. } | Area::Staged { .. } => {
                piece * chunks as usize
            }
        };
        elements * self.element_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(area: Area, elements: usize, slices: u32) -> Layout {
        Layout { slices, ..Layout::of(area, elements, 4) }
    }

    #[test]
    fn parts_tile_the_buffer_and_spans_are_contiguous() {
        for (elements, chunks, slices) in [(0, 3, 1), (1, 4, 2), (1000, 3, 7), (97, 8, 5)] {
            let l = layout(Area::Parts { place: INPUT, chunks }, elements, slices);
            let mut at = 0;
            for slice in 0..slices {
                let all = l.locate(Span::new(0, chunks), slice, 0);
                assert_eq!(all.bytes.start, at);
                for chunk in 0..chunks {
                    let spot = l.locate(Span::one(chunk), slice, 0);
                    assert_eq!(spot.bytes.start, at);
                    assert!(spot.bytes.len() <= l.longest_bytes(1));
                    at = spot.bytes.end;
                }
                assert_eq!(all.bytes.end, at);
            }
            assert_eq!(at, elements * 4);
        }
    }

    #[test]
    fn blocks_are_cut_piece_by_piece() {
        let l = layout(Area::Blocks { place: OUTPUT, first: 2 }, 10, 3);
        let pieces: Vec<_> = (0..3).map(|s| l.locate(Span::one(3), s, 0).bytes).collect();
        assert_eq!(pieces, [40..56, 56..68, 68..80]);
        let whole = layout(Area::Blocks { place: OUTPUT, first: 2 }, 10, 1);
        assert_eq!(whole.locate(Span::new(2, 3), 0, 0).bytes, 0..120);
    }

    #[test]
    fn one_block_may_lie_elsewhere() {
        let l = layout(Area::Except { place: INPUT, own: 1, at: OUTPUT }, 10, 3);
        assert_eq!(l.locate(Span::one(2), 1, 0), Spot { place: INPUT, bytes: 96..108 });
        assert_eq!(l.locate(Span::one(1), 1, 0), Spot { place: OUTPUT, bytes: 16..28 });
    }

    #[test]
    fn staged_pieces_are_contiguous_within_their_lane() {
        let l = layout(Area::Staged { chunks: 3, lane_bytes: 3 * 16 }, 10, 3);
        assert_eq!(l.locate(Span::new(0, 3), 0, 1), Spot { place: WORK, bytes: 48..96 });
        assert_eq!(l.locate(Span::new(1, 2), 2, 0), Spot { place: WORK, bytes: 12..36 });
    }

    #[test]
    fn two_areas_meet_at_the_split() {
        let l = Layout {
            high: Area::Blocks { place: OUTPUT, first: 0 },
            split: 4,
            ..layout(Area::Blocks { place: INPUT, first: 0 }, 5, 1)
        };
        assert_eq!(l.locate(Span::one(3), 0, 0), Spot { place: INPUT, bytes: 60..80 });
        assert_eq!(l.locate(Span::one(5), 0, 0), Spot { place: OUTPUT, bytes: 20..40 });
    }
}
