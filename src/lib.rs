//! Ringway moves tensors between the machines of a cluster at the speed of the wire,
//! and says by name what went wrong when it cannot.
#![forbid(unsafe_code)]
