//! One suite for every transport: what the contract (T1 to T11 in [`contract`](super::contract)) means in calls.
//!
//! To hold a transport to it, implement [`Rig`] and put one line into an integration test:
//!
//! ```no_run
//! # use ringway_dataplane::transport::{Hub, LoopbackConfig, Peer, Transport};
//! # use ringway_dataplane::transport::conformance::{Depth, Mode, Rig, Skip};
//! struct MyRig;
//!
//! impl Rig for MyRig {
//!     fn members(&mut self, n: u32, mode: Mode) -> Result<Vec<Box<dyn Transport>>, Skip> {
//!         # let depth = if mode.depth == Depth::One { 1 } else { 64 };
//!         # let eager_bytes = if mode.eager { 4096 } else { 0 };
//!         let hub = Hub::new(LoopbackConfig { seed: 1, eager_bytes, depth, reorder: mode.reorder });
//!         Ok((0..n).map(|i| Box::new(hub.join(Peer(i)).unwrap()) as Box<dyn Transport>).collect())
//!     }
//! }
//!
//! ringway_dataplane::transport_conformance!(MyRig);
//! # fn main() {}
//! ```
//!
//! Each check becomes a `#[test]`, and runs in each of [`MODES`]. What a transport or its rig cannot do is skipped, and
//! the skip says what is missing. Waits end at [`DEADLINE`], with a panic that names the invariant that hung. Randomness
//! is seeded, and the seed is in the panic.
//!
//! - `field`: members, what they were asked, what they told.
//! - `delivery`, `credit`, `withdrawal`, `loss`, `notes`, `sleeping`, `life`: the checks.

mod credit;
mod delivery;
mod field;
mod life;
mod loss;
mod notes;
mod sleeping;
mod withdrawal;

use super::Transport;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How long a check waits for one thing before it panics.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// How deep the queues are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The transport's own choice, at least 4 where it can be set.
    Own,
    /// One operation per peer and direction.
    One,
}

/// How the members of a check are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Whether small sends may finish before they are matched.
    pub eager: bool,
    /// The depth.
    pub depth: Depth,
    /// Whether the wire reorders between peers and tags.
    pub reorder: bool,
}

/// What every check runs in.
pub const MODES: [Mode; 5] = [
    Mode { eager: true, depth: Depth::Own, reorder: false },
    Mode { eager: false, depth: Depth::Own, reorder: false },
    Mode { eager: true, depth: Depth::One, reorder: false },
    Mode { eager: false, depth: Depth::One, reorder: false },
    Mode { eager: true, depth: Depth::Own, reorder: true },
];

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.eager { "eager" } else { "zero-buffer" })?;
        f.write_str(if self.depth == Depth::One { ", depth 1" } else { ", deep" })?;
        f.write_str(if self.reorder { ", reordering" } else { "" })
    }
}

/// Why a check did not run: a capability that the transport, or its rig, does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("skipped: {missing} is missing")]
pub struct Skip {
    /// The capability.
    pub missing: String,
}

impl Skip {
    /// A skip for want of `missing`.
    pub fn new(missing: impl Into<String>) -> Skip {
        Skip { missing: missing.into() }
    }
}

/// Sets transports up for the suite.
pub trait Rig {
    /// `n` members of a job that have not been introduced to each other. The suite calls the i-th `Peer(i)`.
    ///
    /// # Errors
    /// [`Skip`] when this transport cannot do `mode`.
    fn members(&mut self, n: u32, mode: Mode) -> Result<Vec<Box<dyn Transport>>, Skip>;

    /// Ends a member as a crash of its process would.
    fn crash(&mut self, member: Box<dyn Transport>) {
        drop(member);
    }

    /// Allocations that the calling thread has made so far, where the test binary's allocator counts them.
    fn allocations(&self) -> Option<u64> {
        None
    }

    /// Whether to send a message of over 4 GiB, which takes 9 GB of memory and some seconds.
    fn huge(&self) -> bool {
        false
    }
}

/// One check of the suite.
#[derive(Clone, Copy)]
pub struct Check {
    /// Its name, which says what must hold.
    pub name: &'static str,
    run: fn(&mut dyn Rig, Mode) -> Result<(), Skip>,
}

/// How a check ended in one mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It held.
    Passed,
    /// It did not run.
    Skipped(Skip),
    /// It panicked, with this message.
    Failed(String),
}

/// What [`run_all`] found, in the order of the checks.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Check, mode, and how it ended.
    pub outcomes: Vec<(&'static str, Mode, Outcome)>,
}

impl Report {
    /// Those that failed.
    pub fn failures(&self) -> impl Iterator<Item = &(&'static str, Mode, Outcome)> {
        self.outcomes.iter().filter(|o| matches!(o.2, Outcome::Failed(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, mode, outcome) in &self.outcomes {
            match outcome {
                Outcome::Passed => writeln!(f, "passed   {name} ({mode})")?,
                Outcome::Skipped(why) => writeln!(f, "skipped  {name} ({mode}): {} is missing", why.missing)?,
                Outcome::Failed(why) => writeln!(f, "FAILED   {name} ({mode}): {why}")?,
            }
        }
        Ok(())
    }
}

/// Runs every check in every mode.
pub fn run_all(rig: &mut dyn Rig) -> Report {
    let mut report = Report::default();
    for check in CHECKS {
        for mode in MODES {
            let outcome = match catch_unwind(AssertUnwindSafe(|| (check.run)(rig, mode))) {
                Ok(Ok(())) => Outcome::Passed,
                Ok(Err(skip)) => Outcome::Skipped(skip),
                Err(panic) => Outcome::Failed(
                    panic
                        .downcast_ref::<String>()
                        .cloned()
                        .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                        .unwrap_or_default(),
                ),
            };
            report.outcomes.push((check.name, mode, outcome));
        }
    }
    report
}

/// Runs the check of this name in every mode, and prints what was skipped.
///
/// # Panics
/// When the check does not hold, or there is none of this name.
pub fn run_one(rig: &mut dyn Rig, name: &str) {
    let check = CHECKS.iter().find(|c| c.name == name);
    let check = check.unwrap_or_else(|| panic!("there is no conformance check named {name}"));
    for mode in MODES {
        println!("{name} ({mode})");
        if let Err(skip) = (check.run)(rig, mode) {
            println!("  {skip}");
        }
    }
}

/// Makes a `#[test]` of every conformance check, for the transports of a [`Rig`] (an expression, evaluated per test).
#[macro_export]
macro_rules! transport_conformance {
    ($rig:expr) => { $crate::transport_conformance! { @list @tests $rig } };
    (@list @$how:ident $($rig:expr)?) => {
        $crate::transport_conformance! { @$how $($rig)?;
            delivery: every_size_arrives_whole,
            delivery: the_kth_send_matches_the_kth_receive,
            delivery: what_goes_at_once_keeps_its_place,
            delivery: tags_do_not_hold_each_other_up,
            delivery: groups_are_apart,
            delivery: random_traffic_between_all,
            delivery: stamps_and_lengths_are_compared,
            delivery: over_four_gib_arrive_whole,
            credit: a_full_queue_hands_the_operation_back,
            credit: sends_and_receives_have_their_own_credit,
            credit: both_directions_stream_at_once,
            credit: without_a_buffer_a_send_waits_for_its_match,
            credit: posts_that_cannot_be_are_refused,
            withdrawal: a_cancelled_send_leaves_the_tag_in_step,
            withdrawal: a_cancelled_receive_leaves_the_tag_in_step,
            withdrawal: cancel_at_every_stage,
            withdrawal: cancelling_what_is_over_does_nothing,
            withdrawal: a_retired_group_is_forgotten,
            loss: close_ends_everything_with_the_peer,
            loss: a_crash_at_every_point_is_noticed,
            loss: a_lost_peer_leaves_the_others_alone,
            loss: a_goodbye_comes_after_what_was_sent,
            loss: what_a_peer_said_last_is_told_before_its_end,
            loss: a_goodbye_fails_what_it_leaves_unserved,
            loss: leaving_flushes_what_is_queued,
            notes: notes_arrive_in_order_while_data_flows,
            notes: notes_are_bounded_and_refused_to_the_lost,
            notes: a_note_that_waits_for_a_connection_is_unsent,
            sleeping: a_wake_is_never_lost,
            sleeping: messages_rouse_a_sleeper,
            sleeping: nobody_sleeps_on_what_is_to_be_told,
            life: a_peer_may_send_before_it_is_introduced,
            life: addresses_are_checked_and_idempotent,
            life: caps_and_reasons_make_sense,
            life: pending_counts_what_has_not_matched,
            life: registration_changes_nothing_but_speed,
            life: warm_exchanges_allocate_nothing,
        }
    };
    (@tests $rig:expr; $($room:ident: $name:ident),+ $(,)?) => {$(
        #[test]
        fn $name() {
            $crate::transport::conformance::run_one(&mut $rig, stringify!($name));
        }
    )+};
    (@table; $($room:ident: $name:ident),+ $(,)?) => {
        &[$(Check { name: stringify!($name), run: $room::$name }),+]
    };
}

/// The suite.
pub const CHECKS: &[Check] = transport_conformance! { @list @table };
