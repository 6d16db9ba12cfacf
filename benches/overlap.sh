#!/bin/sh
# overlap.sh RINGWAY RATE [SIZES]: how much of a started all-reduce is hidden under computation between two network namespaces whose
# links carry RATE (as tc has it: 1gbit), so that most of the call is waiting for the wire. As root; the namespaces are run-peers.sh's.
# By a thread, unbound and bound, and by the caller, in turns, ROUNDS times (default 1).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
ringway=$1 rate=$2 sizes=${3:-64K,1M,8M}
export PEERS_NS=ov
"$here/peers/run-peers.sh" netns-up 2
trap '"$here/peers/run-peers.sh" netns-down' EXIT
for i in 1 2; do ip netns exec "ov$i" tc qdisc add dev eth0 root tbf rate "$rate" burst 512k latency 100ms; done
export RINGWAY_WORLD_SIZE=2 RINGWAY_COORDINATOR=10.77.0.1:29557 RINGWAY_TOKEN=of-this-benchmark-only RINGWAY_NET=tcp
for round in $(seq "${ROUNDS:-1}"); do
    for how in thread/off thread/auto caller/off; do
        export RINGWAY_PROGRESS="${how%/*}" RINGWAY_PIN_PROGRESS="${how#*/}"
        echo "# round $round: $rate, RINGWAY_PROGRESS=$RINGWAY_PROGRESS RINGWAY_PIN_PROGRESS=$RINGWAY_PIN_PROGRESS"
        RINGWAY_RANK=1 "$here/peers/ns-agent.sh" --rank 1 "$ringway" bench all-reduce --overlap --sizes "$sizes" >/dev/null &
        RINGWAY_RANK=0 "$here/peers/ns-agent.sh" --rank 0 "$ringway" bench all-reduce --overlap --sizes "$sizes"
        wait
    done
done
