//! The grammar of `RINGWAY_IB_HCA`, which is NCCL's.
//!
//! ```text
//! filter = [ "^" ] [ "=" ] entry *( "," entry )
//! entry  = device [ ":" port ]
//! ```
//! Devices are prefixes, or whole names after `=`; without a port, all of its ports are meant. `^` turns the list into
//! one of ports to leave out: `mlx5` is every device whose name begins so, `=mlx5_0:1` that port alone, `^=mlx5_3` all
//! but that device.

use std::fmt;
use std::str::FromStr;

/// Longest name that the kernel gives a device, in bytes.
pub const MAX_NAME_BYTES: usize = 63;

/// A list of devices and ports to use, or to leave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcaFilter {
    exclude: bool,
    exact: bool,
    entries: Vec<(String, Option<u8>)>,
}

/// Text that is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` names no RDMA device ({why}): write e.g. mlx5, =mlx5_0:1, mlx5_0,mlx5_1:2 or ^=mlx5_3")]
pub struct BadHcaFilter {
    /// What was given.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl HcaFilter {
    /// Whether the list is one of ports to leave out.
    pub fn excludes(&self) -> bool {
        self.exclude
    }

    /// Whether the filter lets this port of this device through.
    pub fn admits(&self, device: &str, port: u8) -> bool {
        let named = |name: &str| if self.exact { device == name } else { device.starts_with(name) };
        let listed = self.entries.iter().any(|(name, p)| named(name) && p.is_none_or(|p| p == port));
        listed != self.exclude
    }
}

impl FromStr for HcaFilter {
    type Err = BadHcaFilter;

    fn from_str(text: &str) -> Result<HcaFilter, BadHcaFilter> {
        let bad = |why| BadHcaFilter { text: text.to_owned(), why };
        let rest = text.trim();
        let (exclude, rest) = rest.strip_prefix('^').map_or((false, rest), |r| (true, r));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |r| (true, r));
        let mut entries = Vec::new();
        for entry in rest.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (name, port) = match entry.split_once(':') {
                None => (entry, None),
                Some((name, port)) => {
                    let number = port.parse::<u8>().ok().filter(|number| *number > 0);
                    (name, Some(number.ok_or_else(|| bad("a port is a number from 1 to 255"))?))
                }
            };
            if name.is_empty() || name.len() > MAX_NAME_BYTES {
                return Err(bad("a device's name has 1 to 63 bytes"));
            }
            if name.contains(['^', '=', '/']) || name.contains(char::is_whitespace) {
                return Err(bad("`^` and `=` stand once, in front of the list"));
            }
            entries.push((name.to_owned(), port));
        }
        if entries.is_empty() {
            return Err(bad("the list is empty"));
        }
        Ok(HcaFilter { exclude, exact, entries })
    }
}

impl fmt::Display for HcaFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.exclude { "^" } else { "" })?;
        f.write_str(if self.exact { "=" } else { "" })?;
        for (i, (name, port)) in self.entries.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            f.write_str(name)?;
            if let Some(port) = port {
                write!(f, ":{port}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admits_as_nccl_does() {
        let cases = [
            ("mlx5", "mlx5_0", 1, true),
            ("mlx5", "rxe0", 1, false),
            ("mlx5_1", "mlx5_10", 1, true),
            ("=mlx5_1", "mlx5_10", 1, false),
            ("=mlx5_0:1,mlx5_1:1", "mlx5_1", 1, true),
            ("=mlx5_0:1,mlx5_1:1", "mlx5_1", 2, false),
            ("mlx5:2", "mlx5_7", 2, true),
            ("mlx5:2", "mlx5_7", 1, false),
            ("^=mlx5_3", "mlx5_3", 1, false),
            ("^=mlx5_3", "mlx5_30", 1, true),
            ("^mlx5_3", "mlx5_30", 1, false),
            ("^mlx5_3:2", "mlx5_3", 1, true),
            ("^mlx5_3:2", "mlx5_3", 2, false),
            (" mlx5_0 , rxe0 ", "rxe0", 1, true),
        ];
        for (text, device, port, admitted) in cases {
            let filter: HcaFilter = text.parse().unwrap();
            assert_eq!(filter.admits(device, port), admitted, "{text} {device}:{port}");
            assert_eq!(filter.to_string().parse::<HcaFilter>().unwrap(), filter);
        }
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        let long = "x".repeat(64);
        let bad =
            ["", "^", "=", "^=", ",", "=^a", "a b", "a,^b", "../a", ":1", "a:", "a:0", "a:256", "a:1:2"];
        for text in bad.into_iter().chain([long.as_str()]) {
            let error = text.parse::<HcaFilter>().unwrap_err();
            assert!(error.to_string().contains("write e.g."), "{error}");
        }
    }
}
