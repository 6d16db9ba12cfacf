//! Where the chunks of a collective are: which memory a plan's steps read and write.

#![forbid(unsafe_code)]

use super::blocks::Blocks;
use super::layout::{Area, Copy, Cut, Gather, INPUT, Layout, List, OUTPUT, WORK};
use super::plan::Request;
use crate::schedule::{Algorithm, Arranged, Collective, Order, Rank, Schedule, Span};
use ringway_dataplane::memory::DType;
use std::sync::Arc;

/// Where the chunks of a collective are, and whether spans of blocks can be cut into pieces. What is gathered is combined in
/// `order`.
pub(super) fn arrange(
    (collective, algorithm): (Collective, Algorithm),
    request: &Request,
    (rank, ranks): (Rank, u32),
    element_bytes: usize,
    (schedule, order): (&Arranged, Order),
) -> (Layout, bool) {
    let caller_bytes = request.dtype.map_or(1, DType::size);
    let of = |area: Area| Layout { caller_bytes, ..Layout::of(area, request.count, element_bytes) };
    if let Some(blocks) = &request.blocks {
        return (arrange_blocks(collective, request, blocks, rank, element_bytes), true);
    }
    let converts = caller_bytes != element_bytes;
    let own = Span::one(rank);
    let blocks = |place, first| Area::Blocks { place, first };
    let chunks = schedule.gathers().map_or(schedule.chunks(), |gathered| gathered.chunks);
    let cut = Cut { parts: schedule.among_positions().parts(), chunks };
    let parts = Area::Parts { place: INPUT, cut };
    let all = Span::new(0, chunks);
    let root = request.root == rank;
    let layout = match collective {
        Collective::AllReduce | Collective::Reduce if converts => {
            let staged = Area::StagedParts { cut, lane_bytes: 0 };
            let total = (root || collective == Collective::AllReduce).then_some((staged, all));
            let before = Some(Copy { from: parts, to: staged, span: all, to_first: 0 });
            let after = Some(Copy { from: staged, to: parts, span: all, to_first: 0 });
            gathering(Layout { before, after, total, ..of(staged) }, cut, (schedule, order), rank)
        }
        Collective::AllReduce => {
            gathering(Layout { total: Some((parts, all)), ..of(parts) }, cut, (schedule, order), rank)
        }
        Collective::Reduce => Layout { total: root.then_some((parts, all)), ..of(parts) },
        Collective::Broadcast => of(parts),
        // The one chunk of a barrier has no bytes; they are taken from the scratch's own neighbour.
        Collective::Barrier => of(Area::Parts { place: WORK, cut: Cut::even(1) }),
        Collective::ReduceScatter => {
            let (layout, pieces) = arrange_reduce_scatter(algorithm, request, (rank, ranks), element_bytes);
            return (gathering(layout, Cut::even(1), (schedule, order), rank), pieces);
        }
        Collective::AllGather if request.in_place => of(blocks(INPUT, 0)),
        // One's own block is sent from where it is, and copied when the others have it.
        Collective::AllGather if ranks == 2 || matches!(algorithm, Algorithm::Ring | Algorithm::Direct) => {
            let after = Copy { from: blocks(INPUT, rank), to: blocks(OUTPUT, 0), span: own, to_first: rank };
            let area = Area::Except { place: OUTPUT, own: rank, at: INPUT };
            return (Layout { after: Some(after), ..of(area) }, true);
        }
        Collective::AllGather => {
            let to = blocks(OUTPUT, 0);
            let before = Copy { from: blocks(INPUT, rank), to, span: own, to_first: rank };
            Layout { before: Some(before), ..of(to) }
        }
        Collective::Gather => {
            let room = schedule.room(rank);
            let to = if root { blocks(OUTPUT, 0) } else { blocks(WORK, room.first) };
            let before = Copy { from: blocks(INPUT, rank), to, span: own, to_first: rank };
            match root || room.count > 1 {
                true => Layout { before: Some(before), ..of(to) },
                false => of(blocks(INPUT, rank)),
            }
        }
        Collective::Scatter => {
            let room = schedule.room(rank);
            let from = if root { blocks(INPUT, 0) } else { blocks(WORK, room.first) };
            let after = Copy { from, to: blocks(OUTPUT, rank), span: own, to_first: rank };
            match root || room.count > 1 {
                true => Layout { after: Some(after), ..of(from) },
                false => of(blocks(OUTPUT, rank)),
            }
        }
        Collective::AllToAll => {
            let (low, high) = (blocks(INPUT, 0), blocks(OUTPUT, 0));
            let before = Copy { from: low, to: high, span: own, to_first: rank };
            Layout { high, split: ranks, before: Some(before), ..of(low) }
        }
        Collective::Scan | Collective::ExclusiveScan => {
            return (arrange_scan(collective, request, rank, element_bytes), false);
        }
    };
    (layout, false)
}

/// The layout of an all-reduce, cut so, or of a reduce-scatter, each of whose blocks is in one piece, with the operands that a
/// rank gathers, if it does.
fn gathering(layout: Layout, cut: Cut, (schedule, order): (&Arranged, Order), rank: Rank) -> Layout {
    let Some(gathered) = schedule.gathers() else { return layout };
    let own = schedule.position(rank);
    let part = gathered.part(own);
    let brackets = order.brackets(schedule.ranks(), own).into();
    Layout {
        high: Area::Gathered { cut, part: part % cut.chunks, from_bytes: 0, lane_bytes: 0 },
        split: gathered.chunks,
        gather: Some(Gather { steps: gathered.steps, own, part, brackets }),
        ..layout
    }
}

/// The same for a reduce-scatter of equal blocks.
fn arrange_reduce_scatter(
    algorithm: Algorithm,
    request: &Request,
    (rank, ranks): (Rank, u32),
    element_bytes: usize,
) -> (Layout, bool) {
    let caller_bytes = request.dtype.map_or(1, DType::size);
    let of = |area: Area| Layout { caller_bytes, ..Layout::of(area, request.count, element_bytes) };
    let blocks = |place, first| Area::Blocks { place, first };
    let own = Span::one(rank);
    let result = if request.in_place { blocks(INPUT, 0) } else { blocks(OUTPUT, rank) };
    if caller_bytes == element_bytes {
        if request.in_place {
            return (Layout { total: Some((result, own)), ..of(result) }, false);
        }
        // Nothing passes through: other ranks' blocks are sent as they are, and one's own is combined where it is wanted.
        if combines_its_own(algorithm, ranks) {
            let before = Some(Copy { from: blocks(INPUT, 0), to: result, span: own, to_first: rank });
            let area = Area::Except { place: INPUT, own: rank, at: OUTPUT };
            return (Layout { before, total: Some((result, own)), ..of(area) }, true);
        }
    }
    let (staged, all) = (Area::Staged { chunks: ranks, lane_bytes: 0 }, Span::new(0, ranks));
    let before = Some(Copy { from: blocks(INPUT, 0), to: staged, span: all, to_first: 0 });
    let after = Some(Copy { from: staged, to: result, span: own, to_first: rank });
    (Layout { before, after, total: Some((staged, own)), ..of(staged) }, true)
}

/// Whether each rank of a reduce-scatter combines no block but its own. Along the chain others' pass through every rank,
/// two ranks or more.
fn combines_its_own(algorithm: Algorithm, ranks: u32) -> bool {
    matches!(algorithm, Algorithm::Direct | Algorithm::Exchange)
        || ranks == 2 && algorithm != Algorithm::Chain
}

/// The same for scans, of one chunk and what an exclusive one keeps of it.
fn arrange_scan(collective: Collective, request: &Request, rank: Rank, element_bytes: usize) -> Layout {
    let caller_bytes = request.dtype.map_or(1, DType::size);
    let of = |area: Area| Layout { caller_bytes, ..Layout::of(area, request.count, element_bytes) };
    let (whole, one) = (Area::Parts { place: INPUT, cut: Cut::even(1) }, Span::one(0));
    if collective == Collective::ExclusiveScan {
        let (staged, kept) = (Area::Staged { chunks: 2, lane_bytes: 0 }, Span::one(1));
        let before = Some(Copy { from: whole, to: staged, span: one, to_first: 0 });
        // There is nothing before rank 0, whose buffer stays as it is.
        let after = (rank > 0).then_some(Copy { from: staged, to: whole, span: kept, to_first: 0 });
        return Layout { before, after, total: (rank > 0).then_some((staged, kept)), ..of(staged) };
    }
    if caller_bytes == element_bytes {
        return Layout { total: Some((whole, one)), ..of(whole) };
    }
    let staged = Area::Staged { chunks: 1, lane_bytes: 0 };
    let before = Some(Copy { from: whole, to: staged, span: one, to_first: 0 });
    let after = Some(Copy { from: staged, to: whole, span: one, to_first: 0 });
    Layout { before, after, total: Some((staged, one)), ..of(staged) }
}

/// The same for blocks of unequal lengths. The lists are: 0 the caller's blocks, 1 those received or, packed, those of the
/// work area, 2 this rank's own block in a buffer that holds no other.
fn arrange_blocks(
    collective: Collective,
    request: &Request,
    blocks: &Blocks,
    rank: Rank,
    element_bytes: usize,
) -> Layout {
    let caller_bytes = request.dtype.map_or(1, DType::size);
    let received = request.received.as_ref().map(|blocks| Arc::clone(blocks.ranges()));
    let alone: List = blocks.ranges().iter().map(|range| 0..range.len()).collect();
    let second = received.unwrap_or_else(|| blocks.packed_again());
    let longest = blocks.longest().max(request.received.as_ref().map_or(0, Blocks::longest));
    let of = |area: Area| Layout {
        caller_bytes,
        lists: [Some(Arc::clone(blocks.ranges())), Some(Arc::clone(&second)), Some(Arc::clone(&alone))],
        ..Layout::of(area, longest, element_bytes)
    };
    let listed = |place, list| Area::Listed { place, list };
    let (own, all) = (Span::one(rank), Span::new(0, blocks.len() as u32));
    match collective {
        Collective::ReduceScatter if request.in_place && caller_bytes == element_bytes => {
            Layout { total: Some((listed(INPUT, 0), own)), ..of(listed(INPUT, 0)) }
        }
        Collective::ReduceScatter => {
            let work = listed(WORK, 1);
            let result = if request.in_place { listed(INPUT, 0) } else { listed(OUTPUT, 2) };
            let before = Some(Copy { from: listed(INPUT, 0), to: work, span: all, to_first: 0 });
            let after = Some(Copy { from: work, to: result, span: own, to_first: rank });
            Layout { before, after, total: Some((work, own)), ..of(work) }
        }
        Collective::AllToAll => {
            let (low, high) = (listed(INPUT, 0), listed(OUTPUT, 1));
            let before = Some(Copy { from: low, to: high, span: own, to_first: rank });
            Layout { high, split: all.count, before, ..of(low) }
        }
        _ if request.in_place => of(listed(INPUT, 0)),
        _ => {
            let to = listed(OUTPUT, 0);
            let before = Some(Copy { from: listed(INPUT, 2), to, span: own, to_first: rank });
            Layout { before, ..of(to) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::What;
    use super::*;
    use crate::reduce::ReduceOp;
    use crate::schedule::{Arrangement, Step};

    fn request(collective: Collective, in_place: bool) -> Request {
        Request {
            what: What::Collective(collective),
            dtype: Some(DType::F32),
            op: collective.reduces().then_some(ReduceOp::Sum),
            function: None,
            blocks: None,
            received: None,
            count: 5,
            root: 0,
            in_place,
        }
    }

    #[test]
    fn a_block_of_its_own_place_goes_alone_and_is_the_only_one_combined() {
        let mut seen = 0;
        for hosts in [&[2][..], &[1, 1], &[3], &[4], &[8], &[2, 2], &[4, 4], &[1, 2, 3]] {
            let ranks: u32 = hosts.iter().sum();
            let order: Vec<Rank> = (0..ranks).collect();
            let group = Arrangement::new(&order, hosts).unwrap();
            for collective in [Collective::AllGather, Collective::ReduceScatter] {
                let request = request(collective, false);
                for &algorithm in collective.algorithms() {
                    let Some(schedule) = group.schedule(collective, algorithm, 0) else { continue };
                    for rank in 0..ranks {
                        let kind = (collective, algorithm);
                        let (layout, _) =
                            arrange(kind, &request, (rank, ranks), 4, (&schedule, Order::Doubling));
                        let Area::Except { own, .. } = layout.low else { continue };
                        seen += 1;
                        assert_eq!(own, rank);
                        for step in (0..).map_while(|index| schedule.step(rank, index)) {
                            assert_eq!(step.span().count, 1, "{kind:?} {hosts:?} rank {rank}: {step}");
                            let combines = matches!(step, Step::Reduce { .. });
                            assert!(!combines || step.span().first == own, "{kind:?} rank {rank}: {step}");
                        }
                    }
                }
            }
        }
        assert!(seen > 50, "{seen}");
    }

    #[test]
    fn no_block_has_a_place_of_its_own_in_one_buffer_nor_where_elements_are_converted() {
        let group = Arrangement::together(2);
        for collective in [Collective::AllGather, Collective::ReduceScatter] {
            for &algorithm in collective.algorithms() {
                let Some(schedule) = group.schedule(collective, algorithm, 0) else { continue };
                let low = |in_place, element_bytes| {
                    let request = request(collective, in_place);
                    arrange(
                        (collective, algorithm),
                        &request,
                        (0, 2),
                        element_bytes,
                        (&schedule, Order::Doubling),
                    )
                    .0
                    .low
                };
                for in_place in [false, true] {
                    let plain = low(in_place, 4);
                    let apart = !in_place && (algorithm != Algorithm::Chain || !collective.reduces());
                    assert_eq!(matches!(plain, Area::Except { .. }), apart, "{collective:?} {algorithm:?}");
                    if collective.reduces() {
                        assert!(matches!(low(in_place, 2), Area::Staged { .. }), "{algorithm:?}");
                    }
                }
            }
        }
    }
}
