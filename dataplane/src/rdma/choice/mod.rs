//! Which RDMA devices, ports and GIDs a rank uses, and what it and a peer agree on. Pure.
//!
//! - [`model`]: devices, ports, GIDs, as [`survey`](crate::rdma::survey) reads them. [`config`]: what the settings want.
//! - [`filter`]: the grammar of `RINGWAY_IB_HCA`. [`gid`]: kinds and families of GIDs, and which come first.
//! - [`select`]: the rails of this side. [`obstacle`]: what is in the way, and what to do about it.
//! - [`offer`]: what a side tells its peers. [`agree`](mod@agree): the rails that two sides have in common.
//!
//! Invariants (cited by the tests):
//! - **R1** Both sides come to mirror images of one answer from the two offers alone: as many rails, in the same order.
//! - **R2** A rail joins ports of one link layer, and GIDs of one kind and one address family.
//! - **R3** Whatever is not used has a reason, and every reason says what to do.
//! - **R4** Reading an offer never panics and is bounded, whatever the bytes.
//! - **R5** A GID is never chosen by its bare index: an index from the settings is checked, and what it is gets told.
#![forbid(unsafe_code)]

pub mod agree;
pub mod config;
pub mod filter;
pub mod gid;
pub mod model;
pub mod obstacle;
pub mod offer;
pub mod select;

pub use agree::{Disagreement, RailPair, agree};
pub use config::{PINNED_LIMIT_BYTES, RdmaConfig};
pub use filter::HcaFilter;
pub use gid::{AddressRange, Family};
pub use model::{
    Device, DeviceFile, Gid, GidKind, LinkLayer, LockedMemory, Mtu, Port, PortState, RoceVersion, Survey,
};
pub use obstacle::Obstacle;
pub use offer::{OfferedGid, OfferedRail, Opened, RdmaOffer};
pub use select::{Choice, NoRail, Rail, Verdict, choose};

/// Most rails between two ranks: ports that are used at once.
pub const MAX_RAILS: usize = 4;
