//! What kinds of values settings take, and how they are told to people.

use ringway_collectives::schedule::Algorithm;

/// Fewest characters of a token: random hexadecimal digits then hold 64 bits.
pub const MIN_TOKEN_CHARS: usize = 16;
/// Most characters of a token.
pub const MAX_TOKEN_CHARS: usize = 512;

/// What a setting may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text that is not empty.
    Text,
    /// A secret that goes into a header: visible ASCII, long enough not to be guessed, never printed.
    Token,
    /// A whole number from `min` to `max`, both allowed. Bytes may end in K, M or G (powers of 1024).
    Number {
        /// Smallest allowed number.
        min: u64,
        /// Largest allowed number.
        max: u64,
    },
    /// `auto`, or a number as in [`Kind::Number`].
    AutoOrNumber {
        /// Smallest allowed number.
        min: u64,
        /// Largest allowed number.
        max: u64,
    },
    /// `auto` or -1, or a number from 0 to `max`.
    Index {
        /// Largest allowed number.
        max: u64,
    },
    /// `on` or `off` (also 1 and 0, true and false, yes and no).
    Switch,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// `auto`; or some of these words, best first, separated by commas; or `^` and the words to leave out.
    SomeOf(&'static [&'static str]),
    /// `auto`, or algorithms in the grammar of NCCL's `NCCL_ALGO`: [`Wanted`](ringway_collectives::schedule::Wanted).
    Algorithms,
    /// Interface-name prefixes separated by commas; `=` before the list asks for whole names, `^` leaves them out.
    Interfaces,
    /// RDMA devices: as [`Kind::Interfaces`], each with a port after `:` where one is meant.
    Hcas,
    /// An address and a prefix length, as `10.1.0.0/16`.
    AddressRange,
    /// `host:port`, an IPv6 address in brackets.
    HostPort,
    /// One `host:port`, or several with commas between them.
    HostPorts,
    /// `auto`, `off`, or processor numbers such as `0-3,8`.
    Cpus,
}

impl Kind {
    /// The allowed values in words, for error messages and for `ringway doctor`.
    pub fn allowed(&self, unit: &str) -> String {
        match self {
            Kind::Text => "any text that is not empty".to_owned(),
            Kind::Token => format!(
                "{MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} letters, digits and signs without spaces, such as \
                 `openssl rand -hex 32` makes"
            ),
            Kind::Number { min, max } => number_range(*min, *max, unit),
            Kind::AutoOrNumber { min, max } => format!("auto, or {}", number_range(*min, *max, unit)),
            Kind::Index { max } => format!("auto or -1, or {}", number_range(0, *max, unit)),
            Kind::Switch => "on or off".to_owned(),
            Kind::OneOf(words) => format!("one of {}", words.join(", ")),
            Kind::SomeOf(words) => format!(
                "auto, or a list out of {} separated by commas (best first), or ^ and a list to leave out",
                words.join(", ")
            ),
            Kind::Algorithms => {
                let names = Algorithm::ALL.map(|algorithm| algorithm.name().to_ascii_lowercase());
                format!(
                    "auto, or a list out of {} separated by commas, or ^ and a list to leave out; for one collective with its \
                     name before, as in ring;allreduce:^tree;broadcast:chain",
                    names.join(", ")
                )
            }
            Kind::Interfaces => "a list of interface-name prefixes separated by commas: eth,ib takes those, \
                =eth0 exactly that one, ^docker all but those, ^=eth3 all but exactly that one"
                .to_owned(),
            Kind::Hcas => "a list of RDMA devices separated by commas: mlx5 takes those whose name begins so, =mlx5_0:1 \
                exactly port 1 of that one, ^mlx5_3 all but those, ^=mlx5_3 all but exactly that one"
                .to_owned(),
            Kind::AddressRange => "an address and a prefix length such as 10.1.0.0/16 or fd00::/8".to_owned(),
            Kind::HostPort => "host:port with a port from 1 to 65535, an IPv6 address in brackets as in \
                               [fd00::1]:29400"
                .to_owned(),
            Kind::HostPorts => "host:port, or several with commas between them, each with a port from 1 to 65535, an IPv6 \
                                address in brackets as in [fd00::1]:29400"
                .to_owned(),
            Kind::Cpus => "auto, spread, off, or a list of processor numbers such as 0-3,8".to_owned(),
        }
    }
}

fn number_range(min: u64, max: u64, unit: &str) -> String {
    let suffix = if unit == "bytes" { " (K, M and G mean powers of 1024)" } else { "" };
    let space = if unit.is_empty() { "" } else { " " };
    format!("a whole number from {min} to {max}{space}{unit}{suffix}")
}
