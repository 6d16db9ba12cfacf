//! Memory that a device or a kernel may read or write after the code that lent it has moved on.
//!
//! - [`arena`]: the file that other processes of this host are shown blocks by.
//! - [`device`]: memory that a network card reaches and no processor touches.
//! - [`dtype`]: the element types that travel.
//! - [`region`]: a span of bytes with a ledger of what is lent out of it.
//! - [`lease`]: the move-only tokens that a transport holds meanwhile.
//! - [`pool`]: page-aligned, pre-faulted blocks that are used again and again, and typed buffers over them.
//! - [`room`]: whether the machine has the memory.
//! - [`shared`]: bytes that many read and nobody writes, and that can be lent any number of times at once.
//!
//! Invariants (cited by the tests):
//! - **I1** A byte is lent to many readers or to one writer, never both.
//! - **I2** Owned memory outlives every lease of it, whatever is dropped first.
//! - **I3** Borrowed memory is never returned to its owner while a lease of it is out: the process ends instead.
//! - **I4** A lease that comes back to the wrong region is refused and changes nothing.
//! - **I5** Shared bytes are written by nobody while there is a second view or any lease of them; the memory goes back to
//!   its pool when the last of these is gone.
//! - **I6** No processor reads or writes memory of a device: its regions and leases give no bytes out.

pub mod arena;
pub mod device;
pub mod dtype;
pub mod lease;
pub mod pool;
pub mod region;
pub mod room;
pub mod shared;

pub use arena::{place_in_arena, share_blocks};
pub use device::DeviceMemory;
pub use dtype::{Bool, DType, Element};
pub use lease::{Block, Lease, ReadLease, WriteLease};
pub use pool::{AllocError, Buffer, HugePages, Pool};
pub use region::{
    Ledger, LendError, Region, RegionId, Trace, lend_borrowed_in, lend_shared_in, unmapped_blocks,
    with_borrowed, with_borrowed_in, with_shared, with_shared_in,
};
pub use shared::{ForeignBytes, SharedBytes, UniqueBytes};
