#!/usr/bin/env bash
# misconfigurations.sh - breaks RDMA in the ways in which it is commonly broken, and asks `ringway` what is wrong: each
# must get its own diagnosis, on each side its own, within seconds, and nothing may hang.
#
#   misconfigurations.sh PROGRAM
#
# Runs as root where guest.sh has made two devices on a veth pair, rxe0 and rxe1; it takes their addresses away and gives
# them back. The same list, and what needs other devices than these, is tested without any device in
# dataplane/tests/rdma_misconfigurations.rs. Exits with 1 when a diagnosis was missing.
set -uo pipefail

# Where another user can run it: a checkout is often closed to others.
TMP=$(mktemp -d)
chmod 755 "$TMP"
trap 'rm -rf "$TMP"' EXIT
PROGRAM=$TMP/ringway
cp "${1:?the ringway program}" "$PROGRAM" || exit
# None of these waits for anything but a peer's answer: far beyond what that takes, even in an emulator.
LIMIT_S=30
read -ra DEVICES <<<"${SOFTROCE_DEVS:?run this where guest.sh has made the devices}"
read -ra NETDEVS <<<"${SOFTROCE_NETDEVS:-sr0 sr1}"
read -ra IPS <<<"$SOFTROCE_IPS"
unset RINGWAY_NET
# The ranks of a guest would meet in shared memory.
export RINGWAY_SHM=off
export RINGWAY_RDMA=require
export PATH=$PATH:/usr/sbin:/sbin
failed=0

# one [NAME=VALUE]... -- [COMMAND...]: a rank alone says what is wrong on its host; COMMAND breaks things for it and ends
# with running its arguments.
one() {
    local settings=()
    while [ "$1" != -- ]; do settings+=("$1"); shift; done
    shift
    timeout $LIMIT_S env "${settings[@]}" "$@" "$PROGRAM" run -n 1 -- "$PROGRAM" bench all-reduce -b 8 -e 8 --iters 1
}

# two "SETTINGS" "SETTINGS": rank 0 on the first device and rank 1 on the second, each with its settings, each to its
# own end.
two() {
    # shellcheck disable=SC2016  # the ranks expand it
    timeout $LIMIT_S "$PROGRAM" run -n 2 -- bash -c '
        devices=($3)
        export RINGWAY_IB_HCA==${devices[RINGWAY_RANK]}
        [ $RINGWAY_RANK = 0 ] && export $1 _= || export $2 _=
        "$0" bench all-reduce -b 8 -e 8 --iters 1 || true' "$PROGRAM" "$1" "$2" "${DEVICES[*]}"
}

# check NAME "WORDS"... -- COMMAND...: COMMAND, which must end in time and say all of the WORDS, each on some line.
check() {
    local name=$1 words=() since=$EPOCHREALTIME code=0 word missing=''
    shift
    while [ "$1" != -- ]; do words+=("$1"); shift; done
    shift
    "$@" >"$TMP/said" 2>&1 || code=$?
    for word in "${words[@]}"; do grep -qF -- "$word" "$TMP/said" || missing+="    it was not said: $word"$'\n'; done
    [ $code != 124 ] || missing+="    it did not end within $LIMIT_S s"$'\n'
    local verdict=ok
    [ -z "$missing" ] || { verdict=FAILED; failed=1; }
    awk -v n="$name" -v s="$since" -v e="$EPOCHREALTIME" -v v=$verdict 'BEGIN { printf "%-34s %s, %.1f s\n", n, v, e - s }'
    [ -z "$missing" ] || { printf '%s' "$missing"; sed 's/^/    | /' "$TMP/said"; }
}

# ----------------------------------------------------------------- how it breaks

# In a mount namespace of its own: hidden PATH... -- COMMAND...: each PATH is empty there.
hidden() {
    # shellcheck disable=SC2016
    unshare -m bash -c '
        while [ "$1" != -- ]; do
            if [ -d "$1" ]; then mount -t tmpfs none "$1"; else mount --bind /dev/null "$1"; fi || exit
            shift
        done
        shift; exec "$@"' hidden "$@"
}

# A /dev as a container without devices has it.
without_dev_infiniband() {
    # shellcheck disable=SC2016
    unshare -m bash -c '
        mkdir -p "$0" && cp -a /dev/null /dev/zero /dev/urandom /dev/random /dev/fd "$0" && mount --bind "$0" /dev &&
            exec "$@"' "$TMP/dev" "$@"
}

as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$@"; }
with_64_kib() { bash -c 'ulimit -l 64 && exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$@"' limited "$@"; }
denied() {
    chmod 600 /dev/infiniband/uverbs*
    as_nobody "$@"
    local code=$?
    chmod 666 /dev/infiniband/uverbs*
    return $code
}
export -f hidden without_dev_infiniband as_nobody with_64_kib denied
export TMP
broken() { one "$1" -- bash -c '"$@"' broken "${@:2}"; }

port_down() { ip link set "${NETDEVS[1]}" down && one "RINGWAY_IB_HCA==${DEVICES[1]}" --; }
port_up() {
    local i
    for i in 0 1; do
        ip link set "${NETDEVS[i]}" up
        ip route replace "${IPS[1 - i]}" dev "${NETDEVS[i]}" src "${IPS[i]}" table $((100 + i))
    done
    wait_for grep -q ACTIVE "/sys/class/infiniband/${DEVICES[1]}/ports/1/state"
}

# wait_for COMMAND...: until it succeeds, ten seconds at most.
wait_for() {
    local end=$((SECONDS + 10))
    until "$@"; do [ $SECONDS -lt $end ] || return; sleep 0.05; done
}
has_gid() { grep -qs "$2" /sys/class/infiniband/"$1"/ports/1/gids/[0-7]; }
has_no_gid() { ! has_gid "$@"; }

ipv6_only() {
    echo 0 >"/proc/sys/net/ipv6/conf/${NETDEVS[0]}/disable_ipv6"
    ip addr add fd00:77::1/64 dev "${NETDEVS[0]}" nodad && ip addr del "${IPS[0]}/32" dev "${NETDEVS[0]}"
    wait_for has_gid "${DEVICES[0]}" ^fd00 && wait_for has_no_gid "${DEVICES[0]}" ffff
    two A= B=
}
no_address() {
    ip addr del fd00:77::1/64 dev "${NETDEVS[0]}"
    wait_for has_no_gid "${DEVICES[0]}" ^fd00
    two A= B=
}
ipv4_again() {
    echo 1 >"/proc/sys/net/ipv6/conf/${NETDEVS[0]}/disable_ipv6"
    ip addr add "${IPS[0]}/32" dev "${NETDEVS[0]}"
    ip route replace "${IPS[1]}" dev "${NETDEVS[0]}" src "${IPS[0]}" table 100
    wait_for has_gid "${DEVICES[0]}" ffff
}

small_mtu() { ip link set "${NETDEVS[1]}" mtu 1500 && two A= B=; }
large_mtu() { ip link set "${NETDEVS[1]}" mtu "$(cat "/sys/class/net/${NETDEVS[0]}/mtu")"; }

# -------------------------------------------------------------------- the list

check "healthy, for comparison" "to rank 1 by rdma" "to rank 0 by rdma" -- two A= B=
check "container without /dev/infiniband" "/dev/infiniband is not there" "--device=/dev/infiniband" -- \
    broken A= without_dev_infiniband
check "no device file" "/dev/infiniband/uverbs0 is not there" "--device=/dev/infiniband/uverbs0" -- \
    broken "RINGWAY_IB_HCA==${DEVICES[0]}" hidden /dev/infiniband --
check "no permission" "uverbs0 is of user root" "Permission denied" "join its group" -- \
    broken "RINGWAY_IB_HCA==${DEVICES[0]}" denied
check "memlock of 64 KiB" "only 64 KiB of memory may be locked" "ulimit -l unlimited" -- broken A= with_64_kib
check "no verbs library" "the verbs library cannot be used" "apt install libibverbs1" -- \
    broken A= hidden "$(readlink -f /usr/lib/*/libibverbs.so.1)" --
check "no provider" "the verbs library does not know ${DEVICES[0]}" "ibverbs-providers" -- \
    broken A= hidden /etc/libibverbs.d --
check "wrong GID index" "has no GID at RINGWAY_IB_GID_INDEX=7: it has GID 0" "unset RINGWAY_IB_GID_INDEX" -- \
    one RINGWAY_IB_GID_INDEX=7 --
check "filter that leaves nothing" "RINGWAY_IB_HCA=mlx5 leaves nothing of ${DEVICES[0]}:1" "name one of those" -- \
    one RINGWAY_IB_HCA=mlx5 --
check "absent partition key" "no partition key at RINGWAY_IB_PKEY=5: it has 0: 0xffff" -- one RINGWAY_IB_PKEY=5 --
check "address range without a GID" "outside of RINGWAY_IB_ADDR_RANGE=192.168.0.0/16" -- \
    one RINGWAY_IB_ADDR_RANGE=192.168.0.0/16 --
check "version of RoCE that is not there" "RINGWAY_IB_ROCE_VERSION asks for RoCE v1" -- one RINGWAY_IB_ROCE_VERSION=1 --
check "interface in another namespace" "is in another network namespace" -- \
    one A= -- unshare -n -m bash -c 'mount -t sysfs none /sys && ip link set lo up && exec "$@"' apart
check "settings that contradict" "RINGWAY_RDMA=require and RINGWAY_NET=tcp contradict each other" -- \
    one RINGWAY_NET=tcp --
check "required here, off there" "rank 0 has no way to rank 1" "it says: RINGWAY_RDMA=off" \
    "rank 1 has no way to rank 0" "the peer requires rdma" -- two A= RINGWAY_RDMA=off
check "required on both, unusable on one" "bench: rank 1: no way to move data: RDMA is required" \
    "rank 0 has no way to rank 1" "it says: port ${DEVICES[1]}:1 has no partition key" -- two A= RINGWAY_IB_PKEY=5
check "preferred here, off there" "WARN" "by uring (not rdma: the peer does not offer it, it says: RINGWAY_RDMA=off" -- \
    two RINGWAY_RDMA=prefer RINGWAY_RDMA=off
check "preferred and unusable" "RDMA is not used, TCP is: " "by uring (not rdma: port ${DEVICES[0]}:1 has no GID" -- \
    two "RINGWAY_RDMA=prefer RINGWAY_IB_GID_INDEX=7" RINGWAY_RDMA=prefer
check "MTUs that differ" "by rdma" "MTU 1024" "give both interfaces one MTU" -- small_mtu
large_mtu
check "IPv6 on one side only" "this side's GIDs are IPv6, the peer's IPv4" "this side's GIDs are IPv4, the peer's IPv6" -- \
    ipv6_only
check "no address on one side" "this side's GIDs are link-local, the peer's are not" \
    "the peer's GIDs are link-local, this side's are not" -- no_address
ipv4_again
check "port down" "port ${DEVICES[1]}:1 is down (its link: Disabled)" "ip link set ${NETDEVS[1]} up" -- port_down
port_up
check "healthy again" "to rank 1 by rdma" "to rank 0 by rdma" -- two A= B=
exit $failed
