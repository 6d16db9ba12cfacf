//! The conformance suite on TCP, by io_uring.

mod counting_allocator;
mod tcp_rig;

ringway_dataplane::transport_conformance!(tcp_rig::TcpRig(ringway_dataplane::uring::DriverChoice::Uring));
