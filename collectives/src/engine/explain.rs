//! How a communicator would run calls, and what it is told about that.

#![forbid(unsafe_code)]

use super::communicator::Communicator;
use super::plan::{at_once_sliced, costs_for, here_for};
use crate::schedule::{
    Basis, Choice, Collective, Priced, Wanted, Why, choose, choose_alike, estimate_in_memory,
    estimate_over_hosts, prices,
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
        let options = core.options.clone();
        let group = core.group(self.index);
        let wanted = group.wanted.unwrap_or(options.wanted);
        let costs = &costs_for(collective, bytes, &group.costs, &options);
        let basis = Basis { wanted, tuning: options.tuning.as_deref() };
        let here = here_for(collective, bytes, group.here.as_ref(), group.arrangement.ranks());
        let choice = match here {
            Some(here) => choose_alike(collective, &group.arrangement, bytes, (costs, here), basis),
            None => choose(collective, &group.arrangement, bytes, costs, basis),
        };
        let choice =
            choice.unwrap_or_else(|| unreachable!("a group has ranks, and every collective an algorithm"));
        // By what it was chosen.
        let here = here.filter(|_| choice.why == Why::CheapestAlike);
        let prices = prices(collective, &wanted, |algorithm| match here {
            Some(here) => estimate_in_memory(collective, algorithm, group.arrangement.ranks(), bytes, here),
            None => estimate_over_hosts(collective, algorithm, &group.arrangement, bytes, costs),
        });
        let of_pair = group.shares_memory && group.size() == 2 && collective == Collective::AllReduce;
        let choice = if of_pair { at_once_sliced(choice, bytes) } else { choice };
        Explained { hosts: group.arrangement.hosts(), choice, prices: prices.collect() }
    }

    /// Runs the calls that follow by these algorithms, where they exist, whatever was asked for when the communicator was
    /// made. Every rank says the same between the same two calls: another algorithm is found as a mismatch.
    pub fn prefer(&self, wanted: Wanted) {
        self.owner.lock().group(self.index).prefer(wanted);
    }
}
