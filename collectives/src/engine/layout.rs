//! Where the bytes of a chunk are: maps (span of chunks, slice) to a region and a range of bytes in it.
//!
//! Two cuts exist. Where chunks are cut out of one buffer (all-reduce, broadcast, reduce), the buffer is first cut into the
//! parts whose elements are combined in orders of their own ([`AnySchedule::parts`]), each part into slices, and each
//! slice's piece of a part into the part's chunks: so the order in which an element is combined does not depend on the
//! slices, and a span of chunks is contiguous as long as it stays within a part. Where chunks are the blocks of ranks,
//! slice `s` is the `s`-th piece of each block: a span of several blocks is contiguous only if there is one slice, or if
//! the pieces are gathered in a work area first.
//!
//! [`AnySchedule::parts`]: crate::schedule::AnySchedule::parts

#![forbid(unsafe_code)]

use super::slice::near_equal;
use crate::schedule::{Bracket, Span};
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
/// Bytes of a cache line, which every element's size divides.
const LINE: usize = 64;
/// Number of places.
pub(super) const PLACES: usize = 3;

/// How a buffer is cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Near-equal parts of the whole buffer, which divide `chunks`.
    pub(super) parts: u32,
    /// Chunks of all parts together: near-equal ones of each slice's piece of a part.
    pub(super) chunks: u32,
}

impl Cut {
    /// Chunks that are combined alike.
    pub(super) fn even(chunks: u32) -> Cut {
        Cut { parts: 1, chunks }
    }

    /// Chunks of one part.
    fn each(self) -> u32 {
        self.chunks / self.parts
    }
}

/// Chunks that lie in one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// A buffer, cut.
    Parts { place: Place, cut: Cut },
    /// Block `c` is at `(c - first) * block`.
    Blocks { place: Place, first: u32 },
    /// Chunk `c` is list `list`'s range `c`, of its own length.
    Listed { place: Place, list: usize },
    /// A slice's pieces of a buffer that is cut so, part by part side by side, `lane_bytes` per lane, made and emptied slice
    /// by slice.
    StagedParts { cut: Cut, lane_bytes: usize },
    /// Block `c` is at `c * block`, but block `own` is all that is at another place. Spans are of one block.
    Except { place: Place, own: u32, at: Place },
    /// Pieces of `chunks` blocks side by side, `lane_bytes` per lane, made and emptied slice by slice.
    Staged { chunks: u32, lane_bytes: usize },
    /// As many pieces of a slice's chunk `part` of a buffer that is cut so as there are ranks, side by side from `from_bytes`
    /// on of the `lane_bytes` per lane.
    Gathered { cut: Cut, part: u32, from_bytes: usize, lane_bytes: usize },
}

impl Area {
    /// Whether it lies in the run's own memory.
    pub(super) fn is_work(&self) -> bool {
        match *self {
            Area::Staged { .. } | Area::StagedParts { .. } | Area::Gathered { .. } => true,
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

/// What is combined once all of it has come: operands by position, that of `own` in the buffer, the others in the area of
/// the high chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gather {
    /// After how many steps (schedule invariant I10).
    pub(super) steps: u32,
    /// This rank's position, and the chunk of the buffer that it combines.
    pub(super) own: u32,
    pub(super) part: u32,
    pub(super) brackets: Arc<[Bracket]>,
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
    /// What is combined on the way of each slice, out of what was gathered.
    pub(super) gather: Option<Gather>,
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
            gather: None,
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

    /// Where the operand of a position lies.
    pub(super) fn operand(&self, gather: &Gather, position: u32, slice: u32, lane: usize) -> Spot {
        if position == gather.own {
            self.in_area(&self.low, Span::one(gather.part), slice, lane)
        } else {
            self.in_area(&self.high, Span::one(position), slice, lane)
        }
    }

    /// Where `span` of an area lies.
    #[inline]
    pub(super) fn in_area(&self, area: &Area, span: Span, slice: u32, lane: usize) -> Spot {
        let piece = near_equal(self.elements, self.slices as usize, slice as usize);
        let (place, elements) = match *area {
            Area::Parts { place, cut } => {
                let first = self.cut_out(cut, span.first, slice);
                let end = match span.count {
                    1 => first.end,
                    _ => self.cut_out(cut, span.end() - 1, slice).end,
                };
                (place, first.start..end)
            }
            Area::Listed { place, list } => {
                let range = self.lists[list].as_ref().and_then(|list| list.get(span.first as usize));
                let range = range.cloned().unwrap_or(0..0);
                let piece = near_equal(range.len(), self.slices as usize, slice as usize);
                (place, range.start + piece.start..range.start + piece.end)
            }
            Area::StagedParts { cut, lane_bytes } => {
                let part = span.first / cut.each();
                let begin = self.cut_out(cut, part * cut.each(), slice).start;
                let (first, last) =
                    (self.cut_out(cut, span.first, slice), self.cut_out(cut, span.end() - 1, slice));
                let start = lane * lane_bytes / self.element_bytes + part as usize * self.piece(cut.parts);
                (WORK, start + first.start - begin..start + last.end - begin)
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
            Area::Gathered { cut, part, from_bytes, lane_bytes } => {
                let each = self.gathered_bytes(cut) / self.element_bytes;
                let start = (lane * lane_bytes + from_bytes) / self.element_bytes;
                let start = start + span.first as usize * each;
                (WORK, start..start + self.cut_out(cut, part, slice).len())
            }
            Area::Staged { lane_bytes, .. } => {
                let start = lane * lane_bytes / self.element_bytes + span.first as usize * piece.len();
                (WORK, start..start + span.count as usize * piece.len())
            }
        };
        let each = if place == WORK { self.element_bytes } else { self.caller_bytes };
        Spot { place, bytes: elements.start * each..elements.end * each }
    }

    /// Elements of a chunk of a slice.
    #[inline]
    fn cut_out(&self, cut: Cut, chunk: u32, slice: u32) -> Range<usize> {
        let part = near_equal(self.elements, cut.parts as usize, (chunk / cut.each()) as usize);
        let piece = near_equal(part.len(), self.slices as usize, slice as usize);
        let own = near_equal(piece.len(), cut.each() as usize, (chunk % cut.each()) as usize);
        let start = part.start + piece.start;
        start + own.start..start + own.end
    }

    /// Elements of a slice's longest piece of one of so many parts.
    fn piece(&self, parts: u32) -> usize {
        self.elements.div_ceil(parts as usize).div_ceil(self.slices as usize)
    }

    /// Bytes of a lane of [`Area::StagedParts`].
    pub(super) fn lane_bytes(&self, cut: Cut) -> usize {
        cut.parts as usize * self.piece(cut.parts) * self.element_bytes
    }

    /// From one operand of [`Area::Gathered`] to the next, in bytes: whole cache lines.
    pub(super) fn gathered_bytes(&self, cut: Cut) -> usize {
        let elements = self.piece(cut.parts).div_ceil(cut.each() as usize);
        (elements * self.element_bytes).next_multiple_of(LINE)
    }

    /// `span` of an area in runs that are contiguous in every slice.
    pub(super) fn runs(&self, area: &Area, span: Span) -> impl Iterator<Item = Span> + use<> {
        let longest = match *area {
            Area::Parts { cut, .. } if self.slices > 1 => cut.each(),
            Area::StagedParts { cut, .. } => cut.each(),
            _ => span.count,
        };
        let longest = longest.min(span.count).max(1);
        let run = move |i: u32| Span::new(span.first + i * longest, longest.min(span.count - i * longest));
        (0..span.count.div_ceil(longest)).map(run)
    }

    /// Bytes of the longest message of `chunks` chunks, over all slices.
    pub(super) fn longest_bytes(&self, chunks: u32) -> usize {
        let elements = match self.low {
            Area::Parts { cut, .. } | Area::StagedParts { cut, .. } => {
                let piece = self.piece(cut.parts);
                let parts = chunks.div_ceil(cut.each()) as usize;
                (piece.div_ceil(cut.each() as usize) * chunks as usize).min(parts * piece)
            }
            Area::Blocks { .. }
            | Area::Listed { .. }
            | Area::Except { .. }
            | Area::Staged { .. }
            | Area::Gathered { .. } => self.piece(1) * chunks as usize,
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
    fn parts_tile_the_buffer_and_spans_within_a_part_are_contiguous() {
        let cuts =
            [(1, 1), (1, 3), (3, 3), (2, 8), (4, 8), (1, 4)].map(|(parts, chunks)| Cut { parts, chunks });
        for (cut, (elements, slices)) in
            cuts.into_iter().flat_map(|cut| [(0, 1), (1, 2), (1000, 7), (97, 5), (64, 1)].map(|e| (cut, e)))
        {
            let (area, each) = (Area::Parts { place: INPUT, cut }, cut.chunks / cut.parts);
            let l = layout(area, elements, slices);
            let mut at = 0;
            for part in 0..cut.parts {
                for slice in 0..slices {
                    let all = l.locate(Span::new(part * each, each), slice, 0);
                    assert_eq!(all.bytes.start, at);
                    for chunk in part * each..(part + 1) * each {
                        let spot = l.locate(Span::one(chunk), slice, 0);
                        assert_eq!(spot.bytes.start, at);
                        assert!(spot.bytes.len() <= l.longest_bytes(1));
                        at = spot.bytes.end;
                    }
                    assert_eq!(all.bytes.end, at);
                    assert!(all.bytes.len() <= l.longest_bytes(each));
                }
            }
            assert_eq!(at, elements * 4);
            // Of one slice, all is one run.
            let whole = Span::new(0, cut.chunks);
            let runs: Vec<_> = l.runs(&area, whole).collect();
            assert_eq!(runs.len() as u32, if slices == 1 { 1 } else { cut.parts });
            assert_eq!(runs.iter().map(|run| run.count).sum::<u32>(), cut.chunks);
            if slices == 1 {
                assert_eq!(l.locate(whole, 0, 0).bytes, 0..elements * 4);
            }
        }
    }

    /// E2: which part an element is in, and so in which order it is combined, is the same for any slices.
    #[test]
    fn the_part_of_an_element_does_not_depend_on_slices() {
        let cut = Cut { parts: 3, chunks: 6 };
        let part_of = |element: usize, slices: u32| {
            let l = layout(Area::Parts { place: INPUT, cut }, 101, slices);
            let holds = |chunk: &u32| {
                (0..slices).any(|s| l.locate(Span::one(*chunk), s, 0).bytes.contains(&(element * 4)))
            };
            (0..cut.chunks).find(holds).map(|chunk| chunk / 2)
        };
        for element in 0..101 {
            assert!([2, 3, 7, 40].iter().all(|slices| part_of(element, *slices) == part_of(element, 1)));
        }
    }

    #[test]
    fn staged_parts_are_apart_and_within_their_lane() {
        for (parts, chunks) in [(1, 4), (2, 2), (2, 6), (3, 3)] {
            let cut = Cut { parts, chunks };
            for (elements, slices) in [(0, 1), (5, 2), (100, 3), (97, 1)] {
                let bare = layout(Area::StagedParts { cut, lane_bytes: 0 }, elements, slices);
                let lane_bytes = bare.lane_bytes(cut);
                let (staged, plain) = (
                    layout(Area::StagedParts { cut, lane_bytes }, elements, slices),
                    layout(Area::Parts { place: INPUT, cut }, elements, slices),
                );
                for slice in 0..slices {
                    let mut at = lane_bytes;
                    for chunk in 0..chunks {
                        let (spot, whence) = (
                            staged.locate(Span::one(chunk), slice, 1),
                            plain.locate(Span::one(chunk), slice, 1),
                        );
                        assert_eq!(spot.bytes.len(), whence.bytes.len());
                        assert!(spot.bytes.start >= at && spot.bytes.end <= 2 * lane_bytes);
                        at = spot.bytes.end;
                    }
                }
            }
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
    fn gathered_operands_are_apart_within_their_lane_and_as_long_as_their_part() {
        for (chunks, own) in [(1, 2), (4, 2), (3, 0)] {
            let cut = Cut::even(chunks);
            for (elements, slices) in [(0, 1), (5, 1), (1000, 3), (97, 2)] {
                let (parts, part) = (Area::Parts { place: INPUT, cut }, own.min(chunks - 1));
                let bare = layout(parts, elements, slices);
                let each = bare.gathered_bytes(cut);
                let (from_bytes, lane_bytes) = (64, 64 + 4 * each);
                let high = Area::Gathered { cut, part, from_bytes, lane_bytes };
                let l = Layout { high, split: chunks, ..bare };
                let gather = Gather { steps: 6, own, part, brackets: Arc::from([]) };
                for slice in 0..slices {
                    let mine = l.locate(Span::one(part), slice, 1);
                    let mut at = lane_bytes + from_bytes;
                    for position in 0..4 {
                        let spot = l.operand(&gather, position, slice, 1);
                        assert_eq!(spot.bytes.len(), mine.bytes.len());
                        if position == own {
                            assert_eq!(spot, mine);
                            continue;
                        }
                        assert_eq!(spot, l.locate(Span::one(chunks + position), slice, 1));
                        assert!(spot.place == WORK && spot.bytes.start >= at);
                        at = spot.bytes.end;
                    }
                    assert!(at <= 2 * lane_bytes);
                }
            }
        }
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
