//! Operands that a rank gathers and then combines by itself, and in which order it does.
//!
//! How messages travel and in which order operands are combined are two things. A rank that has all operands can combine
//! them in the order of any other algorithm, and then ends with the same bits.

#![forbid(unsafe_code)]

use super::doubling::Active;

/// Where in an all-reduce or a reduce-scatter ranks combine what they have gathered: a schedule's chunks are then those of the
/// buffer, and after them one for each position, which takes the operand of the rank that stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gathered {
    /// After how many steps; the same number on all ranks.
    pub steps: u32,
    /// Chunks of the buffer: 1, where every rank combines all of it, or one for each position, which combines its own.
    pub chunks: u32,
    /// In which order they combine, unless another is asked for.
    pub order: Order,
}

impl Gathered {
    /// The chunk of the buffer that the rank at a position combines.
    pub const fn part(&self, position: u32) -> u32 {
        if self.chunks == 1 { 0 } else { position }
    }
}

/// In which order operands are combined, by the positions that they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// `((x0 op x1) op x2) op ...`
    Sequence,
    /// As recursive doubling does (I9): neighbours first, then neighbouring pairs, and so on; where positions are no power of
    /// two, those that doubling folds before all others.
    Doubling,
    /// As a reduce-scatter by recursive halving does (I9): those half of all apart first, then those a quarter apart, and so on.
    /// Of a power of two of positions.
    Halving,
}

/// One combination: what is held for the position `from` goes into what is held for `into`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bracket {
    /// Whose operand, with what it was combined with before, takes the result.
    pub into: u32,
    /// Whose operand, with what it was combined with before, is the other one.
    pub from: u32,
    /// Whether the other one stands on the left (I5).
    pub incoming_is_left: bool,
}

impl Order {
    /// The combinations of the operands of `positions` positions, one after another, so that the result ends where the operand
    /// of `own` was.
    pub fn brackets(self, positions: u32, own: u32) -> Vec<Bracket> {
        // By the lowest position of a run of combined operands: for which of its positions the result is held.
        let mut held: Vec<u32> = (0..positions).collect();
        let mut join = |low: u32, high: u32| {
            let (left, right) = (held[low as usize], held[high as usize]);
            let incoming_is_left = right == own;
            let (into, from) = if incoming_is_left { (right, left) } else { (left, right) };
            held[low as usize] = into;
            Bracket { into, from, incoming_is_left }
        };
        if positions == 0 || self == Order::Sequence {
            return (1..positions).map(|position| join(0, position)).collect();
        }
        if self == Order::Halving {
            let distances = std::iter::successors(Some(positions / 2), |half| Some(half / 2));
            let pairs = distances.take_while(|half| *half > 0).flat_map(|half| (0..half).zip(half..2 * half));
            return pairs.map(|(low, high)| join(low, high)).collect();
        }
        let active = Active::of(positions);
        let folded = (0..active.extra).map(|number| (2 * number, 2 * number + 1));
        let rounds = (0..active.rounds).flat_map(|round| {
            let pairs = (0..1u32 << active.rounds).step_by(2 << round);
            pairs.map(move |number| (active.rank(number), active.rank(number + (1 << round))))
        });
        folded.chain(rounds).map(|(low, high)| join(low, high)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the brackets make of operands, written out.
    fn written(order: Order, positions: u32, own: u32) -> String {
        let mut held: Vec<String> = (0..positions).map(|position| position.to_string()).collect();
        for Bracket { into, from, incoming_is_left } in order.brackets(positions, own) {
            let (a, b) = (&held[into as usize], &held[from as usize]);
            held[into as usize] = if incoming_is_left { format!("({b}+{a})") } else { format!("({a}+{b})") };
        }
        held.swap_remove(own as usize)
    }

    #[test]
    fn brackets_are_those_of_the_order_wherever_the_result_is_wanted() {
        let orders = [
            (Order::Sequence, 1, "0"),
            (Order::Sequence, 4, "(((0+1)+2)+3)"),
            (Order::Doubling, 1, "0"),
            (Order::Doubling, 2, "(0+1)"),
            (Order::Doubling, 3, "((0+1)+2)"),
            (Order::Doubling, 4, "((0+1)+(2+3))"),
            (Order::Doubling, 5, "(((0+1)+2)+(3+4))"),
            (Order::Doubling, 7, "(((0+1)+(2+3))+((4+5)+6))"),
            (Order::Doubling, 8, "(((0+1)+(2+3))+((4+5)+(6+7)))"),
            (Order::Halving, 1, "0"),
            (Order::Halving, 2, "(0+1)"),
            (Order::Halving, 4, "((0+2)+(1+3))"),
            (Order::Halving, 8, "(((0+4)+(2+6))+((1+5)+(3+7)))"),
        ];
        for (order, positions, expected) in orders {
            for own in 0..positions {
                assert_eq!(written(order, positions, own), expected, "{order:?} for position {own}");
            }
        }
        assert!(Order::Doubling.brackets(0, 0).is_empty() && Order::Sequence.brackets(0, 0).is_empty());
    }
}
