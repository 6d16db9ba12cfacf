#!/usr/bin/env bash
# two-guests.sh - runs a program as two ranks on two machines: each in a guest of its own (guest.sh) with its
# own kernel and RDMA device, joined by a network.
#
#   two-guests.sh [--netem SPEC] -- COMMAND [ARG...]
#
#   --netem SPEC   tc-netem rule on both ends of the link, such as 'loss 0.1%'
#
# Both run COMMAND with RINGWAY_RANK, RINGWAY_WORLD_SIZE and RINGWAY_COORDINATOR set. RINGWAY_* variables are handed
# on. Rank 0's output is printed as it is, rank 1's standard error behind "rank 1: ".
#
# Exits with 0 if both ranks did, else with the status of the first that did not.
set -euo pipefail

PORT=18515
guest=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/guest.sh
options=()
while [ $# -gt 0 ]; do
    case $1 in
        --netem) options+=(--netem "${2:?}"); shift 2;;
        --) shift; break;;
        *) sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2;;
    esac
done
[ $# -gt 0 ] || { echo "two-guests.sh: no command given" >&2; exit 2; }

"$guest" prepare
links=$(mktemp -d)
pids=()
# shellcheck disable=SC2317  # the trap calls it
cleanup() {
    local pid
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$links"
}
trap cleanup EXIT

for name in $(compgen -v RINGWAY_ || true); do options+=(--env "$name"); done
options+=(--timeout 300 --smp 1 --mem 1536 --env RINGWAY_WORLD_SIZE=2 --env "RINGWAY_COORDINATOR=10.77.0.1:$PORT")
# The coordination service listens beyond its guest, so the two show each other a token.
[ -n "${RINGWAY_TOKEN:-}${RINGWAY_INSECURE:-}" ] ||
    options+=(--env "RINGWAY_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')")

# rank NUMBER COMMAND...: rank 0 is in guest 1.
rank() {
    local number=$1 me=$(($1 + 1)) other=$((2 - $1))
    shift
    exec "$guest" run "${options[@]}" --env "RINGWAY_RANK=$number" \
        --link "$links/guest$me,$links/guest$other,$me" -- "$@"
}

(rank 0 "$@") & pids+=($!)
(rank 1 "$@" >/dev/null 2> >(sed 's/^/rank 1: /' >&2)) & pids+=($!)
status=0
for pid in "${pids[@]}"; do
    wait "$pid" || { ended=$?; [ $status != 0 ] || status=$ended; }
done
pids=()
exit $status
