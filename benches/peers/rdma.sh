#!/usr/bin/env bash
# rdma.sh - Ringway over RDMA beside perftest and Open MPI with UCX, over the same two soft-RoCE devices, in one
# guest (tests/soft-roce/guest.sh); prints each round's figures as CSV, then a table of ratios.
#
#   rdma.sh [--rounds N] [--only p2p|all-reduce]
#
# Rounds are interleaved: everybody once, then the next round. A ratio above 1 says that Ringway is ahead. All of it
# runs on an emulated processor: only ratios within one run mean something.
#
# Needs, beside what guest.sh needs (Debian's names): perftest, openmpi-bin, libopenmpi-dev, libucx0, gcc; and
# target/release/ringway (cargo build --release), or the program in $RINGWAY.
set -euo pipefail
HERE=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
ROOT=$HERE/../..

LATENCY_BYTES="8 1024"
BANDWIDTH_BYTES="65536 1048576 4194304"
REDUCE_SIZES=8,1K,4K,16K,64K,256K,1M,8M
# Messages of perftest and Ringway alike, by size.
messages() { echo $((200 * 1048576 / $1 < 1000 ? 200 * 1048576 / $1 : 1000)); }

# ------------------------------------------------------------ inside the guest

# perftest TOOL BYTES MESSAGES COLUMN: the server on rxe0, the client on rxe1; prints a column of the client's row.
perftest() {
    local common=(-x "$SOFTROCE_GID_INDEX" -F -s "$2" -n "$3") server row='' tries=10
    timeout 60 "$1" -d rxe0 "${common[@]}" >/dev/null 2>&1 & server=$!
    # The client is refused until the server listens.
    while [ -z "$row" ] && [ $((tries--)) -gt 0 ]; do
        row=$("$1" -d rxe1 "${common[@]}" 10.77.0.1 2>/dev/null | awk -v bytes="$2" '$1 == bytes') || sleep 0.3
    done
    wait $server || true
    awk -v column="$4" '{ print $column }' <<<"$row"
}

# ringway ARGUMENT...: `ringway bench` with a rank on each device.
ringway() {
    # shellcheck disable=SC2016  # the ranks expand it
    RINGWAY_RDMA=require "$RINGWAY" run -n 2 -- sh -c \
        'export RINGWAY_IB_HCA==rxe$RINGWAY_LOCAL_RANK:1; exec "$@"' rank "$RINGWAY" bench "$@" --csv
}

openmpi() {
    # shellcheck disable=SC2016  # the ranks expand it
    UCX_IB_GID_INDEX=$SOFTROCE_GID_INDEX UCX_UD_VERBS_ETH_DGID_CHECK=n UCX_WARN_UNUSED_ENV_VARS=n \
        mpirun.openmpi --allow-run-as-root --oversubscribe -np 2 --bind-to none --mca pml ucx \
        -x UCX_TLS=rc_verbs,ud_verbs,self bash -c \
        'UCX_NET_DEVICES=rxe$OMPI_COMM_WORLD_LOCAL_RANK:1 exec "$@"' rank "$BENCH_MPI" "$@"
}

# tell ROUND CASE WHO UNIT FIGURE
tell() { echo "$1,$2,$3,$4,$5"; }

p2p_round() {
    local bytes
    for bytes in $LATENCY_BYTES; do
        tell "$1" "latency $bytes B" ib_send_lat us "$(perftest ib_send_lat "$bytes" 1000 5)"
        tell "$1" "latency $bytes B" ringway us \
            "$(ringway p2p --only latency --sizes "$bytes" --iters 1000 | awk -F, 'NR > 1 { print $5 }')"
    done
    # The receiving side of ib_write_bw does not poll: a processor that polls is missing where the emulator needs it.
    for bytes in $BANDWIDTH_BYTES; do
        tell "$1" "bandwidth $bytes B" ib_write_bw MiB/s "$(perftest ib_write_bw "$bytes" "$(messages "$bytes")" 4)"
        tell "$1" "bandwidth $bytes B" ringway MiB/s \
            "$(ringway p2p --op write --only bandwidth --events --sizes "$bytes" --iters "$(messages "$bytes")" |
               awk -F, 'NR > 1 { print $12 }')"
    done
}

reduce_round() {
    ringway all-reduce --sizes $REDUCE_SIZES --budget-ms 300 |
        awk -F, -v round="$1" 'NR > 1 { print round ",all-reduce " $3 " B,ringway,us," $14 }'
    openmpi --ops all_reduce --sizes $REDUCE_SIZES --budget-ms 300 --inplace --quiet-pct 1000 --tries 1 2>/dev/null |
        awk -F, -v round="$1" '$3 == "all_reduce" { print round ",all-reduce " $5 " B,openmpi ucx,us," $7 }'
}

inside() {
    local round
    for ((round = 1; round <= ROUNDS; round++)); do
        [ "$ONLY" = all-reduce ] || p2p_round $round
        [ "$ONLY" = p2p ] || reduce_round $round
    done
}

# ----------------------------------------------------------------------- table

# Medians over the rounds, and how far Ringway is ahead.
table() {
    awk -F, '
        function median(text, v, n, i, j, t) {
            n = split(text, v, " ")
            for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j] + 0 < v[j - 1] + 0; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
            return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
        }
        NF == 5 && $5 != "" {
            if (!($2 in unit)) order[++cases] = $2
            unit[$2] = $4
            if ($3 == "ringway") ours[$2] = ours[$2] " " $5
            else { theirs[$2] = theirs[$2] " " $5; who[$2] = $3 }
        }
        END {
            print "| case | Ringway | peer | ratio |"
            print "|---|---|---|---|"
            for (i = 1; i <= cases; i++) {
                c = order[i]; a = median(ours[c]); b = median(theirs[c])
                ratio = !(a > 0 && b > 0) ? "missing" : sprintf("%.2f", unit[c] == "us" ? b / a : a / b)
                printf "| %s | %.1f %s | %.1f %s (%s) | %s |\n", c, a, unit[c], b, unit[c], who[c], ratio
            }
        }'
}

# ------------------------------------------------------------------------ main

ROUNDS=${ROUNDS:-3} ONLY=${ONLY:-}
while [ $# -gt 0 ]; do
    case $1 in
        inside) inside; exit;;
        --rounds) ROUNDS=${2:?}; shift 2;;
        --only) ONLY=${2:?}; shift 2;;
        *) sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2;;
    esac
done
RINGWAY=$(realpath "${RINGWAY:-$ROOT/target/release/ringway}")
[ -x "$RINGWAY" ] || { echo "rdma.sh: no $RINGWAY: cargo build --release" >&2; exit 2; }
for tool in ib_send_lat ib_write_bw mpirun.openmpi mpicc.openmpi; do
    command -v $tool >/dev/null || { echo "rdma.sh: no $tool: install perftest, openmpi-bin and libopenmpi-dev" >&2; exit 2; }
done
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
# Not for this machine's processor: the guest has another.
mpicc.openmpi -O3 -o "$made/bench_mpi" "$HERE/bench_mpi.c"
handed=()
for name in $(compgen -v RINGWAY_ || true); do handed+=(--env "$name"); done
"$ROOT/tests/soft-roce/guest.sh" run --timeout 1200 "${handed[@]}" --env "ROUNDS=$ROUNDS" --env "ONLY=$ONLY" \
    --env "RINGWAY=$RINGWAY" --env "BENCH_MPI=$made/bench_mpi" -- "$HERE/rdma.sh" inside | tee "$made/csv"
echo
table <"$made/csv"
