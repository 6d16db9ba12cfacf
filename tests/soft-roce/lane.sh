#!/usr/bin/env bash
# lane.sh - builds Ringway and tests it on soft-RoCE: the verbs tests, the conformance suite, verified
# all-reduce, and failures (cases.sh has the list) in one guest, then a reduction between two guests, and placement in
# one with two NUMA nodes.
#
#   lane.sh [--here] [--case NAME]...
#
#   --here        on this machine's RDMA devices, or on one that host.sh makes (needs a kernel with
#                 rdma_rxe); without it in a guest of its own (guest.sh), booted once
#   --case NAME   only this case (may repeat)
#
# Environment:
#   SOFTROCE_LANE  require: not being able to run is a failure. skip: do not run. auto (the default):
#                  say why and succeed on machines where the guest cannot be made: not an amd64 Debian
#                  or Ubuntu, or packages are missing and root is too.
#   SOFTROCE_DIR   where the guest is kept; see guest.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

here='' cases=()
while [ $# -gt 0 ]; do
    case $1 in
        --here) here=1; shift;;
        --case) cases+=(--case "${2:?}"); shift 2;;
        *) sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2;;
    esac
done

LANE=${SOFTROCE_LANE:-auto}
impossible() {
    echo "soft-RoCE lane: skipped: $*"
    [ "$LANE" != require ] || { echo "soft-RoCE lane: that is a failure, as SOFTROCE_LANE=require" >&2; exit 1; }
    exit 0
}

is_root() { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }

[ "$LANE" != skip ] || { echo "soft-RoCE lane: skipped: SOFTROCE_LANE=skip"; exit 0; }
if [ -z "$here" ]; then
    [ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] ||
        impossible "the guest is made of packages of an amd64 Debian or Ubuntu, and this is none"
    if ! tests/soft-roce/guest.sh prepare; then
        is_root || impossible "the guest could not be prepared without root (its words are above)"
        exit 1
    fi
fi

# What `cargo test --workspace` has built, it does not build again.
echo "soft-RoCE lane: building"
limits=
executables=$(cargo test --workspace --locked --no-run --message-format=json |
              grep -o '"executable":"[^"]*"' | cut -d'"' -f4)
tests=()
while read -r binary; do
    case $(basename "$binary") in
        ringway_dataplane-*|verbs_*|rdma_*) tests+=("$binary");;
        limits-*) limits=$binary;;
    esac
done <<<"$executables"
# Optimised: an emulated processor checks 64 MiB in its own time.
program=$(cargo build --release --locked --bin ringway --message-format=json |
          grep -o '"executable":"[^"]*"' | cut -d'"' -f4)

GPU_DOUBLES=$(realpath "${CARGO_TARGET_DIR:-target}")/gpu-double
sh tests/gpu/double/make.sh "$GPU_DOUBLES"
export GPU_DOUBLES

run=(tests/soft-roce/cases.sh ${cases[@]+"${cases[@]}"} "$program" "${tests[@]}")
if [ -n "$here" ]; then
    exec tests/soft-roce/host.sh run -- "${run[@]}"
fi
tests/soft-roce/guest.sh run --timeout 1000 --env CASES_TRANSPORT --env GPU_DOUBLES -- "${run[@]}"

# Two hosts, with a kernel and a device each.
if [ ${#cases[@]} = 0 ]; then
    echo "== two-guests"
    # Beside other work an emulated processor may stand still for longer than a rank usually may.
    RINGWAY_HEARTBEAT_TIMEOUT_MS=60000 RINGWAY_RDMA=require tests/soft-roce/two-guests.sh -- "$program" bench all-reduce --sizes 8,4K,1M --iters 5
    echo "== two-guests: ok"

    # Two NUMA nodes: what placement has done is asked of the kernel.
    echo "== two-nodes"
    tests/soft-roce/two-nodes.sh "$program" "$limits"
    echo "== two-nodes: ok"
fi
