//! The open steps of one slice: which may start, and in which order they must.
//!
//! Invariants:
//! - **H1** The window holds every unfinished step up to the newest loaded one, so hazards need no memory per chunk: a
//!   step waits for each earlier unfinished step that it conflicts with (schedule invariant I4).
//! - **H2** Sends to one peer are posted in program order, and so are receives from one peer: the transport matches
//!   the k-th with the k-th. So are the receives of all `Reduce` steps, which share the scratch: a later one never
//!   holds the scratch that an earlier one needs to be combined first.
//! - **H3** The receive of a `Reduce` waits for no hazard, only its combine does (schedule invariant I3).

#![forbid(unsafe_code)]

use crate::schedule::{Rank, Schedule, Span, Step};

/// Steps of one slice that are open at a time, counted from its oldest unfinished one.
pub(super) const WINDOW: usize = 16;

/// The window over one slice's steps. A step is named by its place, its number modulo [`WINDOW`].
#[derive(Clone, Debug)]
pub(super) struct Window {
    steps: [Step; WINDOW],
    base: u32,
    loaded: u32,
    ended: bool,
    /// The step that is not loaded before all earlier ones have finished and [`Window::open_gate`] was called.
    gate: Option<u32>,
    /// Bits by place. `posted` stays set once set; `arrived` is a `Reduce` whose bytes wait to be combined.
    posted: u32,
    arrived: u32,
    done: u32,
}

/// What a step could do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// Be posted.
    Post(Step),
    /// Be combined.
    Combine(Span),
    /// Nothing.
    Waits,
}

impl Default for Window {
    fn default() -> Window {
        let none = Step::Send { to: 0, span: Span::new(0, 0) };
        let steps = [none; WINDOW];
        Window { steps, base: 0, loaded: 0, ended: true, gate: None, posted: 0, arrived: 0, done: 0 }
    }
}

const fn bit(place: usize) -> u32 {
    1 << place
}

impl Window {
    /// Empties the window and starts over at a step; those before it are over. The steps from `gate` on wait for all before.
    pub(super) fn restart(&mut self, step: u32, gate: Option<u32>) {
        (self.base, self.loaded, self.ended, self.gate) = (step, step, false, gate);
        (self.posted, self.arrived, self.done) = (0, 0, 0);
    }

    /// Drops finished steps off the front and loads as many as there is room for.
    #[inline]
    pub(super) fn slide(&mut self, schedule: &impl Schedule, rank: Rank) {
        while self.base < self.loaded && self.done & bit(self.base as usize % WINDOW) != 0 {
            self.base += 1;
        }
        while !self.ended && self.loaded - self.base < WINDOW as u32 && self.gate != Some(self.loaded) {
            let place = self.loaded as usize % WINDOW;
            match schedule.step(rank, self.loaded) {
                Some(step) => {
                    self.steps[place] = step;
                    let clear = !bit(place);
                    (self.posted, self.arrived, self.done) =
                        (self.posted & clear, self.arrived & clear, self.done & clear);
                    self.loaded += 1;
                }
                None => self.ended = true,
            }
        }
    }

    /// Whether all steps before the gate have finished, and it is shut.
    pub(super) fn is_at_gate(&self) -> bool {
        self.base == self.loaded && self.gate == Some(self.loaded)
    }

    /// Lets the steps behind the gate begin.
    pub(super) fn open_gate(&mut self) {
        self.gate = None;
    }

    /// Whether every step of the slice has finished.
    pub(super) fn finished(&self) -> bool {
        self.ended && self.base == self.loaded
    }

    /// The numbers of the open steps, oldest first.
    pub(super) fn open(&self) -> std::ops::Range<u32> {
        self.base..self.loaded
    }

    /// The place of a step by its number.
    pub(super) fn place(number: u32) -> usize {
        number as usize % WINDOW
    }

    /// The step at a place.
    #[inline]
    pub(super) fn step(&self, place: usize) -> Step {
        self.steps[place]
    }

    /// Whether the step at a place is with the transport.
    pub(super) fn in_flight(&self, place: usize) -> bool {
        self.posted & !self.arrived & !self.done & bit(place) != 0
    }

    /// What step `number`, which is open, could do now.
    #[inline]
    pub(super) fn ready(&self, number: u32) -> Ready {
        let place = Window::place(number);
        let step = self.steps[place];
        if self.done & bit(place) != 0 {
            return Ready::Waits;
        }
        if self.arrived & bit(place) != 0 {
            return if self.hazard(number, &step) { Ready::Waits } else { Ready::Combine(step.span()) };
        }
        if self.posted & bit(place) != 0 || self.overtakes(number, &step) {
            return Ready::Waits;
        }
        // H3
        if matches!(step, Step::Reduce { .. }) || !self.hazard(number, &step) {
            return Ready::Post(step);
        }
        Ready::Waits
    }

    /// H1: whether an earlier unfinished step conflicts.
    #[inline]
    fn hazard(&self, number: u32, step: &Step) -> bool {
        (self.base..number)
            .map(Window::place)
            .any(|earlier| self.done & bit(earlier) == 0 && step.conflicts_with(&self.steps[earlier]))
    }

    /// Whether nothing stands in the way of combining step `number` at once.
    pub(super) fn is_clear(&self, number: u32) -> bool {
        !self.hazard(number, &self.steps[Window::place(number)])
    }

    /// H2: whether an earlier step that it must not pass is not posted yet.
    #[inline]
    fn overtakes(&self, number: u32, step: &Step) -> bool {
        (self.base..number).map(Window::place).any(|earlier| {
            let other = &self.steps[earlier];
            let same_queue = other.is_send() == step.is_send() && other.peer() == step.peer();
            let both_reduce = matches!((other, step), (Step::Reduce { .. }, Step::Reduce { .. }));
            self.posted & bit(earlier) == 0 && (same_queue || both_reduce)
        })
    }

    /// Whether posting a step would pass an earlier one of the same direction, whoever its peer is.
    pub(super) fn passes(&self, number: u32, step: Step) -> bool {
        (self.base..number)
            .map(Window::place)
            .any(|earlier| self.posted & bit(earlier) == 0 && self.steps[earlier].is_send() == step.is_send())
    }

    /// Notes that the step at a place was posted.
    pub(super) fn set_posted(&mut self, place: usize) {
        self.posted |= bit(place);
    }

    /// Notes that the transport is done with the step at a place. A `Reduce` still has to be combined.
    pub(super) fn set_completed(&mut self, place: usize) {
        if matches!(self.steps[place], Step::Reduce { .. }) {
            self.arrived |= bit(place);
        } else {
            self.done |= bit(place);
        }
    }

    /// Notes that the `Reduce` at a place was combined.
    pub(super) fn set_combined(&mut self, place: usize) {
        self.done |= bit(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Algorithm, AnySchedule, Collective};

    fn window(collective: Collective, algorithm: Algorithm, ranks: u32, rank: Rank) -> (AnySchedule, Window) {
        let schedule = AnySchedule::new(collective, algorithm, ranks, 0).unwrap();
        let mut window = Window::default();
        window.restart(0, None);
        window.slide(&schedule, rank);
        (schedule, window)
    }

    #[test]
    fn a_reduce_is_posted_at_once_and_combined_after_the_send() {
        // H3: recursive doubling exchanges one chunk.
        let (schedule, mut w) = window(Collective::AllReduce, Algorithm::Doubling, 2, 0);
        assert!(matches!(w.ready(0), Ready::Post(Step::Send { .. })));
        assert!(matches!(w.ready(1), Ready::Post(Step::Reduce { .. })));
        w.set_posted(0);
        w.set_posted(1);
        w.set_completed(1);
        assert_eq!(w.ready(1), Ready::Waits);
        w.set_completed(0);
        assert_eq!(w.ready(1), Ready::Combine(Span::one(0)));
        w.set_combined(1);
        w.slide(&schedule, 0);
        assert!(w.finished());
    }

    #[test]
    fn sends_to_one_peer_keep_their_order() {
        // H2: the ring's second send waits for a combine, and its third must not pass it.
        let (_, mut w) = window(Collective::AllReduce, Algorithm::Ring, 4, 1);
        w.set_posted(0);
        w.set_completed(0);
        let sends: Vec<u32> = w.open().filter(|n| w.step(Window::place(*n)).is_send()).collect();
        assert!(sends.iter().all(|n| w.ready(*n) == Ready::Waits));
        // Receives are posted far ahead.
        assert!(matches!(w.ready(1), Ready::Post(Step::Reduce { .. })));
        assert_eq!(w.ready(3), Ready::Waits, "until the one before it from the same peer is posted");
        w.set_posted(1);
        assert!(matches!(w.ready(3), Ready::Post(Step::Reduce { .. })));
    }

    #[test]
    fn no_step_behind_the_gate_begins_before_it_is_opened() {
        // I10 of schedules.
        let schedule = AnySchedule::new(Collective::AllReduce, Algorithm::Direct, 3, 0).unwrap();
        let gate = schedule.gathers().unwrap().steps;
        let mut w = Window::default();
        w.restart(0, Some(gate));
        w.slide(&schedule, 1);
        assert_eq!(w.open(), 0..gate);
        for number in w.open() {
            assert!(!w.is_at_gate());
            w.set_posted(Window::place(number));
            w.set_completed(Window::place(number));
            w.slide(&schedule, 1);
        }
        assert!(w.is_at_gate() && !w.finished());
        w.open_gate();
        w.slide(&schedule, 1);
        assert_eq!(w.open(), gate..2 * gate);
    }

    #[test]
    fn the_window_slides_over_a_long_schedule() {
        let (schedule, mut w) = window(Collective::AllGather, Algorithm::Direct, 100, 7);
        let mut finished = 0;
        while !w.finished() {
            assert!(w.open().len() <= WINDOW);
            for number in w.open() {
                assert!(matches!(w.ready(number), Ready::Post(_)), "direct all-gather has no hazards");
                w.set_posted(Window::place(number));
                w.set_completed(Window::place(number));
                finished += 1;
            }
            w.slide(&schedule, 7);
        }
        assert_eq!(finished, 2 * 99);
    }
}
