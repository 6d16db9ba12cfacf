//! What a slice begins and ends with besides its steps: copies, chunks that are folded into one, averages.

#![forbid(unsafe_code)]

use super::{Fault, Run};
use crate::engine::layout::{Area, Copy, WORK};
use crate::engine::reduction::convert;
use crate::reduce::Kernels;
use crate::schedule::Span;

impl Run {
    /// Ends a lane's slice: finishes averages, and copies out what was staged.
    pub(super) fn finish_slice(&mut self, lane: usize, kernels: Kernels) -> Result<(), Fault> {
        let slice = self.lanes[lane].slice;
        self.unfinished -= 1;
        if let Some((area, span)) = self.plan.layout.folded {
            self.fold(area, span, lane, kernels)?;
        }
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

    /// Combines chunks of the work area into the first of them, one after another.
    fn fold(&mut self, area: Area, span: Span, lane: usize, kernels: Kernels) -> Result<(), Fault> {
        let (rank, slice) = (self.rank, self.lanes[lane].slice);
        let broken = |evidence: String| Fault::Broken { rank, evidence };
        let spot = |chunk| self.plan.layout.in_area(&area, Span::one(chunk), slice, lane).bytes;
        let (first, past) = (spot(span.first), spot(span.end() - 1).end);
        let Some(work) = self.regions[WORK].as_mut().filter(|_| !first.is_empty()) else { return Ok(()) };
        let work = work.bytes_mut(first.start..past).map_err(|e| broken(e.to_string()))?;
        let (sum, rest) = work.split_at_mut(first.len());
        for incoming in rest.chunks_exact_mut(first.len()) {
            match (&self.request.function, self.request.op, self.plan.dtype) {
                (Some(function), ..) => {
                    function.combine(sum, incoming, false).map_err(|message| Fault::Function { message })?
                }
                (None, Some(op), Some(dtype)) => {
                    kernels.combine(op, dtype, sum, incoming).map_err(|e| broken(e.to_string()))?;
                }
                _ => return Err(broken("a reduction without an operation".into())),
            }
        }
        Ok(())
    }
}
