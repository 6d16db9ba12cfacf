//! The `ringway` program.
#![forbid(unsafe_code)]

fn main() {}
