#!/usr/bin/env bash
# two-nodes.sh - placement on a machine with two NUMA nodes, which a guest has: each rank's thread and the memory of
# its buffers are asked of the kernel.
#
#   two-nodes.sh PROGRAM LIMITS
#
#   PROGRAM   ringway
#   LIMITS    the topology's test of that name
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [ "${1:-}" != --inside ]; then
    [ $# = 2 ] || { sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
    nodes=''
    for node in 0 1; do
        nodes+=" -object memory-backend-ram,id=memory$node,size=1G"
        nodes+=" -numa node,nodeid=$node,cpus=$((2 * node))-$((2 * node + 1)),memdev=memory$node"
    done
    SOFTROCE_QEMU_ARGS="${SOFTROCE_QEMU_ARGS:-}$nodes" exec tests/soft-roce/guest.sh run --mem 2048 --smp 4 --no-rxe -- \
        "$PWD/tests/soft-roce/two-nodes.sh" --inside "$@"
fi

program=$2 limits=$3
fail() { echo "two-nodes: $*" >&2; cat "$tmp"/* >&2; exit 1; }
tmp=$(mktemp -d)
[ "$(find /sys/devices/system/node -maxdepth 1 -name 'node[0-9]*' | wc -l)" = 2 ] || fail "there are not two nodes"
"$limits" memory_is_where_the_policy_puts_it

# Over TCP, as shared memory is in everybody's list of mappings.
RINGWAY_NET=tcp "$program" bench all-reduce -n 4 --sizes 8M --iters 1000000 >"$tmp/out" 2>"$tmp/err" &
bench=$!
until grep -q '(elements)' "$tmp/out"; do
    kill -0 "$bench" 2>/dev/null || fail "the benchmark ended early"
    sleep 0.2
done
for rank in 0 1 2 3; do
    pid=$(sed -nE "s/^# +rank +$rank on [^ ]+ pid ([0-9]+):.*/\1/p" "$tmp/out")
    cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$pid/status")
    [ "$cpus" = "$rank" ] || fail "rank $rank may run on CPUs $cpus, not on $rank alone"
    # Pages of mappings of over 4 MiB: the buffers.
    read -r there elsewhere < <(awk -v home=$((rank / 2)) '
        / anon=/ {
            pages[0] = pages[1] = 0
            for (i = 3; i <= NF; i++) {
                if ($i ~ /^N[01]=/) pages[substr($i, 2, 1)] = substr($i, 4)
                if ($i ~ /^kernelpagesize_kB=/) kib = substr($i, 19)
            }
            if ((pages[0] + pages[1]) * kib > 4096) { there += pages[home] * kib; elsewhere += pages[1 - home] * kib }
        }
        END { print there + 0, elsewhere + 0 }' "/proc/$pid/numa_maps")
    echo "rank $rank on CPU $cpus: $there KiB of its buffers on node $((rank / 2)), $elsewhere KiB elsewhere"
    [ "$there" -ge 8192 ] && [ "$elsewhere" = 0 ] || fail "rank $rank has memory on the wrong node"
done
kill -TERM "$bench"
wait "$bench" || true
