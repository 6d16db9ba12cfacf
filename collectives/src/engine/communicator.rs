//! What users hold: a rank's membership in a group, over an endpoint that other communicators share.

#![forbid(unsafe_code)]

use super::core::Core;
use super::error::{CollectiveError, InvalidCall};
use super::group::{Group, GroupInfo, Last, Member};
use super::options::EngineOptions;
use super::plan::{Plan, Request};
use super::recorder::Record;
use super::shared::{Guard, Owner, Reporter, Shared};
use crate::schedule::Algorithm;
use ringway_dataplane::memory::{Buffer, Element};
use ringway_dataplane::transport::Transport;

/// Turns that are made, at most, to get bad news on its way before a call returns, and by who only looks.
const FLUSH_TURNS: u32 = 64;

/// A group of ranks, and this process's place in it.
///
/// Calls block their thread until this rank's part is done, except for the `*_start` forms. All ranks of a group make
/// the same collective calls in the same order. Threads may share a communicator, if together they keep that order.
/// Dropping it lets started calls end; dropping the last one of an endpoint says goodbye to all peers.
pub struct Communicator {
    pub(super) owner: Owner,
    pub(super) index: usize,
    pub(super) rank: u32,
    pub(super) members: std::sync::Arc<[Member]>,
    id: u32,
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(group {}, rank {} of {})", self.id, self.rank, self.members.len())
    }
}

/// How a communicator ran its last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The algorithm; `None` for a point-to-point message.
    pub algorithm: Option<Algorithm>,
    /// Slices that the call was cut into.
    pub slices: u32,
    /// Slices under way at a time.
    pub slices_in_flight: u32,
    /// Bytes of the longest message of one chunk.
    pub slice_bytes: usize,
}

impl Choice {
    pub(super) fn of(plan: &Plan) -> Choice {
        Choice {
            algorithm: plan.algorithm,
            slices: plan.layout.slices,
            slices_in_flight: plan.lanes,
            slice_bytes: plan.layout.longest_bytes(1),
        }
    }
}

impl Communicator {
    /// A communicator over `transport`, to which every other member's peer has been introduced by
    /// [`Transport::connect`].
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`] when the group is not well-formed, or the process is out of file descriptors.
    pub fn new(
        transport: Box<dyn Transport>,
        group: GroupInfo,
        options: EngineOptions,
    ) -> Result<Communicator, CollectiveError> {
        let rank = group.my_rank;
        let invalid = |why| CollectiveError::Invalid { rank, call: "Communicator::new", why };
        let spin = options.spin.here(local_ranks(&group));
        let core = Core::new(transport, options);
        let shared = Shared::new(core, spin).map_err(|e| {
            let why =
                format!("a file descriptor to sleep on ({e}): raise the limit on open files (ulimit -n)");
            invalid(InvalidCall::System(why))
        })?;
        Communicator::join(Owner::new(shared), group)
    }

    /// Another communicator on the same endpoint, for a group that was agreed on elsewhere.
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`] when the group is not well-formed, or its id is in use here.
    pub fn with_group(&self, group: GroupInfo) -> Result<Communicator, CollectiveError> {
        Communicator::join(self.owner.clone(), group)
    }

    pub(super) fn join(owner: Owner, info: GroupInfo) -> Result<Communicator, CollectiveError> {
        let (id, rank) = (info.id, info.my_rank);
        let invalid = |why| CollectiveError::Invalid { rank, call: "Communicator::new", why };
        let members: std::sync::Arc<[Member]> = info.members.clone().into();
        let group = Group::new(info).map_err(invalid)?;
        let mut core = owner.lock();
        if core.groups.iter().flatten().any(|g| g.info.id == id) {
            return Err(invalid(InvalidCall::Group(format!("its id, {id}, is in use"))));
        }
        let index = core.add_group(group);
        drop(core);
        Ok(Communicator { owner, index, rank, members, id })
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// The group's id on the wire.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// All members, in rank order.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// A zeroed buffer of `len` elements, registered with the transports: what started calls take.
    ///
    /// # Errors
    /// [`CollectiveError::Memory`].
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Buffer<T>, CollectiveError> {
        let memory = |why| CollectiveError::Memory { rank: self.rank, call: "alloc", why };
        let pool = self.owner.lock().options.pool.clone();
        let (region, claim) = pool.alloc::<T>(len).map_err(memory)?.into_region();
        // Unregistered memory works as well, only slower.
        let _ = self.owner.lock().transport.register(&region);
        Ok(claim.redeem(region).unwrap_or_else(|| unreachable!("nothing was lent")))
    }

    /// Ends the communicator on all ranks: every pending and later call answers
    /// [`CollectiveError::Aborted`] with `message`.
    pub fn abort(&self, message: impl Into<String>) {
        let mut core = self.owner.lock();
        core.abort(self.index, message.into());
        self.owner.tell(&mut core);
    }

    /// Why the communicator is dead, if it is.
    pub fn failure(&self) -> Option<CollectiveError> {
        self.owner.lock().check(self.index).err()
    }

    /// For other threads, to report lost peers and to abort.
    pub fn reporter(&self) -> Reporter {
        self.owner.reporter()
    }

    /// Moves all calls of the endpoint on as far as they go without waiting, this communicator's and those that share its
    /// connections. Returns whether started ones are still under way: `while comm.progress()? { piece() }` computes piece by piece
    /// under communication. It is what moves them on where [`Progress::Caller`](super::Progress) is set, and the ends of messages that a
    /// full socket did not take from calls that are over; it does no harm elsewhere.
    ///
    /// # Errors
    /// Why the communicator is dead, if it is, as its handles tell too.
    pub fn progress(&self) -> Result<bool, CollectiveError> {
        let mut core = self.owner.lock();
        self.owner.pass(&mut core);
        match core.check(self.index) {
            Ok(()) => Ok(core.started > 0),
            // Written down before anybody is told.
            Err(dead) => {
                drop(self.owner.write_down(core));
                Err(dead)
            }
        }
    }

    /// How the last call on this communicator was run.
    pub fn last_choice(&self) -> Option<Choice> {
        match &self.owner.lock().group(self.index).last {
            Last::None => None,
            Last::Planned(plan) => Some(Choice::of(plan)),
            Last::AtOnce { bytes } => {
                Some(Choice { algorithm: None, slices: 1, slices_in_flight: 1, slice_bytes: *bytes })
            }
        }
    }

    /// How a rank is reached and why so, in one line; `None` for this rank, and before any connection.
    pub fn route(&self, rank: u32) -> Option<String> {
        let member = self.members.get(rank as usize).filter(|_| rank != self.rank)?;
        self.owner.lock().transport.why(member.peer)
    }

    /// Name of the transport.
    pub fn transport_name(&self) -> &'static str {
        self.owner.lock().caps.name
    }

    /// The last calls on this endpoint, oldest first, with those under way: the flight recorder.
    pub fn recorded(&self) -> Vec<Record> {
        self.owner.lock().recorder.records()
    }

    pub(super) fn size_usize(&self) -> usize {
        self.members.len()
    }

    /// Refuses a call for its arguments. It counts as a call all the same, and other ranks that made it are told.
    pub(super) fn refuse(&self, call: &'static str, request: &Request, why: InvalidCall) -> CollectiveError {
        let mut core = self.owner.lock();
        if let Err(dead) = core.check(self.index) {
            return dead;
        }
        let error = CollectiveError::Invalid { rank: self.rank, call, why };
        core.refuse(self.index, request, &error);
        self.owner.tell(&mut core);
        error
    }
}

/// Polls for as long as something moves, so that notes which were just written are on their way. Returns whether anything did.
pub(super) fn flush(core: &mut Guard<'_>) -> bool {
    let turns = (0..FLUSH_TURNS).take_while(|_| core.turn()).count();
    turns > 0
}

/// Members on this rank's host.
fn local_ranks(group: &GroupInfo) -> usize {
    let mine = group.members.get(group.my_rank as usize).map(|m| &m.host);
    group.members.iter().filter(|m| Some(&m.host) == mine).count()
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // The others would only hear a goodbye, and wonder.
        if std::thread::panicking() {
            self.abort("it panicked; its standard error says where");
        }
        self.owner.lock().close(self.index);
    }
}
