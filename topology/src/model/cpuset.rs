//! Sets of logical CPUs, in the kernel's two notations.

use std::fmt;
use std::str::FromStr;

use super::ids::clip;

/// CPUs are numbered below this. The largest Linux builds stop at 8,192; a text that names more is broken or
/// hostile, and would otherwise ask for memory in proportion to a number.
pub const CPU_LIMIT: u32 = 65_536;

const WORD_BITS: u32 = 64;

/// A set of logical CPUs (hardware threads) by the operating system's number.
///
/// I1: the last word is never zero, so equal sets are equal values.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    words: Vec<u64>,
}

impl CpuSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        CpuSet { words: Vec::new() }
    }

    /// The set of the given CPUs.
    ///
    /// # Errors
    /// When one is [`CPU_LIMIT`] or above.
    pub fn of(cpus: impl IntoIterator<Item = u32>) -> Result<Self, CpuSetError> {
        let mut set = CpuSet::new();
        for cpu in cpus {
            set.insert(cpu)?;
        }
        Ok(set)
    }

    /// Adds one CPU.
    ///
    /// # Errors
    /// When it is [`CPU_LIMIT`] or above.
    pub fn insert(&mut self, cpu: u32) -> Result<(), CpuSetError> {
        if cpu >= CPU_LIMIT {
            return Err(CpuSetError::TooLarge { cpu: u64::from(cpu) });
        }
        let word = (cpu / WORD_BITS) as usize;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu % WORD_BITS);
        Ok(())
    }

    /// Whether the CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.words.get((cpu / WORD_BITS) as usize).is_some_and(|word| word & (1 << (cpu % WORD_BITS)) != 0)
    }

    /// How many CPUs are in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The CPU with the lowest number.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// The CPU with the highest number.
    #[must_use]
    pub fn last(&self) -> Option<u32> {
        let word = *self.words.last()?;
        Some((self.words.len() as u32 - 1) * WORD_BITS + word.ilog2())
    }

    /// All CPUs, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            let base = index as u32 * WORD_BITS;
            std::iter::successors((word != 0).then_some(word), |left| {
                let left = left & (left - 1);
                (left != 0).then_some(left)
            })
            .map(move |left| base + left.trailing_zeros())
        })
    }

    /// What is in both.
    #[must_use]
    pub fn and(&self, other: &CpuSet) -> CpuSet {
        CpuSet::trimmed(self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect())
    }

    /// What is in either.
    #[must_use]
    pub fn or(&self, other: &CpuSet) -> CpuSet {
        let (long, short) = if self.words.len() >= other.words.len() { (self, other) } else { (other, self) };
        let mut words = long.words.clone();
        for (word, more) in words.iter_mut().zip(&short.words) {
            *word |= more;
        }
        CpuSet { words }
    }

    /// What is in this set and not in the other.
    #[must_use]
    pub fn minus(&self, other: &CpuSet) -> CpuSet {
        let mut words = self.words.clone();
        for (word, less) in words.iter_mut().zip(&other.words) {
            *word &= !less;
        }
        CpuSet::trimmed(words)
    }

    /// Whether every CPU of this set is in the other. The empty set is inside every set.
    #[must_use]
    pub fn inside(&self, other: &CpuSet) -> bool {
        self.minus(other).is_empty()
    }

    /// Whether the two share a CPU.
    #[must_use]
    pub fn meets(&self, other: &CpuSet) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// Reads the kernel's mask notation: groups of up to eight hexadecimal digits, highest first, joined by
    /// commas, as in `/sys/bus/pci/devices/*/local_cpus`.
    ///
    /// # Errors
    /// When the text is not such a mask or names a CPU of [`CPU_LIMIT`] or above.
    pub fn from_mask(text: &str) -> Result<Self, CpuSetError> {
        const GROUP_BITS: u32 = 32;
        let bad = || CpuSetError::Mask { text: clip(text) };
        let mut set = CpuSet::new();
        for (place, group) in text.trim().rsplit(',').enumerate() {
            if group.is_empty() || group.len() > 8 || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(bad());
            }
            let bits = u32::from_str_radix(group, 16).map_err(|_| bad())?;
            let base = place as u64 * u64::from(GROUP_BITS);
            for bit in (0..GROUP_BITS).filter(|bit| bits & (1 << bit) != 0) {
                let cpu = base + u64::from(bit);
                set.insert(u32::try_from(cpu).map_err(|_| CpuSetError::TooLarge { cpu })?)?;
            }
        }
        Ok(set)
    }

    fn trimmed(mut words: Vec<u64>) -> CpuSet {
        while words.last() == Some(&0) {
            words.pop();
        }
        CpuSet { words }
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Reads the kernel's list notation, as in `0-3,8`, with or without a stride (`0-15:2/4`: the first two of
    /// every four). A text of white space is the empty set.
    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let bad = || CpuSetError::List { text: clip(text) };
        let number = |digits: &str| -> Result<u32, CpuSetError> {
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(bad());
            }
            let cpu: u64 = digits.parse().map_err(|_| CpuSetError::TooLarge { cpu: u64::MAX })?;
            u32::try_from(cpu).ok().filter(|&cpu| cpu < CPU_LIMIT).ok_or(CpuSetError::TooLarge { cpu })
        };
        let mut set = CpuSet::new();
        if text.trim().is_empty() {
            return Ok(set);
        }
        for part in text.trim().split(',') {
            let (range, stride) = match part.trim().split_once(':') {
                Some((range, stride)) => (range, Some(stride.split_once('/').ok_or_else(bad)?)),
                None => (part.trim(), None),
            };
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (number(first)?, number(last)?);
            let (used, every) = match stride {
                Some((used, every)) => (number(used)?, number(every)?),
                None => (1, 1),
            };
            if last < first || used == 0 || every == 0 || used > every {
                return Err(bad());
            }
            for cpu in (first..=last).filter(|cpu| (cpu - first) % every < used) {
                set.insert(cpu)?;
            }
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    /// The kernel's list notation; `none` for the empty set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        if cpus.peek().is_none() {
            return f.write_str("none");
        }
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

/// A text that is not a set of CPUs, or a CPU that cannot exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetError {
    /// Not in list notation.
    #[error("{text:?} is not a list of CPUs: write numbers and ranges, for example 0-3,8")]
    List {
        /// The text given, cut to a printable length.
        text: String,
    },
    /// Not in mask notation.
    #[error(
        "{text:?} is not a CPU mask: write groups of up to eight hexadecimal digits, for example ff,ffffffff"
    )]
    Mask {
        /// The text given, cut to a printable length.
        text: String,
    },
    /// The number is [`CPU_LIMIT`] or above.
    #[error("CPU {cpu} cannot exist: CPUs are numbered below {CPU_LIMIT}")]
    TooLarge {
        /// The number given.
        cpu: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn lists_are_read_back_as_written() {
        for text in ["0", "0-3", "0-3,8", "1,3,5,63-64,127-130", "65535"] {
            assert_eq!(set(text).to_string(), text);
        }
        assert_eq!(set("0-15:2/4"), set("0-1,4-5,8-9,12-13"));
        assert_eq!(set(" 0-1,3 \n"), set("0,1,3"));
        assert_eq!(set("\n"), CpuSet::new());
        assert_eq!(CpuSet::new().to_string(), "none");
    }

    #[test]
    fn masks_and_lists_agree() {
        assert_eq!(CpuSet::from_mask("00000003").unwrap(), set("0-1"));
        assert_eq!(CpuSet::from_mask("f0,00000001\n").unwrap(), set("0,36-39"));
        assert_eq!(CpuSet::from_mask("0").unwrap(), CpuSet::new());
    }

    #[test]
    fn broken_and_hostile_texts_are_refused() {
        for text in
            ["a", "1-", "-1", "3-1", "0-4294967295", "65536", "0,,1", "0-3:1", "0-3:0/2", "0-3:3/2", "+1"]
        {
            assert!(text.parse::<CpuSet>().is_err(), "{text:?}");
        }
        for text in ["", "x", "123456789", "1,,2"] {
            assert!(CpuSet::from_mask(text).is_err(), "{text:?}");
        }
        let wide = format!("1{}", ",00000000".repeat(CPU_LIMIT as usize / 32));
        assert!(CpuSet::from_mask(&wide).is_err(), "a mask beyond the limit");
    }

    #[test]
    fn set_operations_keep_equal_sets_equal() {
        let (a, b) = (set("0-3,100"), set("2-5"));
        assert_eq!(a.and(&b), set("2-3"), "I1: the high word of the larger set is dropped");
        assert_eq!(a.or(&b), set("0-5,100"));
        assert_eq!(a.minus(&set("100")), set("0-3"), "I1");
        assert!(set("2-3").inside(&a) && !b.inside(&a) && CpuSet::new().inside(&a));
        assert!(a.meets(&b) && !a.meets(&set("50")));
        assert_eq!((a.len(), a.first(), a.last()), (5, Some(0), Some(100)));
        assert_eq!(a.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 100]);
    }
}
