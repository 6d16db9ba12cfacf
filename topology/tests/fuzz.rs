//! Descriptions of machines in XML, on mutations of recorded ones: none panics, and what is read can be placed on.
//!
//! Some rounds run in the test command; `FUZZ_SECONDS=600 cargo test --release -p ringway-topology --test fuzz` goes on for
//! that long. A failure prints the round's seed; `FUZZ_SEED=n` begins with it.

mod recorded;

use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use recorded::{fixture, placed};
use ringway_topology::host::from_xml;

/// Rounds without `FUZZ_SECONDS`.
const ROUNDS: u64 = 300;
/// What an attribute may be said to be.
const ODD: [&str; 12] = [
    "",
    "-1",
    "0",
    "x",
    "0x0",
    "4294967296",
    "99999999999999999999",
    "0xffffffff,0xffffffff",
    "0xf...f",
    "ffff:ff:ff.f",
    "Machine",
    "&lt;",
];

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`; 0 where `n` is 0.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A description with values of attributes exchanged, elements left out or repeated, or bytes changed.
fn mutated(random: &mut Random, samples: &[String]) -> String {
    let mut text = samples[random.below(samples.len())].clone();
    for _ in 0..=random.below(4) {
        match random.below(4) {
            0 | 1 => {
                let values: Vec<(usize, usize)> = text
                    .match_indices("=\"")
                    .filter_map(|(at, _)| Some((at + 2, at + 2 + text[at + 2..].find('"')?)))
                    .collect();
                let Some(&(from, to)) = values.get(random.below(values.len())) else { continue };
                let (other_from, other_to) = values[random.below(values.len())];
                let other = text[other_from..other_to].to_owned();
                let new = if random.below(2) == 0 { other.as_str() } else { ODD[random.below(ODD.len())] };
                text.replace_range(from..to, new);
            }
            2 => {
                let mut lines: Vec<&str> = text.lines().collect();
                let at = random.below(lines.len());
                let line = lines.get(random.below(lines.len())).copied().unwrap_or_default();
                match random.below(3) {
                    0 if !lines.is_empty() => drop(lines.remove(at)),
                    1 => lines.insert(at, line),
                    _ => lines.truncate(at),
                }
                text = lines.join("\n");
            }
            _ => {
                let mut bytes = text.into_bytes();
                let at = random.below(bytes.len());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
                text = String::from_utf8_lossy(&bytes).into_owned();
            }
        }
    }
    text
}

#[test]
fn machines_in_xml() {
    let samples = [fixture("virtual-machine.xml"), fixture("gpu-box.xml")];
    let first = variable("FUZZ_SEED").unwrap_or(1);
    let until = variable("FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (mut seed, mut read) = (first, 0);
    while until.map_or(seed < first + ROUNDS, |until| Instant::now() < until) {
        let text = mutated(&mut Random(seed), &samples);
        let round = || match from_xml(&text) {
            Ok(machine) => {
                // At least one CPU is allowed on a machine that was read.
                assert_eq!(placed(&machine, 3).len(), 3);
                true
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        };
        match catch_unwind(round) {
            Ok(is_machine) => read += u64::from(is_machine),
            Err(panic) => {
                println!("machines in XML: FUZZ_SEED={seed}:\n{text}");
                std::panic::resume_unwind(panic);
            }
        }
        seed += 1;
    }
    println!("machines in XML: {} rounds, of which {read} gave a machine", seed - first);
    assert!(first != 1 || read > 0, "no mutation could be read");
}
