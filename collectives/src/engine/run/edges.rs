//! What a slice does besides its steps: copies, combining what was gathered, averages.

#![forbid(unsafe_code)]

use super::{Fault, Run};
use crate::engine::layout::{Area, Copy, PLACES, Spot, WORK};
use crate::engine::reduction::convert;
use crate::reduce::Kernels;
use crate::schedule::Span;
use ringway_dataplane::memory::Region;
use std::ops::Range;
use std::sync::Arc;

impl Run {
    /// Ends a lane's slice: finishes averages, and copies out what was staged.
    pub(super) fn finish_slice(&mut self, lane: usize, kernels: Kernels) -> Result<(), Fault> {
        let slice = self.lanes[lane].slice;
        self.unfinished -= 1;
        if let (Some((area, span)), Some(op), Some(dtype)) =
            (self.plan.layout.total, self.request.op, self.plan.dtype)
        {
            let ranks = self.plan.averaged;
            for run in self.plan.layout.runs(&area, span) {
                let spot = self.plan.layout.in_area(&area, run, slice, lane);
                if let (Some(region), false) = (self.regions[spot.place].as_mut(), spot.bytes.is_empty()) {
                    let rank = self.rank;
                    let broken = |evidence: String| Fault::Broken { rank, evidence };
                    let bytes = region.bytes_mut(spot.bytes).map_err(|e| broken(e.to_string()))?;
                    kernels.finish(op, dtype, bytes, ranks).map_err(|e| broken(e.to_string()))?;
                }
            }
        }
        match self.plan.layout.after {
            Some(copy) => self.copy(copy, slice, lane),
            None => Ok(()),
        }
    }

    pub(super) fn copy(&mut self, copy: Copy, slice: u32, lane: usize) -> Result<(), Fault> {
        let rank = self.rank;
        let broken = |evidence: String| Fault::Broken { rank, evidence };
        for i in 0..copy.span.count {
            let spot = |area: &Area, chunk| self.plan.layout.in_area(area, Span::one(chunk), slice, lane);
            let (from, to) = (spot(&copy.from, copy.span.first + i), spot(&copy.to, copy.to_first + i));
            let both = self.regions.get_disjoint_mut([from.place, to.place]);
            let Ok([Some(source), Some(target)]) = both else {
                return Err(broken("a copy between memory that the call has not".into()));
            };
            let source = source.bytes(from.bytes).map_err(|e| broken(e.to_string()))?;
            let target = target.bytes_mut(to.bytes).map_err(|e| broken(e.to_string()))?;
            let dtype_at = |place| if place == WORK { self.plan.dtype } else { self.request.dtype };
            match (dtype_at(from.place), dtype_at(to.place)) {
                (Some(narrow), Some(wide)) if narrow != wide => {
                    convert(narrow, source, wide, target).map_err(broken)?;
                }
                _ => target.copy_from_slice(source),
            }
        }
        Ok(())
    }

    /// Combines what a lane's slice has gathered.
    pub(super) fn gather(&mut self, lane: usize, kernels: Kernels) -> Result<(), Fault> {
        let (rank, slice, plan) = (self.rank, self.lanes[lane].slice, Arc::clone(&self.plan));
        let broken = |evidence: String| Fault::Broken { rank, evidence };
        let Some(gather) = &plan.layout.gather else { return Ok(()) };
        for bracket in gather.brackets.iter() {
            let spot = |position| plan.layout.operand(gather, position, slice, lane);
            let (into, from) = (spot(bracket.into), spot(bracket.from));
            if into.bytes.is_empty() {
                continue;
            }
            let (sum, incoming) = operands(&mut self.regions, into, from).map_err(broken)?;
            match (&self.request.function, self.request.op, plan.dtype) {
                (Some(function), ..) => function
                    .combine(sum, incoming, bracket.incoming_is_left)
                    .map_err(|message| Fault::Function { message })?,
                (None, Some(op), Some(dtype)) => {
                    kernels.combine(op, dtype, sum, incoming).map_err(|e| broken(e.to_string()))?;
                }
                _ => return Err(broken("a reduction without an operation".into())),
            }
        }
        Ok(())
    }
}

/// The two operands of a combination, which lie apart.
fn operands(
    regions: &mut [Option<Region>; PLACES],
    into: Spot,
    from: Spot,
) -> Result<(&mut [u8], &mut [u8]), String> {
    let missing = || "operands in memory that the call has not".to_owned();
    if into.place != from.place {
        let Ok([Some(a), Some(b)]) = regions.get_disjoint_mut([into.place, from.place]) else {
            return Err(missing());
        };
        let (a, b) = (a.bytes_mut(into.bytes), b.bytes_mut(from.bytes));
        return Ok((a.map_err(|e| e.to_string())?, b.map_err(|e| e.to_string())?));
    }
    let region = regions[into.place].as_mut().ok_or_else(missing)?;
    let start = into.bytes.start.min(from.bytes.start);
    let both = region.bytes_mut(start..into.bytes.end.max(from.bytes.end)).map_err(|e| e.to_string())?;
    let within = |range: Range<usize>| range.start - start..range.end - start;
    let pair = both.get_disjoint_mut([within(into.bytes), within(from.bytes)]);
    pair.map(|[a, b]| (a, b)).map_err(|e| e.to_string())
}
