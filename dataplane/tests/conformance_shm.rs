//! The conformance suite in shared memory, large messages copied out of the sender's blocks.

mod counting_allocator;
mod shm_rig;

ringway_dataplane::transport_conformance!(shm_rig::ShmRig { map_blocks: true, attach: false });
