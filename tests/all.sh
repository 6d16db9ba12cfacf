#!/bin/sh
# The test command: everything that must hold before a change lands. Run it from anywhere.
#   sh tests/all.sh
set -eu
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step "system packages"
sh tests/prepare.sh
sh tests/etcd.sh
sh tests/gpu/fetch-nccl.sh
step "format"
cargo fmt --all --check
step "lints, with and without hwloc and NCCL"
cargo clippy --workspace --all-targets --locked -- -D warnings
cargo clippy --locked --no-default-features -- -D warnings
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
step "tests"
cargo test --workspace --locked
step "RDMA, on soft-RoCE in a guest (skipped where none can be made: see tests/soft-roce/lane.sh)"
bash tests/soft-roce/lane.sh
