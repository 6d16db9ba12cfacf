//! The conformance suite in shared memory, large messages in pieces through the queue.

mod counting_allocator;
mod shm_rig;

ringway_dataplane::transport_conformance!(shm_rig::ShmRig { map_blocks: false, attach: false });
