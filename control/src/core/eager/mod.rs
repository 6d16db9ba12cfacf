//! Remote eager: contexts that clients hold on a task, and the results that they keep in them.
//!
//! - [`contexts`]: leases. A client that neither calls nor says that it lives loses its context.
//! - [`handles`]: results by operation and output, until they are released.
//!
//! Invariants (cited by the tests):
//! - **E1** A context ends once: closed by its client, replaced, or expired. What it held comes out exactly then.
//! - **E2** A lease is as long as its client asked for, from its last call.
//! - **E3** A view of the cluster is replaced by the next one only, so that a late or repeated change changes nothing.
//! - **E4** A result is there from the end of its operation until it is released, and is released once.
//! - **E5** What one client can make a task keep is limited.
#![forbid(unsafe_code)]

pub mod contexts;
pub mod error;
pub mod handles;

pub use contexts::Contexts;
pub use error::EagerError;
pub use handles::{Handle, Handles};
