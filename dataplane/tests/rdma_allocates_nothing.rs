//! T8 over RDMA: warm exchanges allocate nothing, over one rail and striped over two.

mod counting_allocator;
mod rdma_rig;

use rdma_rig::Members;
use ringway_dataplane::transport::conformance::run_one;

#[test]
fn warm_exchanges_over_one_rail_allocate_nothing() {
    let mut rig = Members { rails: 1, allocations: counting_allocator::allocations };
    run_one(&mut rig, "warm_exchanges_allocate_nothing");
}

#[test]
fn warm_exchanges_over_two_rails_allocate_nothing() {
    let mut rig = Members { rails: 2, allocations: counting_allocator::allocations };
    run_one(&mut rig, "warm_exchanges_allocate_nothing");
}
