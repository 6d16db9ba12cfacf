//! A sender and a receiver over rails that are in order by themselves and know nothing of each other, seeded.

use super::*;
use crate::transport::seed::Seeded;

/// When the receiver believes an end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// As [`Ends`] says.
    Fences,
    /// When the frame comes, since all writes were acknowledged before it was sent.
    AtOnce,
    /// As [`Ends`] says, but for a rail that is taken down: that one counts as down at once.
    WithoutDraining,
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Write {
        message: usize,
        chunk: usize,
    },
    Fence(u32),
    /// The end of a message.
    End {
        message: usize,
        carried: u64,
    },
    /// The sender's end of a rail is down.
    RailDown(usize),
}

#[derive(Default)]
struct Wire {
    /// Not acknowledged.
    sent: VecDeque<Item>,
    /// Acknowledged by the receiver's device, and neither visible nor told.
    in_device: VecDeque<Item>,
    down_here: bool,
    down_there: bool,
    speaker: Speaker,
}

struct World {
    random: Seeded,
    rule: Rule,
    rails: Vec<Wire>,
    control: usize,
    chunks: Vec<usize>,
    /// Chunks that are to be posted, for the first time or again.
    to_post: Vec<(usize, usize)>,
    acknowledged: Vec<Vec<bool>>,
    carried: Vec<u64>,
    ended: Vec<bool>,
    visible: Vec<Vec<bool>>,
    believed: Vec<bool>,
    ends: Ends<usize>,
    /// The first invariant that did not hold.
    broken: Option<&'static str>,
}

impl World {
    fn new(seed: u64, rule: Rule) -> World {
        let mut random = Seeded::of(seed, 0, 0);
        let rails = 2 + random.below(MAX_RAILS as u64 - 1) as usize;
        let chunks: Vec<usize> = (0..6).map(|_| 1 + random.below(9) as usize).collect();
        let flags = || chunks.iter().map(|n| vec![false; *n]).collect::<Vec<_>>();
        let mut to_post = Vec::new();
        for (message, n) in chunks.iter().enumerate() {
            to_post.extend((0..*n).map(|chunk| (message, chunk)));
        }
        to_post.reverse();
        World {
            rails: (0..rails).map(|_| Wire::default()).collect(),
            control: 0,
            to_post,
            acknowledged: flags(),
            carried: vec![0; chunks.len()],
            ended: vec![false; chunks.len()],
            visible: flags(),
            believed: vec![false; chunks.len()],
            ends: Ends::new(),
            broken: None,
            random,
            rule,
            chunks,
        }
    }

    fn holds(&mut self, what: &'static str, holds: bool) {
        if !holds {
            self.broken.get_or_insert(what);
        }
    }

    fn pick(&mut self) -> usize {
        self.random.below(self.rails.len() as u64) as usize
    }

    fn post(&mut self) {
        let rail = self.pick();
        let free = !self.rails[rail].down_here && self.rails[rail].sent.len() < 6;
        if let Some((message, chunk)) = self.to_post.pop_if(|_| free) {
            self.rails[rail].sent.push_back(Item::Write { message, chunk });
            self.carried[message] |= 1 << rail;
        }
    }

    /// The receiver's device takes the next of a rail and acknowledges it.
    fn deliver(&mut self, rail: usize) {
        if self.rails[rail].down_there {
            return;
        }
        let Some(item) = self.rails[rail].sent.pop_front() else { return };
        self.rails[rail].in_device.push_back(item);
        match item {
            // A late packet of a rail that is down here, which is done again over others.
            Item::Write { message, chunk } if !self.rails[rail].down_here => {
                self.acknowledged[message][chunk] = true;
            }
            Item::Fence(_) => self.rails[rail].speaker.acknowledged(),
            _ => {}
        }
    }

    /// Says the ends of messages all of whose writes were acknowledged, and fences.
    fn say(&mut self) {
        for message in 0..self.chunks.len() {
            if !self.ended[message] && self.acknowledged[message].iter().all(|a| *a) {
                self.ended[message] = true;
                let carried = self.carried[message];
                for (r, wire) in self.rails.iter_mut().enumerate() {
                    if carried & 1 << r != 0 && r != self.control {
                        wire.speaker.name();
                    }
                }
                self.rails[self.control].sent.push_back(Item::End { message, carried });
            }
        }
        for wire in self.rails.iter_mut().filter(|w| !w.down_here) {
            if let Some(number) = wire.speaker.say() {
                assert!(wire.speaker.out <= FENCES, "E4");
                wire.sent.push_back(Item::Fence(number));
            }
        }
    }

    /// What the device of a rail tells next becomes visible.
    fn tell(&mut self, rail: usize) {
        let Some(item) = self.rails[rail].in_device.pop_front() else { return };
        match item {
            Item::Write { message, chunk } => {
                self.holds("E1, E2: no write into a place that was given back", !self.believed[message]);
                self.visible[message][chunk] = true;
            }
            Item::Fence(number) => {
                self.ends.fence(rail, number).expect("fences count on");
                assert!(self.rails[rail].speaker.given_back(1));
            }
            Item::End { message, carried } if self.rule == Rule::AtOnce => {
                let _ = carried;
                self.believe(message);
            }
            Item::End { message, carried } => self.ends.hold(message, carried, rail).unwrap(),
            Item::RailDown(down) => self.stop_there(down),
        }
        self.believe_all();
    }

    fn believe(&mut self, message: usize) {
        let before = std::mem::replace(&mut self.believed[message], true);
        self.holds("E3: once", !before);
        let there = self.visible[message].iter().all(|v| *v);
        self.holds("E1: not before the bytes are there", there);
    }

    fn believe_all(&mut self) {
        while let Some(message) = self.ends.next().unwrap() {
            self.believe(message);
        }
    }

    fn stop_there(&mut self, rail: usize) {
        if std::mem::replace(&mut self.rails[rail].down_there, true) {
            return;
        }
        match self.rule {
            Rule::WithoutDraining => self.ends.down(rail),
            _ => self.ends.stopping(rail),
        }
    }

    /// A rail that is stopped at the receiver has told all that had come in.
    fn drained(&mut self, rail: usize) {
        if self.rails[rail].down_there && self.rails[rail].in_device.is_empty() {
            self.ends.down(rail);
            self.believe_all();
        }
    }

    fn fail(&mut self, rail: usize) {
        let alive = self.rails.iter().filter(|r| !r.down_here).count();
        if alive < 2 || self.rails[rail].down_here {
            return;
        }
        self.rails[rail].down_here = true;
        for message in 0..self.chunks.len() {
            // Whatever was not acknowledged and was posted there is done again; late packets may come in as well.
            let again: Vec<usize> = self.rails[rail]
                .sent
                .iter()
                .filter_map(|item| match item {
                    Item::Write { message: of, chunk } if *of == message => Some(*chunk),
                    _ => None,
                })
                .collect();
            self.to_post.extend(again.into_iter().map(|chunk| (message, chunk)));
        }
        if rail != self.control {
            self.rails[self.control].sent.push_back(Item::RailDown(rail));
            return;
        }
        // Both sides stop it, take what had come in, and tell each other; what was not taken is said again.
        self.stop_there(rail);
        while !self.rails[rail].in_device.is_empty() {
            self.tell(rail);
        }
        self.drained(rail);
        self.control = self.rails.iter().position(|r| !r.down_here).unwrap();
        let untaken: Vec<Item> = self.rails[rail].sent.drain(..).collect();
        for item in untaken {
            if matches!(item, Item::End { .. } | Item::RailDown(_)) {
                self.rails[self.control].sent.push_back(item);
            }
        }
    }

    fn run(mut self) -> Result<(), &'static str> {
        let fails = self.random.below(3) == 0;
        let mut steps = 0;
        while !self.believed.iter().all(|b| *b) {
            steps += 1;
            self.holds("E1: each end is believed", steps < 100_000);
            if let Some(broken) = self.broken {
                return Err(broken);
            }
            let rail = self.pick();
            match self.random.below(if fails { 41 } else { 40 }) {
                0..10 => self.post(),
                10..20 => self.deliver(rail),
                20..28 => self.say(),
                28..38 => self.tell(rail),
                38..40 => self.drained(rail),
                _ => self.fail(rail),
            }
        }
        assert!(self.ends.is_empty());
        self.broken.map_or(Ok(()), Err)
    }
}

#[test]
fn an_end_never_overtakes_the_bytes_of_another_rail() {
    // E1, E2, E3
    for seed in 0..3000 {
        assert_eq!(World::new(seed, Rule::Fences).run(), Ok(()), "seed {seed}");
    }
}

#[test]
fn weaker_rules_are_found_out() {
    let found = [Rule::AtOnce, Rule::WithoutDraining]
        .map(|rule| (0..3000).filter(|seed| World::new(*seed, rule).run().is_err()).count());
    assert!(found.iter().all(|n| *n > 0), "{found:?}");
}

#[test]
fn numbers_go_round() {
    let mut speaker = Speaker { named: FENCE_BIT - 2, said: FENCE_BIT - 2, ..Speaker::default() };
    let mut ends = Ends::new();
    ends.rails[1] = Heard { state: State::Up, named: FENCE_BIT - 2, fence: FENCE_BIT - 2 };
    for k in 0..5 {
        speaker.name();
        ends.hold(k, 0b11, 0).unwrap();
        assert_eq!(ends.next(), Ok(None));
        let number = speaker.say().unwrap();
        assert_eq!(number_of(immediate(number)), Some(number));
        ends.fence(1, number).unwrap();
        assert_eq!(ends.next(), Ok(Some(k)));
        assert_eq!(ends.fence(1, number), Err(EndError::Fence { rail: 1 }));
        speaker.acknowledged();
        assert!(speaker.given_back(1) && speaker.is_quiet());
    }
    assert_eq!(number_of(8191), None);
}

#[test]
fn one_fence_stands_for_all_before_it() {
    // E4
    let (mut speaker, mut ends) = (Speaker::default(), Ends::new());
    for k in 0..3 * FENCES {
        speaker.name();
        ends.hold(k, 0b110, 1).unwrap();
        if let Some(number) = speaker.say() {
            ends.fence(2, number).unwrap();
        }
    }
    assert!(speaker.is_due() && !speaker.is_quiet());
    let mut believed = 0..FENCES;
    while let Some(k) = ends.next().unwrap() {
        assert_eq!(Some(k), believed.next());
    }
    assert!(!speaker.given_back(FENCES + 1));
    ends.fence(2, speaker.say().unwrap()).unwrap();
    assert_eq!(std::iter::from_fn(|| ends.next().unwrap()).count(), 2 * FENCES as usize);
}

#[test]
fn what_a_broken_device_had_taken_is_not_believed() {
    // E1
    let mut ends = Ends::new();
    ends.hold('a', 0b10, 0).unwrap();
    ends.fence(1, 1).unwrap();
    ends.broken(1);
    assert_eq!(ends.next(), Ok(Some('a')));
    ends.hold('b', 0b10, 0).unwrap();
    assert_eq!(ends.next(), Err(EndError::Broken { rail: 1 }));
    for _ in 1..MAX_HELD {
        ends.hold('c', 0b10, 0).unwrap();
    }
    assert_eq!(ends.hold('d', 0b10, 0), Err(EndError::TooMany));
    assert_eq!(ends.fence(9, 1), Err(EndError::Fence { rail: 9 }));
}
