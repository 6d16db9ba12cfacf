//! How near a network card has to be to an accelerator to read and write its memory by itself.
//!
//! The words are those of NCCL's `NCCL_NET_GDR_LEVEL`. What lies between the two decides how quick that is: through the
//! processor it is often slower than a copy to the host's memory, and across packages it mostly is.

use super::link::{Distance, Part, distance};
use super::machine::Machine;
use super::pci::PciAddress;

/// The farthest that a card may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// No card reaches an accelerator's memory (LOC).
    Never,
    /// Behind the same PCI switch (PIX).
    Switch,
    /// Behind PCI switches that hang together (PXB).
    #[default]
    Switches,
    /// On the same NUMA node, through the processor (PHB).
    Node,
    /// Wherever it is (SYS).
    Anywhere,
}

impl Reach {
    /// NCCL's words, nearest first.
    pub const WORDS: [&'static str; 5] = ["LOC", "PIX", "PXB", "PHB", "SYS"];

    const ALL: [Reach; 5] = [Reach::Never, Reach::Switch, Reach::Switches, Reach::Node, Reach::Anywhere];

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        Reach::WORDS[self as usize]
    }

    /// What a word says.
    #[must_use]
    pub fn of(word: &str) -> Option<Reach> {
        Reach::ALL.into_iter().find(|reach| reach.word() == word)
    }

    /// Whether a card at this distance may; `None` is a card that has no place in the machine, as one in software.
    #[must_use]
    pub fn admits(self, at: Option<Distance>) -> bool {
        let farthest = match self {
            Reach::Never => return false,
            Reach::Switch => Distance::Switch,
            Reach::Switches => Distance::Switches,
            Reach::Node => Distance::Node,
            Reach::Anywhere => return true,
        };
        at.is_some_and(|at| at <= farthest)
    }
}

/// A card that is farther away than it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooFar {
    /// The RDMA device's name.
    pub card: String,
    /// How far it is; `None` where the machine does not tell.
    pub at: Option<Distance>,
}

/// The first of these RDMA devices that is too far from the accelerator at `accelerator`. All of them carry the bytes of one
/// message, so one is too many.
#[must_use]
pub fn too_far(machine: &Machine, accelerator: PciAddress, cards: &[String], reach: Reach) -> Option<TooFar> {
    let far = |card: &String| {
        let known = machine.parts().infiniband.iter().find(|device| device.name == *card);
        let between = |pci| distance(machine, Part::Device(accelerator), Part::Device(pci));
        let at = known.and_then(|device| device.pci).and_then(between);
        (!reach.admits(at)).then(|| TooFar { card: card.clone(), at })
    };
    cards.iter().find_map(far)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back_and_each_admits_more_than_the_one_before() {
        let distances = [Distance::Switch, Distance::Switches, Distance::Node, Distance::Machine];
        for (index, reach) in Reach::ALL.into_iter().enumerate() {
            assert_eq!(Reach::of(reach.word()), Some(reach));
            let admitted = distances.iter().filter(|at| reach.admits(Some(**at))).count();
            assert_eq!(admitted, index, "{reach:?}");
            assert_eq!(reach.admits(None), reach == Reach::Anywhere);
        }
        assert_eq!((Reach::of("pix"), Reach::of("NODE"), Reach::default().word()), (None, None, "PXB"));
    }
}
