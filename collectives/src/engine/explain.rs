//! How a communicator would run calls, and what it is told about that.

#![forbid(unsafe_code)]

use super::communicator::Communicator;
use super::plan::{costs_for, here_for};
use crate::schedule::{
    Basis, Choice, Collective, Priced, Wanted, Why, choose, choose_alike, prices, prices_in_memory,
};

/// What a communicator would choose for one size of a collective.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// Hosts that its ranks are on.
    pub hosts: u32,
    /// The choice.
    pub choice: Choice,
    /// Every algorithm that exists here, with what it costs.
    pub prices: Vec<Priced>,
}

impl Communicator {
    /// What is chosen for `collective` over `bytes` bytes (all of one rank's chunks together, as
    /// [`choose`] counts them), and out of what. The same on all ranks.
    pub fn explain(&self, collective: Collective, bytes: u64) -> Explained {
        let mut core = self.owner.lock();
        let (options, caps) = (core.options.clone(), core.caps);
        let group = core.group(self.index);
        let wanted = group.wanted.unwrap_or(options.wanted);
        let costs = costs_for(bytes, &group.costs, &options, &caps);
        let basis = Basis { wanted, tuning: options.tuning.as_deref() };
        let here = here_for(bytes, group.here.as_ref(), group.arrangement.ranks(), &caps);
        let choice = match here {
            Some(here) => choose_alike(collective, &group.arrangement, bytes, (costs, here), basis),
            None => choose(collective, &group.arrangement, bytes, costs, basis),
        };
        Explained {
            hosts: group.arrangement.hosts(),
            choice: choice
                .unwrap_or_else(|| unreachable!("a group has ranks, and every collective an algorithm")),
            // By what it was chosen.
            prices: match (here, choice.map(|choice| choice.why)) {
                (Some(here), Some(Why::CheapestAlike)) => {
                    prices_in_memory(collective, &group.arrangement, bytes, here, &wanted).collect()
                }
                _ => prices(collective, &group.arrangement, bytes, costs, &wanted).collect(),
            },
        }
    }

    /// Runs the calls that follow by these algorithms, where they exist, whatever was asked for when the communicator was
    /// made. Every rank says the same between the same two calls: another algorithm is found as a mismatch.
    pub fn prefer(&self, wanted: Wanted) {
        self.owner.lock().group(self.index).prefer(wanted);
    }
}
