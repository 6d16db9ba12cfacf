//! The conformance suite on TCP, by plain system calls.

mod counting_allocator;
mod tcp_rig;

ringway_dataplane::transport_conformance!(tcp_rig::TcpRig(ringway_dataplane::uring::DriverChoice::Epoll));
