//! The pure part: plain data and functions of plain data.
#![forbid(unsafe_code)]

pub mod ids;
