#!/usr/bin/env bash
# real.sh - Ringway on a real GPU, within 8 minutes: what doctor sees, every collective of one rank verified, two ranks on one
# GPU (verified, or refused by NCCL in words that name both), and one rank's time beside that of NCCL alone, which from 1 MiB
# on may be at most LIMIT_PERCENT above it.
#
#   real.sh [PROGRAM [BARE]]
#
#   PROGRAM  ringway, built elsewhere and carried here; without it, it is built here (cargo, release)
#   BARE     the program of bare.c, likewise; without it, it is built here (cc)
#
# Environment:
#   RINGWAY_NCCL_LIBRARY  NCCL's file (default: what the dynamic loader finds, else what fetch-nccl.sh has kept)
#   LIMIT_PERCENT         1
#   SIZES                 bytes to be timed (1 to 256 MiB)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
limit=${LIMIT_PERCENT:-1}
sizes=${SIZES:-1048576 4194304 16777216 67108864 268435456}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
step() { printf '\n== %s (%s s)\n' "$*" "$SECONDS"; }
stop() { printf 'real.sh: %s\n' "$*" >&2; exit 1; }

program=${1:-}
if [ -z "$program" ]; then
    step "building ringway"
    (cd "$root" && cargo build --release --locked)
    program=${CARGO_TARGET_DIR:-$root/target}/release/ringway
fi
bare=${2:-$work/bare}
[ $# -ge 2 ] || cc -O2 -Wall -o "$bare" "$root/tests/gpu/bare.c" -ldl
if [ -z "${RINGWAY_NCCL_LIBRARY:-}" ] && ! ldconfig -p | grep -q 'libnccl\.so\.2'; then
    RINGWAY_NCCL_LIBRARY=$(sh "$root/tests/gpu/fetch-nccl.sh")
    export RINGWAY_NCCL_LIBRARY
fi
nccl=${RINGWAY_NCCL_LIBRARY:-libnccl.so.2}
export RINGWAY_DEVICE=0
run() { timeout 120 "$program" bench "$@" --device cuda; }

step "what is here"
"$program" doctor | sed -n '/^GPUs/,/^$/p'
run all-reduce -n 1 --sizes 8 --iters 1 >/dev/null || stop "no GPU can be used here: see above"

step "one rank, every collective and kind of type"
for what in "all-reduce -d bf16" "all-reduce -d i32 -o max --started" "reduce-scatter -d f16" "all-gather -d u16" \
    "broadcast -d i64" "reduce -d f64 -o avg" "gather -d bool" "scatter -d f32" "all-to-all -d i16" "send-recv -d u8"; do
    # Words are meant to be split.
    # shellcheck disable=SC2086
    run $what -n 1 --sizes 8,100001,64M --iters 5 --csv >"$work/out" || stop "$what failed"
    awk -F, 'NR > 1 && $12 != 0 { bad = 1 } END { exit bad }' "$work/out" || stop "$what: wrong elements"
    echo "verified: $what"
done

step "two ranks on one GPU"
if run all-reduce -n 2 --sizes 8,1M --iters 5 >"$work/out" 2>"$work/err"; then
    grep -q ': 0 OK' "$work/out" || stop "two ranks: wrong elements: $(cat "$work/out")"
    echo "verified: this NCCL allows it"
else
    grep -q 'is also that of rank' "$work/err" || stop "two ranks failed otherwise: $(cat "$work/err")"
    echo "refused by this NCCL, and said so: $(head -n 1 "$work/err")"
fi

step "beside NCCL alone (medians, microseconds)"
# shellcheck disable=SC2086
timeout 120 "$bare" "$nccl" $sizes >"$work/bare"
run all-gather -n 1 -d u8 --sizes "$(echo $sizes | tr ' ' ,)" --iters 500 -w 20 -c 0 --csv >"$work/ours"
awk -F, -v limit="$limit" '
    NR == FNR { bare[$1] = $2; next }
    FNR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
    {
        bytes = $column["size_bytes"]; ours = $column["p50_us"]; more = (ours / bare[bytes] - 1) * 100
        verdict = more <= limit ? "ok" : "TOO SLOW"
        if (more > limit) bad = 1
        printf "%12d B  NCCL %10.2f  ringway %10.2f  %+.2f %%  %s\n", bytes, bare[bytes], ours, more, verdict
    }
    END { exit bad }' "$work/bare" "$work/ours" || stop "more than $limit % above NCCL alone"
step "all is well"
