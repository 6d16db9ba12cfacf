//! A hue per rank, light for its CPUs and dark for its progress thread.

/// Light and dark of each hue. After the last one they begin again: the rank's number stands on everything.
const HUES: [(&str, &str); 10] = [
    ("#bcd7f0", "#1f5f9e"),
    ("#fbd3a8", "#b45f06"),
    ("#c3e6c3", "#2c7a2c"),
    ("#f6c1c1", "#b02a2a"),
    ("#ddccee", "#6b3fa0"),
    ("#f3e3a0", "#8a6d00"),
    ("#bfe8e6", "#137a76"),
    ("#f5cbe2", "#a8326f"),
    ("#d8dde3", "#4a5866"),
    ("#e0cdb8", "#7a4f24"),
];

/// The hues of ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Colors;

impl Colors {
    pub(super) fn light(self, rank: u32) -> &'static str {
        HUES[rank as usize % HUES.len()].0
    }

    pub(super) fn dark(self, rank: u32) -> &'static str {
        HUES[rank as usize % HUES.len()].1
    }
}
