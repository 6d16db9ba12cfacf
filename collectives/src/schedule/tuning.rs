//! What `ringway tune` has measured: costs of links, and which algorithm is quickest at which size. A text that people
//! can read and change, one fact a line:
//!
//! ```text
//! ringway-tuning 2
//! # 4 ranks on 1 host, over shm
//! link inside latency_us=0.4 message_us=0.5 eager_message_us=0.2 bytes_per_us=9500 reduce_bytes_per_us=50000 offloaded=no
//! link between latency_us=10 message_us=10 eager_message_us=10 bytes_per_us=3000 reduce_bytes_per_us=50000 offloaded=no
//! core call_us=0.12 switch_us=1.8
//! width inside bytes=4194304 bytes_per_us=21000 reduce_bytes_per_us=60000
//! best all_reduce ranks=4 hosts=1 up_to_bytes=8192 algorithm=doubling slice_bytes=8192 slices_in_flight=2
//! best all_reduce ranks=4 hosts=1 up_to_bytes=max algorithm=ring slice_bytes=524288 slices_in_flight=2
//! ```
//!
//! Lines `best` hold for groups of just so many ranks and hosts, in order of their sizes; other groups are priced by the
//! links. Lines `width`, in order of their sizes, say what links inside hosts carry of vectors of one size, and how fast
//! ranks combine, beside moving it, what they take from where it lies: small ones lie in caches, large ones in memory. A
//! line `core` says what a call costs its rank beside its messages, and how long it takes until another rank of a shared
//! core runs. Simulations go by these; choices do not. A tuning is an input of the choice of algorithm, so all ranks of a
//! group must hold the same.

#![forbid(unsafe_code)]

use super::algorithm::{Algorithm, Collective};
use super::cost::{Costs, LinkCosts};
use std::fmt;
use std::str::FromStr;

/// The first line.
const HEAD: &str = "ringway-tuning 2";
/// The longest text, in bytes.
pub const TUNING_LIMIT_BYTES: usize = 16 << 10;

/// What is quickest for some sizes of a collective in groups of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Best {
    /// The collective.
    pub collective: Collective,
    /// Ranks of the group.
    pub ranks: u32,
    /// Hosts that they are on.
    pub hosts: u32,
    /// The largest size that it holds for, in bytes as [`choose`](super::choose) counts them.
    pub up_to_bytes: u64,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Bytes of every chunk that one slice covers, at least 1; where the formulas ask for larger slices, those are taken.
    pub slice_bytes: u64,
    /// Slices under way at a time; at least 1.
    pub slices_in_flight: u32,
}

/// What a link inside hosts carries, and ranks combine, of vectors of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Width {
    /// The whole vector of one rank, in bytes; at least 1.
    pub bytes: u64,
    /// Each way, as [`LinkCosts::bytes_per_us`].
    pub bytes_per_us: f64,
    /// As [`LinkCosts::reduce_bytes_per_us`], where it is taken from where it lies: what combining takes beside moving.
    pub reduce_bytes_per_us: f64,
}

/// What calls cost cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreCosts {
    /// What a call costs its rank beside its messages, in microseconds.
    pub call_us: f64,
    /// How long it takes until another rank of a core runs, in microseconds; `None` where no ranks shared one.
    pub switch_us: Option<f64>,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// What links cost.
    pub costs: Costs,
    core: Option<CoreCosts>,
    widths: Vec<Width>,
    best: Vec<Best>,
}

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}; `ringway tune` writes such a file")]
pub struct TuningError {
    /// Number of the line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

impl Tuning {
    /// These costs and choices; `None` unless those of one collective and shape stand in order of their sizes.
    pub fn new(costs: Costs, best: Vec<Best>) -> Option<Tuning> {
        let mut tuning = Tuning { costs, core: None, widths: Vec::new(), best: Vec::new() };
        best.into_iter().all(|best| tuning.add(best)).then_some(tuning)
    }

    /// The same with what was measured of vectors of some sizes; `None` unless those rise.
    #[must_use]
    pub fn with_widths(mut self, widths: Vec<Width>) -> Option<Tuning> {
        widths.into_iter().all(|width| self.add_width(width)).then_some(self)
    }

    /// The same with what calls cost cores.
    #[must_use]
    pub fn with_core(self, core: CoreCosts) -> Tuning {
        Tuning { core: Some(core), ..self }
    }

    /// What calls cost cores, where that was measured.
    pub fn core(&self) -> Option<CoreCosts> {
        self.core
    }

    /// What links cost where vectors are so long, by what was measured of shorter and longer ones; [`Tuning::costs`] where nothing
    /// was.
    pub fn costs_of(&self, bytes: u64) -> Costs {
        let Some(Width { bytes_per_us, .. }) = self.width_of(bytes) else { return self.costs };
        Costs { inside: LinkCosts { bytes_per_us, ..self.costs.inside }, ..self.costs }
    }

    /// How fast ranks of a host combine what they take from where it lies, beside moving it, of vectors so long.
    pub fn passing_bytes_per_us(&self, bytes: u64) -> Option<f64> {
        self.width_of(bytes).map(|width| width.reduce_bytes_per_us)
    }

    /// Between two sizes the straight line on logarithmic scales, beyond them the nearest.
    fn width_of(&self, bytes: u64) -> Option<Width> {
        let last = self.widths.last()?;
        let above = self.widths.iter().position(|width| width.bytes >= bytes);
        let upper = above.map_or(last, |at| &self.widths[at]);
        let lower = above.map_or(last, |at| &self.widths[at.saturating_sub(1)]);
        let (low, high) = ((lower.bytes as f64).ln(), (upper.bytes as f64).ln());
        let share = if high > low { (((bytes.max(1)) as f64).ln() - low) / (high - low) } else { 0.0 };
        let between = |a: f64, b: f64| (a.ln() + (b.ln() - a.ln()) * share.clamp(0.0, 1.0)).exp();
        Some(Width {
            bytes,
            bytes_per_us: between(lower.bytes_per_us, upper.bytes_per_us),
            reduce_bytes_per_us: between(lower.reduce_bytes_per_us, upper.reduce_bytes_per_us),
        })
    }

    fn add_width(&mut self, width: Width) -> bool {
        let fits = self.widths.last().is_none_or(|before| before.bytes < width.bytes);
        self.widths.push(width);
        fits
    }

    /// What is quickest for a size of a collective, where that was measured in a group of that shape.
    pub fn best(&self, collective: Collective, ranks: u32, hosts: u32, bytes: u64) -> Option<&Best> {
        self.best.iter().find(|best| {
            (best.collective, best.ranks, best.hosts) == (collective, ranks, hosts)
                && bytes <= best.up_to_bytes
        })
    }

    fn add(&mut self, best: Best) -> bool {
        let same = |other: &&Best| {
            (other.collective, other.ranks, other.hosts) == (best.collective, best.ranks, best.hosts)
        };
        let before = self.best.iter().rev().find(same);
        let fits = before.is_none_or(|before| before.up_to_bytes < best.up_to_bytes);
        self.best.push(best);
        fits
    }

    /// A number that differs where two of them do.
    pub fn digest(&self) -> u64 {
        self.to_string()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }
}

/// The fields of a line, each to be taken once.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn of(words: impl Iterator<Item = &'a str>) -> Result<Fields<'a>, String> {
        let field = |word: &'a str| word.split_once('=').ok_or_else(|| format!("{word:?} is not name=value"));
        words.map(field).collect::<Result<_, _>>().map(Fields)
    }

    fn take<T>(&mut self, name: &str, read: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let at = self.0.iter().position(|(n, _)| *n == name).ok_or_else(|| format!("{name}= is missing"))?;
        let (_, value) = self.0.remove(at);
        read(value).ok_or_else(|| format!("{name}={value} is out of range"))
    }

    fn done(self) -> Result<(), String> {
        self.0
            .first()
            .map_or(Ok(()), |(name, _)| Err(format!("{name}= means nothing here, or is there twice")))
    }
}

/// A finite number within these bounds.
fn between(least: f64, most: f64) -> impl Fn(&str) -> Option<f64> {
    move |text| text.parse().ok().filter(|number: &f64| (least..=most).contains(number))
}

/// A whole number of at least this.
fn at_least<T: FromStr + PartialOrd>(least: T) -> impl Fn(&str) -> Option<T> {
    move |text| text.parse().ok().filter(|number| *number >= least)
}

fn link<'a>(words: impl Iterator<Item = &'a str>) -> Result<LinkCosts, String> {
    let mut fields = Fields::of(words)?;
    let (time, speed) = (between(0.0, 1e9), between(1e-3, 1e9));
    let costs = LinkCosts {
        latency_us: fields.take("latency_us", &time)?,
        message_us: fields.take("message_us", &time)?,
        eager_message_us: fields.take("eager_message_us", &time)?,
        bytes_per_us: fields.take("bytes_per_us", &speed)?,
        reduce_bytes_per_us: fields.take("reduce_bytes_per_us", &speed)?,
        offloaded: fields.take("offloaded", |text| match text {
            "yes" => Some(true),
            "no" => Some(false),
            _ => None,
        })?,
    };
    fields.done().map(|()| costs)
}

fn core<'a>(words: impl Iterator<Item = &'a str>) -> Result<CoreCosts, String> {
    let mut fields = Fields::of(words)?;
    let time = between(0.0, 1e9);
    let call_us = fields.take("call_us", &time)?;
    let some = |text: &str| if text == "none" { Some(None) } else { time(text).map(Some) };
    let switch_us = fields.take("switch_us", some)?;
    fields.done().map(|()| CoreCosts { call_us, switch_us })
}

fn width<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Width, String> {
    if words.next() != Some("inside") {
        return Err("a width is inside (hosts)".to_owned());
    }
    let mut fields = Fields::of(words)?;
    let speed = between(1e-3, 1e9);
    let width = Width {
        bytes: fields.take("bytes", at_least(1))?,
        bytes_per_us: fields.take("bytes_per_us", &speed)?,
        reduce_bytes_per_us: fields.take("reduce_bytes_per_us", &speed)?,
    };
    fields.done().map(|()| width)
}

fn best<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Best, String> {
    let collective = words.next().ok_or("a collective is missing")?;
    let collective: Collective = collective.parse().map_err(|e| format!("{e}"))?;
    let mut fields = Fields::of(words)?;
    let best = Best {
        collective,
        ranks: fields.take("ranks", at_least(1))?,
        hosts: fields.take("hosts", at_least(1))?,
        up_to_bytes: fields
            .take("up_to_bytes", |text| if text == "max" { Some(u64::MAX) } else { text.parse().ok() })?,
        algorithm: fields.take("algorithm", |text| text.parse().ok())?,
        slice_bytes: fields.take("slice_bytes", at_least(1))?,
        slices_in_flight: fields.take("slices_in_flight", at_least(1))?,
    };
    if !collective.algorithms().contains(&best.algorithm) {
        return Err(format!("{collective} has no algorithm {}", best.algorithm));
    }
    fields.done().map(|()| best)
}

impl FromStr for Tuning {
    type Err = TuningError;

    fn from_str(text: &str) -> Result<Tuning, TuningError> {
        let wrong = |line: usize, why: String| TuningError { line, why };
        if text.len() > TUNING_LIMIT_BYTES {
            return Err(wrong(1, format!("the file is longer than {TUNING_LIMIT_BYTES} bytes")));
        }
        let mut tuning = Tuning::default();
        let mut seen = [false; 2];
        if text.lines().next().map(str::trim) != Some(HEAD) {
            return Err(wrong(1, format!("it is not {HEAD:?}")));
        }
        for (line, text) in (2..).zip(text.lines().skip(1)) {
            let mut words = text.split_whitespace();
            let found = match words.next() {
                None => Ok(()),
                Some(word) if word.starts_with('#') => Ok(()),
                Some("link") => match words.next() {
                    Some(which @ ("inside" | "between")) => {
                        let inside = which == "inside";
                        if std::mem::replace(&mut seen[usize::from(inside)], true) {
                            Err(format!("link {which} is there twice"))
                        } else {
                            link(words).map(|costs| match inside {
                                true => tuning.costs.inside = costs,
                                false => tuning.costs.between = costs,
                            })
                        }
                    }
                    _ => Err("a link is inside or between (hosts)".to_owned()),
                },
                Some("core") => core(words).and_then(|core| match tuning.core.replace(core) {
                    None => Ok(()),
                    Some(_) => Err("core is there twice".to_owned()),
                }),
                Some("width") => width(words).and_then(|width| match tuning.add_width(width) {
                    true => Ok(()),
                    false => Err("bytes is not above that of the width before it".to_owned()),
                }),
                Some("best") => best(words).and_then(|best| match tuning.add(best) {
                    true => Ok(()),
                    false => {
                        Err("up_to_bytes is not above that of the line before it for this collective"
                            .to_owned())
                    }
                }),
                Some(word) => Err(format!("{word:?} begins no line: link, core, width, best or # do")),
            };
            found.map_err(|why| wrong(line, why))?;
        }
        Ok(tuning)
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}")?;
        for (name, link) in [("inside", &self.costs.inside), ("between", &self.costs.between)] {
            let LinkCosts { latency_us, message_us, eager_message_us, .. } = link;
            let LinkCosts { bytes_per_us, reduce_bytes_per_us, offloaded, .. } = link;
            let offloaded = if *offloaded { "yes" } else { "no" };
            writeln!(
                f,
                "link {name} latency_us={latency_us} message_us={message_us} eager_message_us={eager_message_us} \
                 bytes_per_us={bytes_per_us} reduce_bytes_per_us={reduce_bytes_per_us} offloaded={offloaded}"
            )?;
        }
        if let Some(CoreCosts { call_us, switch_us }) = self.core {
            let switch_us = switch_us.map_or("none".to_owned(), |us| us.to_string());
            writeln!(f, "core call_us={call_us} switch_us={switch_us}")?;
        }
        for Width { bytes, bytes_per_us, reduce_bytes_per_us } in &self.widths {
            writeln!(
                f,
                "width inside bytes={bytes} bytes_per_us={bytes_per_us} reduce_bytes_per_us={reduce_bytes_per_us}"
            )?;
        }
        for best in &self.best {
            let up_to =
                if best.up_to_bytes == u64::MAX { "max".to_owned() } else { best.up_to_bytes.to_string() };
            writeln!(
                f,
                "best {} ranks={} hosts={} up_to_bytes={up_to} algorithm={} slice_bytes={} slices_in_flight={}",
                best.collective,
                best.ranks,
                best.hosts,
                best.algorithm.name().to_ascii_lowercase(),
                best.slice_bytes,
                best.slices_in_flight,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "ringway-tuning 2\n# measured\n\n\
        link inside latency_us=0.4 message_us=0.5 eager_message_us=0.2 bytes_per_us=9500 reduce_bytes_per_us=50000 offloaded=no\n\
        width inside bytes=1000 bytes_per_us=8000 reduce_bytes_per_us=1000\n\
        width inside bytes=100000 bytes_per_us=2000 reduce_bytes_per_us=1000\n\
        best all_reduce ranks=4 hosts=1 up_to_bytes=8192 algorithm=doubling slice_bytes=8192 slices_in_flight=2\n\
        best all_reduce ranks=4 hosts=1 up_to_bytes=max algorithm=ring slice_bytes=524288 slices_in_flight=2\n";

    #[test]
    fn a_tuning_is_read_back_as_written() {
        let tuning: Tuning = TEXT.parse().unwrap();
        assert_eq!(tuning.to_string().parse(), Ok(tuning.clone()));
        assert_eq!(tuning.costs.inside.bytes_per_us, 9500.0);
        assert_eq!(tuning.costs.between, Costs::default().between, "what is not said is as without a file");
        let best =
            |ranks, bytes| tuning.best(Collective::AllReduce, ranks, 1, bytes).map(|best| best.algorithm);
        assert_eq!(best(4, 8192), Some(Algorithm::Doubling));
        assert_eq!(best(4, 8193), Some(Algorithm::Ring));
        assert_eq!(best(3, 8), None);
        assert_ne!(tuning.digest(), Tuning::default().digest());
        assert_eq!(tuning.core(), None);
        for switch_us in [None, Some(1.8)] {
            let tuning = tuning.clone().with_core(CoreCosts { call_us: 0.12, switch_us });
            assert_eq!(tuning.to_string().parse(), Ok(tuning));
        }
    }

    #[test]
    fn links_carry_what_was_measured_of_vectors_of_that_size() {
        let tuning: Tuning = TEXT.parse().unwrap();
        let speed = |bytes| tuning.costs_of(bytes).inside.bytes_per_us.round();
        assert_eq!([0, 8, 1000, 10_000, 100_000, u64::MAX].map(speed), [8e3, 8e3, 8e3, 4e3, 2e3, 2e3]);
        assert_eq!(tuning.passing_bytes_per_us(8).map(f64::round), Some(1e3));
        assert_eq!(tuning.costs_of(8).inside.reduce_bytes_per_us, tuning.costs.inside.reduce_bytes_per_us);
        assert_eq!(tuning.costs_of(8).inside.latency_us, tuning.costs.inside.latency_us);
        assert_eq!(Tuning::default().costs_of(8), Costs::default());
        let width = |bytes| Width { bytes, bytes_per_us: 1.0, reduce_bytes_per_us: 1.0 };
        assert_eq!(Tuning::default().with_widths(vec![width(8), width(8)]), None);
        assert!(Tuning::default().with_widths(vec![width(8), width(9)]).is_some());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let with = |from: &str, to: &str| TEXT.replacen(from, to, 1).parse::<Tuning>().unwrap_err();
        for (from, to, line, why) in [
            ("ringway-tuning 2", "ringway-tuning 1", 1, "it is not"),
            ("# measured", "measured", 2, "begins no line"),
            ("link inside", "link outside", 4, "inside or between"),
            ("latency_us=0.4 ", "", 4, "latency_us= is missing"),
            ("latency_us=0.4", "latency_us=-1", 4, "out of range"),
            ("bytes_per_us=9500", "bytes_per_us=NaN", 4, "out of range"),
            ("offloaded=no", "offloaded=no more=1", 4, "more= means nothing"),
            ("bytes=100000 ", "bytes=1000 ", 6, "not above"),
            ("width inside", "width between", 5, "inside (hosts)"),
            (
                "width inside bytes=1000 bytes_per_us=8000 reduce_bytes_per_us=1000",
                "core call_us=1",
                5,
                "switch_us= is missing",
            ),
            ("algorithm=doubling", "algorithm=dissemination", 7, "no algorithm Dissemination"),
            ("slice_bytes=8192", "slice_bytes=0", 7, "out of range"),
            ("up_to_bytes=8192", "up_to_bytes=max", 8, "not above"),
            ("best all_reduce", "best all", 7, "unknown collective"),
        ] {
            let told = with(from, to);
            assert!(told.line == line && told.why.contains(why), "{to}: {told}");
        }
        assert!("".parse::<Tuning>().is_err());
        let long = format!("{TEXT}#{}", "x".repeat(TUNING_LIMIT_BYTES));
        assert!(long.parse::<Tuning>().unwrap_err().why.contains("longer"));
    }
}
