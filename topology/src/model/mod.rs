//! The pure part: plain data and functions of plain data.
#![forbid(unsafe_code)]

pub mod cpuset;
mod draw;
pub mod export;
pub mod ids;
pub mod link;
pub mod machine;
pub mod order;
pub mod pci;
pub mod place;
pub mod plan;
pub mod reach;
mod show;
