//! The wire: members, the two directions between each pair, and how a pair ends.

use super::channel::{Direction, Limits, Out};
use super::{Loopback, LoopbackConfig};
use crate::transport::contract::{Address, Transport};
use crate::transport::op::{Cause, CauseKind, Event, Peer};
use crate::transport::seed::Seeded;
use crate::transport::wake::Waker;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks, short of an allocation failure, which aborts.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What others know of a member.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) index: u32,
    pub(super) name: Peer,
    pub(super) waker: Waker,
    pub(super) inbox: Mutex<Vec<Event>>,
    pub(super) attention: AtomicBool,
    pub(super) asleep: AtomicBool,
    pub(super) gone: AtomicBool,
}

impl Member {
    /// Takes over what is to be told here. Called with the direction locked (L4).
    pub(super) fn hand_over(&self, events: &mut Vec<Event>) {
        if !events.is_empty() {
            lock(&self.inbox).append(events);
            self.rouse();
        }
    }

    /// There is something to poll (L5).
    pub(super) fn rouse(&self) {
        self.attention.store(true, Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) state: Mutex<Direction>,
    /// The receiver has something to look at here.
    pub(super) dirty: AtomicBool,
}

/// Two members, lower index first, and the two directions between them.
#[derive(Debug)]
pub(super) struct Pair {
    members: [Arc<Member>; 2],
    /// `up`: from the lower index to the higher.
    up: Channel,
    down: Channel,
}

impl Pair {
    /// The directions as seen by `me`: towards the other member, and from it.
    pub(super) fn seen_by(&self, me: &Member) -> (&Channel, &Channel) {
        if me.index == self.members[0].index { (&self.up, &self.down) } else { (&self.down, &self.up) }
    }

    pub(super) fn other(&self, me: &Member) -> &Arc<Member> {
        &self.members[usize::from(me.index == self.members[0].index)]
    }

    /// Ends both directions. Each cause is in the words for that member. Whether this call was the one that did.
    fn sever(&self, at_low: &Cause, at_high: &Cause) -> bool {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        {
            // Always in this order, so two that sever at once do not lock each other out.
            let mut up = lock(&self.up.state);
            let mut down = lock(&self.down.state);
            if up.sender_end.is_some() || down.sender_end.is_some() {
                return false;
            }
            up.end(at_low, at_high, &mut Out { sender: &mut low, receiver: &mut high });
            down.end(at_high, at_low, &mut Out { sender: &mut high, receiver: &mut low });
            // Handed over under the locks (L4).
            low.extend(up.receiver_name.map(|peer| Event::Lost { peer, cause: at_low.clone() }));
            high.extend(down.receiver_name.map(|peer| Event::Lost { peer, cause: at_high.clone() }));
            lock(&self.members[0].inbox).append(&mut low);
            lock(&self.members[1].inbox).append(&mut high);
        }
        self.members.iter().for_each(|m| m.rouse());
        true
    }

    /// The causes in the order that `sever` takes them.
    pub(super) fn sever_at(&self, me: &Member, mine: Cause, theirs: Cause) -> bool {
        if me.index == self.members[0].index {
            self.sever(&mine, &theirs)
        } else {
            self.sever(&theirs, &mine)
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    members: Vec<Arc<Member>>,
    pairs: HashMap<(u32, u32), Arc<Pair>>,
}

#[derive(Debug)]
struct HubState {
    id: u64,
    config: LoopbackConfig,
    table: Mutex<Table>,
}

/// The in-process wire. Cheap to clone; clones are the same hub.
#[derive(Clone, Debug)]
pub struct Hub {
    state: Arc<HubState>,
}

impl Hub {
    /// A hub without members.
    pub fn new(config: LoopbackConfig) -> Hub {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let config = LoopbackConfig { depth: config.depth.max(1), ..config };
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Hub { state: Arc::new(HubState { id, config, table: Mutex::default() }) }
    }

    pub(super) fn id(&self) -> u64 {
        self.state.id
    }

    pub(super) fn config(&self) -> &LoopbackConfig {
        &self.state.config
    }

    pub(super) fn member(&self, index: u32) -> Option<Arc<Member>> {
        lock(&self.state.table).members.get(index as usize).cloned()
    }

    /// A new member. `name` is what [`Hub::kill`] and messages call it; a name that joins again is a new member under a
    /// new address, as a restarted process is.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    pub fn join(&self, name: Peer) -> std::io::Result<Loopback> {
        let waker = Waker::new()?;
        let mut table = lock(&self.state.table);
        let index = table.members.len() as u32;
        let me = Arc::new(Member {
            index,
            name,
            waker,
            inbox: Mutex::default(),
            attention: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        });
        table.members.push(Arc::clone(&me));
        let random = Seeded::of(self.state.config.seed, u64::from(index), u64::MAX);
        Ok(Loopback::of(self.clone(), me, random))
    }

    /// Members named 0 to `n` - 1, each introduced to all the others.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    ///
    /// # Panics
    /// When `n` is over [`MAX_PEER`](super::MAX_PEER).
    pub fn group(&self, n: u32) -> std::io::Result<Vec<Loopback>> {
        let mut members = (0..n).map(|i| self.join(Peer(i))).collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<Address> = members.iter().map(Transport::address).collect();
        for (i, member) in members.iter_mut().enumerate() {
            for (j, address) in addresses.iter().enumerate().filter(|(j, _)| *j != i) {
                let connected = member.connect(Peer(j as u32), address);
                assert!(connected.is_ok(), "{connected:?}");
            }
        }
        Ok(members)
    }

    /// Ends every member of this name as a crash would: the others see it lost, and so does it them.
    pub fn kill(&self, name: Peer) {
        let members: Vec<Arc<Member>> =
            lock(&self.state.table).members.iter().filter(|m| m.name == name).cloned().collect();
        for m in members {
            self.drop_out(&m, &format!("peer {} was killed", name.0));
        }
    }

    /// Severs a member from all others.
    pub(super) fn drop_out(&self, me: &Member, evidence: &str) {
        me.gone.store(true, Ordering::SeqCst);
        for pair in self.forget_pairs(me) {
            let mine = Cause::new(CauseKind::Reset, evidence);
            pair.sever_at(me, mine, Cause::new(CauseKind::Closed, evidence));
        }
    }

    /// Takes a member's pairs out of the table, in the order of their other ends.
    pub(super) fn forget_pairs(&self, me: &Member) -> Vec<Arc<Pair>> {
        let mut pairs: Vec<Arc<Pair>> = Vec::new();
        lock(&self.state.table).pairs.retain(|ends, pair| {
            let keep = ends.0 != me.index && ends.1 != me.index;
            if !keep {
                pairs.push(Arc::clone(pair));
            }
            keep
        });
        pairs.sort_by_key(|p| p.other(me).index);
        pairs
    }

    pub(super) fn pair(&self, a: &Arc<Member>, b: &Arc<Member>) -> Arc<Pair> {
        let (low, high) = if a.index < b.index { (a, b) } else { (b, a) };
        let config = self.state.config;
        let limits =
            Limits { eager_bytes: config.eager_bytes, depth: config.depth as usize, reorder: config.reorder };
        let channel = |from: &Member, to: &Member| Channel {
            state: Mutex::new(Direction::new(
                limits,
                Seeded::of(config.seed, u64::from(from.index), u64::from(to.index)),
            )),
            dirty: AtomicBool::new(false),
        };
        let make = || {
            Arc::new(Pair {
                members: [Arc::clone(low), Arc::clone(high)],
                up: channel(low, high),
                down: channel(high, low),
            })
        };
        Arc::clone(lock(&self.state.table).pairs.entry((low.index, high.index)).or_insert_with(make))
    }
}
