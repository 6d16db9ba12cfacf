//! Byte counts as nccl-tests reads them (`8`, `64K`, `1M`, `2G`) and the sweep between two of them.

use ringway_control::settings::byte_count;

/// Reads a byte count: a number with an optional K, M or G (powers of 1,024), with or without `B` or `iB`.
///
/// # Errors
/// Says what was given and what is read.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    byte_count(text).ok_or_else(|| {
        format!("`{}` is no byte count: give a number, with K, M or G if wanted (8, 64K, 1G)", text.trim())
    })
}

/// How a sweep goes from its first size to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// Each size is the one before times this, at least 2.
    Factor(u64),
    /// Each size is the one before plus this many bytes, at least 1.
    Step(u64),
}

/// The sizes of a sweep, first to last, never empty.
pub(super) fn sweep(first: u64, last: u64, growth: Growth) -> Vec<u64> {
    let next = |size: &u64| match growth {
        Growth::Factor(f) => size.max(&1).checked_mul(f.max(2)),
        Growth::Step(s) => size.checked_add(s.max(1)),
    };
    std::iter::successors(Some(first), next).take_while(|size| *size <= last.max(first)).collect()
}

/// A byte count for people: `64K`, `8M`, `12`.
pub(super) fn show(bytes: u64) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_are_read_as_nccl_tests_reads_them() {
        assert_eq!(parse("8"), Ok(8));
        assert_eq!(parse("64K"), Ok(65536));
        assert_eq!(parse("1MiB"), Ok(1 << 20));
        assert_eq!(parse("2g"), Ok(2 << 30));
        for bad in ["", "K", "-1", "1T", "1.5M", "99999999999999999999", "18446744073709551615G"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for n in [0, 12, 1024, 3 << 20, 5 << 30] {
            assert_eq!(parse(&show(n)), Ok(n));
        }
    }

    #[test]
    fn sweeps_end_and_are_never_empty() {
        assert_eq!(sweep(8, 64, Growth::Factor(2)), [8, 16, 32, 64]);
        assert_eq!(sweep(0, 4, Growth::Factor(2)), [0, 2, 4]);
        assert_eq!(sweep(10, 5, Growth::Step(1)), [10]);
        assert_eq!(sweep(u64::MAX - 1, u64::MAX, Growth::Step(5)), [u64::MAX - 1]);
    }
}
