//! The conformance suite in shared memory, large messages copied by process_vm_readv, where that is permitted.

mod counting_allocator;
mod shm_rig;

ringway_dataplane::transport_conformance!(shm_rig::ShmRig { map_blocks: false, attach: true });
