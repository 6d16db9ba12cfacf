//! Writes `src/generated` anew from the `.proto` files: `cargo run -p ringway-proto --example generate`.

use std::error::Error;
use std::path::Path;

#[path = "../tests/generate/mod.rs"]
mod generate;

fn main() -> Result<(), Box<dyn Error>> {
    generate::generate(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated"))
}
