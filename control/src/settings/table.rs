//! The one table of settings: every `RINGWAY_*` variable with its type, default, unit, allowed range and meaning.
//!
//! To add a setting, add a row to the room that it belongs to (`job`, `network`, `running`, `times`) and a field to [`Settings`](super::Settings) that reads it. Everything
//! else (the check for unknown names, the error texts, `ringway doctor`) follows from the row.

mod job;
mod network;
mod running;
mod times;

pub use super::kind::Kind;

/// One setting: a row of [`TABLE`].
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The variable's whole name, `RINGWAY_...`.
    pub name: &'static str,
    /// What may be given, with its range.
    pub kind: Kind,
    /// The value taken when the variable is unset, as it would be written; `None` where unset means
    /// "not given", because something else (a launcher, the transport) knows it.
    pub default: Option<&'static str>,
    /// The unit of a number, empty for everything else.
    pub unit: &'static str,
    /// What it does, in one or two sentences.
    pub doc: &'static str,
}

/// The largest world: a rank fits 20 bits with room to spare in every wire header.
pub const MAX_WORLD_SIZE: u64 = 1 << 20;

const fn row(
    name: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    unit: &'static str,
    doc: &'static str,
) -> Setting {
    Setting { name, kind, default, unit, doc }
}

/// The rows of each room, in the order in which `ringway doctor` shows them.
const ROOMS: [&[Setting]; 4] = [job::ROWS, network::ROWS, running::ROWS, times::ROWS];

/// How many settings there are.
const COUNT: usize = {
    let (mut count, mut room) = (0, 0);
    while room < ROOMS.len() {
        count += ROOMS[room].len();
        room += 1;
    }
    count
};

/// The rooms' rows one after the other.
const fn joined() -> [Setting; COUNT] {
    let mut rows = [ROOMS[0][0]; COUNT];
    let (mut at, mut room) = (0, 0);
    while room < ROOMS.len() {
        let mut row = 0;
        while row < ROOMS[room].len() {
            rows[at] = ROOMS[room][row];
            at += 1;
            row += 1;
        }
        room += 1;
    }
    rows
}

/// Every setting, in the order in which `ringway doctor` shows them.
pub const TABLE: &[Setting] = &joined();

/// The row of `name`, if there is such a setting.
pub fn find(name: &str) -> Option<&'static Setting> {
    TABLE.iter().find(|setting| setting.name == name)
}

/// The setting whose name is nearest to `name`, if one is near enough to have been meant: at most a third of the
/// letters differ.
pub fn nearest(name: &str) -> Option<&'static Setting> {
    let prefix = super::PREFIX.len();
    let near = |other: &str| edit_distance(&name[prefix.min(name.len())..], &other[prefix..]);
    let best = TABLE.iter().min_by_key(|setting| near(setting.name))?;
    (near(best.name) * 3 <= best.name.len() - prefix + 2).then_some(best)
}

/// Levenshtein distance in bytes; setting names are ASCII.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_prefixed_and_documented() {
        for (i, setting) in TABLE.iter().enumerate() {
            assert!(setting.name.starts_with(super::super::PREFIX), "{}", setting.name);
            assert!(setting.doc.ends_with('.'), "{}: the doc is not a sentence", setting.name);
            assert!(!setting.doc.contains("  "), "{}: the doc has a gap", setting.name);
            assert!(!TABLE[..i].iter().any(|other| other.name == setting.name), "{} twice", setting.name);
            if let Some(unit) = setting.name.strip_prefix("RINGWAY_").and_then(|n| n.rsplit('_').next()) {
                let expected = match unit {
                    "BYTES" => "bytes",
                    "MS" => "ms",
                    "US" => "us",
                    _ => "",
                };
                assert_eq!(setting.unit, expected, "{}: the unit is last in the name", setting.name);
            }
        }
    }

    #[test]
    fn nearest_finds_slips_and_not_strangers() {
        assert_eq!(nearest("RINGWAY_SOCKET_IFNAM").unwrap().name, "RINGWAY_SOCKET_IFNAME");
        assert_eq!(nearest("RINGWAY_HEARTBEAT_TIMEOUT").unwrap().name, "RINGWAY_HEARTBEAT_TIMEOUT_MS");
        assert_eq!(nearest("RINGWAY_ALGOS").unwrap().name, "RINGWAY_ALGO");
        assert!(nearest("RINGWAY_FAVOURITE_COLOUR").is_none());
    }

    #[test]
    fn edit_distance_of_known_pairs() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("same", "same"), 0);
    }
}
