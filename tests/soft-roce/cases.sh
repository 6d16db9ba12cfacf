#!/usr/bin/env bash
# cases.sh - what the soft-RoCE lane tests, run by lane.sh where the devices are: in the guest, or on
# a machine that has some.
#
#   cases.sh [--case NAME]... PROGRAM TEST_BINARY...
#
# PROGRAM is the `ringway` program; the test binaries are those of ringway-dataplane. Every case
# prints how long it took; a failed one prints what it saw, and the rest goes on. Exits with 1 when
# a case failed.
set -uo pipefail

# What the tables must say that the bytes went by, and the setting that leaves nothing else. Another
# transport is for trying out the cases themselves: CASES_TRANSPORT=uring.
TRANSPORT=${CASES_TRANSPORT:-rdma}
case $TRANSPORT in rdma) RINGWAY_RDMA=require;; *) RINGWAY_RDMA=off;; esac
export RINGWAY_RDMA
# The ranks of a guest would meet in shared memory.
export RINGWAY_SHM=off
# A case that takes longer has failed.
CASE_S=300
# How long the survivor of a failure may take to say so.
FAILURE_S=30

ALL=(devices tests misconfigurations all-reduce four-ranks kill cut port-down rail-down gpus loss-0.1 loss-1)
read -ra DEVICES <<<"${SOFTROCE_DEVS:-}"
read -ra NETDEVS <<<"${SOFTROCE_NETDEVS:-}"

# --------------------------------------------------------------- what cases use

# bench RANKS ARGUMENT...: `ringway bench`, each rank on a device of its own where there are two, so that
# what they send really crosses the wire.
bench() {
    local ranks=$1
    shift
    if [ ${#DEVICES[@]} = 2 ] && [ "$TRANSPORT" = rdma ]; then
        # shellcheck disable=SC2016  # the ranks expand it
        "$PROGRAM" run -n "$ranks" -- bash -c \
            'devices=($SOFTROCE_DEVS); export RINGWAY_IB_HCA=${devices[RINGWAY_LOCAL_RANK % 2]}; exec "$@"' \
            rank "$PROGRAM" bench "$@"
    else
        "$PROGRAM" run -n "$ranks" -- "$PROGRAM" bench "$@"
    fi
}

# verified FILE: the table in FILE has rows, none of them with a wrong element or over another transport.
verified() {
    awk -v transport="$TRANSPORT" '
        /^#/ { next }
        { rows++ }
        $9 != 0 || $NF != transport { print "this row is not verified over " transport ": " $0; bad = 1 }
        END { if (!rows) print "the table has no rows"; exit bad || !rows }' "$1"
}

# until_true SECONDS WHAT COMMAND...: waits for an event.
until_true() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        [ $SECONDS -lt $end ] || { echo "waited in vain for $what"; return 1; }
        sleep 0.05
    done
}

# begin_bench: starts one that goes on until something ends it; waits until the ranks reduce. Sets bench_pid.
begin_bench() {
    bench 2 all-reduce --sizes 256K --iters 1000000 -w 1 >"$TMP/out" 2>"$TMP/err" &
    bench_pid=$!
    until_true 60 "the benchmark's ranks to reduce" reduces_or_over
    grep -q '(elements)' "$TMP/out" && return
    kill -9 $bench_pid 2>/dev/null
    cat "$TMP/err"
    return 1
}

is_over() { ! kill -0 "$bench_pid" 2>/dev/null; }
reduces_or_over() { grep -q '(elements)' "$TMP/out" || is_over; }

# ends_in_failure: the benchmark ends by itself, with a failure.
ends_in_failure() {
    local since=$EPOCHREALTIME code=0
    until_true $FAILURE_S "the ranks to say that their peer is lost" is_over || { kill -9 "$bench_pid"; cat "$TMP/err"; return 1; }
    wait "$bench_pid" || code=$?
    echo "over after $(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $since }") s, exit code $code:"
    cat "$TMP/err"
    [ $code != 0 ]
}

# says WORDS: standard error of the benchmark says so.
says() { grep -qE "$1" "$TMP/err" || { echo "nobody said: $1"; return 1; }; }

pid_of_rank() { sed -nE "s/^# +rank +$1 on [^ ]+ pid ([0-9]+):.*/\\1/p" "$TMP/out"; }

# On every network device of the pair: shape RULE..., and mend to end it.
shape() {
    local netdev
    modprobe sch_netem 2>/dev/null
    for netdev in "${NETDEVS[@]}"; do tc qdisc replace dev "$netdev" root netem "$@" || return; done
}
mend() {
    local netdev
    for netdev in "${NETDEVS[@]}"; do tc qdisc del dev "$netdev" root 2>/dev/null; done
    return 0
}

works_again() {
    bench 2 all-reduce --sizes 8,64K --iters 3 >"$TMP/again" && verified "$TMP/again"
}

# A case that cannot be run says why.
skip() { echo "skipped: $*"; return 77; }
needs_pair() {
    [ ${#NETDEVS[@]} = 2 ] || skip "needs two devices on a veth pair of their own, as the guest has"
}

# ------------------------------------------------------------------- the cases

case_devices() {
    local device
    [ ${#DEVICES[@]} -gt 0 ] || { echo "there is no RDMA device"; return 1; }
    for device in "${DEVICES[@]}"; do
        ibv_devinfo -d "$device" | grep -E 'hca_id|state|active_mtu|link_layer' || return
        ibv_devinfo -d "$device" | grep -q PORT_ACTIVE || { echo "no port of $device is active"; return 1; }
    done
    env -u RINGWAY_RDMA "$PROGRAM" doctor
}

case_tests() {
    local binary filter ran=0 failed=0
    cd "$(dirname "$0")/../../dataplane" || return
    for binary in "${TESTS[@]}"; do
        # The library's tests are of all transports, the others of this one.
        case $(basename "$binary") in ringway_dataplane-*) filter=rdma::;; *) filter=;; esac
        RINGWAY_TEST_RDMA=require timeout $CASE_S "$binary" $filter --show-output >"$TMP/tests" 2>&1 || failed=1
        grep -vE ' \.\.\. ok$|^$|^successes:|^---- .* stdout ----|^    [a-z_:]*$|skipped: ' "$TMP/tests"
        # What the transport or the rig lacks, and how many times that mattered.
        grep -o 'skipped: .*' "$TMP/tests" | sort | uniq -c
        ran=$((ran + $(awk '/^running [0-9]+ test/ { n += $2 } END { print n + 0 }' "$TMP/tests")))
    done
    echo "$ran tests"
    [ $failed = 0 ] && [ $ran -gt 0 ]
}

# What is commonly wrong, each with its own diagnosis.
case_misconfigurations() {
    needs_pair || return
    "$(dirname "$0")/misconfigurations.sh" "$PROGRAM"
}

case_all-reduce() {
    bench 2 all-reduce --sizes 8,64,1K,16K,64K,1M,8M,64M -w 1 | tee "$TMP/table"
    verified "$TMP/table"
}

case_four-ranks() {
    bench 4 all-reduce -b 4 -e 1M -f 16 --iters 5 | tee "$TMP/table"
    verified "$TMP/table"
}

case_kill() {
    local victim survivor
    for victim in 0 1; do
        survivor=$((1 - victim))
        begin_bench || return
        kill -9 "$(pid_of_rank $victim)" || return
        ends_in_failure || return
        says "rank $survivor: rank $victim on host .* was lost" || return
    done
    works_again
}

# All packets between the two are dropped, as if somebody had pulled the cable.
case_cut() {
    needs_pair || return
    begin_bench || return
    shape loss 100% || return
    ends_in_failure && says 'rank [01] on host .* was lost' && says 'retr' && mend && works_again
}

# What only moves between GPUs of two "hosts" (parts of one rank), over the doubles of libcuda and libnccl (GPU_DOUBLES: tests/gpu/double):
# staged, since no device here takes dma-buf; and straight, with the double of the one verb that they lack.
case_gpus() {
    local collective
    [ -n "${GPU_DOUBLES:-}" ] || { skip "no doubles of libcuda and libnccl (GPU_DOUBLES)"; return; }
    [ "$TRANSPORT" = rdma ] || { skip "only RDMA reaches memory of GPUs"; return; }
    local -x LD_LIBRARY_PATH="$GPU_DOUBLES:${LD_LIBRARY_PATH:-}" RINGWAY_NET_GDR_LEVEL=SYS GPU_DOUBLE_DIR=$TMP
    moves broadcast || return
    grep -E 'staged through pinned memory of the host, because .*ibv_reg_dmabuf_mr' "$TMP/table" ||
        { echo "nobody says why it is staged"; cat "$TMP/table"; return 1; }
    local -x LD_PRELOAD="$GPU_DOUBLES/verbs.so"
    for collective in broadcast all-gather send-recv; do
        rm -rf "$TMP/calls" && mkdir "$TMP/calls"
        GPU_DOUBLE_RECORD=$TMP/calls moves $collective || return
        grep -q 'what only moves straight from GPU to GPU, by rxe' "$TMP/table" || { echo "$collective: not straight"; cat "$TMP/table"; return 1; }
        grep -q cuFlushGPUDirectRDMAWrites "$TMP"/calls/*.calls || { echo "$collective: nothing was flushed"; return 1; }
    done
    # Of 64 KiB and more both sides say first whether they can, of less they do not: who expects less does not wait for that.
    # shellcheck disable=SC2016  # the ranks expand it
    timeout $FAILURE_S "$PROGRAM" run -n 2 -- bash -c \
        'case $RINGWAY_RANK in 0) size=60000;; *) size=100000;; esac; exec "$@" --sizes $size' rank \
        "$PROGRAM" bench send-recv --device cuda --inside 1 -d u8 --iters 1 -w 1 >"$TMP/table" 2>"$TMP/err"
    [ "$(grep -c 'mismatched calls' "$TMP/err")" = 2 ] || { echo "a difference of length was not seen"; cat "$TMP/err"; return 1; }
    RINGWAY_NET_GDR_LEVEL=PXB moves broadcast && grep -E 'because rxe. is in no known place of the machine' "$TMP/table"
}

# moves COLLECTIVE: a verified benchmark over GPUs of two parts.
moves() {
    bench 2 "$1" --device cuda --inside 1 --sizes 8,100000,1M --iters 1 -w 1 >"$TMP/table" || { cat "$TMP/table"; return 1; }
    grep -q 'Out of bounds values : 0 OK' "$TMP/table" || { cat "$TMP/table"; return 1; }
}

# The interface under a device goes down, and the port with it.
case_port-down() {
    needs_pair || return
    begin_bench || return
    ip link set "${NETDEVS[0]}" down || return
    ends_in_failure && says 'rank [01] on host .* was lost' && port_up && works_again
}

# Setting an end of the pair down has dropped its route.
port_up() {
    local ips
    read -ra ips <<<"$SOFTROCE_IPS"
    ip link set "${NETDEVS[0]}" up
    ip route replace "${ips[1]}" dev "${NETDEVS[0]}" src "${ips[0]}" table 100
    until_true 10 "the port to come up again" grep -q ACTIVE "/sys/class/infiniband/${DEVICES[0]}/ports/1/state"
}

# Both ranks use two devices, and one of these goes down: the other carries all to the end. It is on an interface of its
# own, since an end of a veth pair takes the other end with it.
case_rail-down() {
    needs_pair || return
    ip link add rail type dummy && ip addr add 10.77.1.1/24 dev rail && ip link set rail up &&
        rdma link add rxe2 type rxe netdev rail || return
    until_true 10 "the port to come up" grep -q ACTIVE /sys/class/infiniband/rxe2/ports/1/state || return
    RINGWAY_IB_HCA="=${DEVICES[0]},rxe2" "$PROGRAM" run -n 2 -- \
        "$PROGRAM" bench all-reduce --sizes 1M --iters 100 >"$TMP/out" 2>"$TMP/err" &
    bench_pid=$!
    until_true 60 "the benchmark's ranks to reduce" reduces_or_over
    ip link set rail down || return
    until_true 120 "the benchmark to end over the other device" is_over || kill -9 $bench_pid
    wait $bench_pid
    local code=$?
    cat "$TMP/out" "$TMP/err"
    timeout 20 rdma link delete rxe2
    ip link delete rail
    [ $code = 0 ] && says 'a rail failed' && verified "$TMP/out"
}

lossy() {
    needs_pair || return
    shape loss "$1" || return
    bench 2 all-reduce -b 8 -e 1M -f 32 --iters 20 | tee "$TMP/table"
    verified "$TMP/table"
}
case_loss-0.1() { lossy 0.1%; }
case_loss-1() { lossy 1%; }

# -------------------------------------------------------------------- the lane

chosen=()
while [ "${1:-}" = --case ]; do
    declare -F "case_${2:-}" >/dev/null || { echo "no case ${2:-}: there are ${ALL[*]}" >&2; exit 2; }
    chosen+=("$2")
    shift 2
done
[ ${#chosen[@]} -gt 0 ] || chosen=("${ALL[@]}")
PROGRAM=$1
shift
TESTS=("$@")
TMP=$(mktemp -d)
trap 'mend; rm -rf "$TMP"' EXIT

failed=() skipped=()
for name in "${chosen[@]}"; do
    begun=$SECONDS code=0
    echo "== $name"
    (trap - EXIT; "case_$name") >"$TMP/said" 2>&1 || code=$?
    mend
    cat "$TMP/said"
    case $code in
        0) result=ok;;
        77) result=skipped; skipped+=("$name");;
        *) result="FAILED ($code)"; failed+=("$name");;
    esac
    echo "== $name: $result, $((SECONDS - begun)) s"
done
echo "soft-RoCE: $((${#chosen[@]} - ${#failed[@]} - ${#skipped[@]})) of ${#chosen[@]} cases passed" \
    "${skipped:+(skipped: ${skipped[*]})}" "${failed:+(FAILED: ${failed[*]})}"
[ ${#failed[@]} = 0 ]
