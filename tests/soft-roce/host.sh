#!/usr/bin/env bash
# host.sh - run a command with RDMA devices of this machine: those that it has, or else
# a soft-RoCE device (rdma_rxe) that is made for the command and removed after it. For
# machines whose kernel has the module; guest.sh beside it needs nothing of the kernel.
#
#   host.sh run [--netdev NAME] -- COMMAND [ARG...]
#
#   --netdev NAME   the network interface to make the device on (default: the one of the
#                   default route, else the first that is up and not lo)
#
# COMMAND finds SOFTROCE=1, and in SOFTROCE_DEVS the names of the RDMA devices.
#
# Making a device needs root, or sudo that asks no password. COMMAND runs as whoever
# started this, and needs enough locked memory (ulimit -l) for what it registers.
#
# Exit status: the command's own; 125 when there is no device and none could be made.
set -euo pipefail

say() { printf 'host.sh: %s\n' "$*" >&2; }
die() { say "$*"; exit 125; }

PATH=$PATH:/usr/sbin:/sbin
# The device that is made when there is none.
MADE=rxe_ringway

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

devices() { ls /sys/class/infiniband 2>/dev/null || true; }

# The interface to make a device on.
find_netdev() {
    local found
    found=$(ip -o route show default 2>/dev/null | awk '{ for (i = 1; i < NF; i++) if ($i == "dev") { print $(i + 1); exit } }')
    [ -n "$found" ] ||
        found=$(ip -o link show up 2>/dev/null | awk -F': ' '$2 != "lo" { sub(/@.*/, "", $2); print $2; exit }')
    printf '%s' "$found"
}

# A RoCEv2 GID appears a moment after the device.
wait_gid() {
    local try types=/sys/class/infiniband/$1/ports/1/gid_attrs/types
    for ((try = 0; try < 100; try++)); do
        ! grep -qs 'RoCE v2' "$types"/* 2>/dev/null || return 0
        sleep 0.05
    done
    die "$1 has no RoCEv2 GID after 5 s: does its interface have an address? (ip addr)"
}

make_device() {
    as_root true 2>/dev/null || die "there is no RDMA device, and making one needs root (or sudo without a password)"
    command -v rdma >/dev/null || die "no command rdma: install iproute2"
    as_root modprobe rdma_rxe 2>/dev/null || [ -d /sys/module/rdma_rxe ] ||
        die "this kernel ($(uname -r)) has no module rdma_rxe. On Ubuntu: apt-get install linux-modules-extra-$(uname -r)." \
            "Where the kernel is not yours to choose, guest.sh brings its own"
    as_root modprobe rdma_ucm 2>/dev/null || true
    local netdev=${1:-$(find_netdev)}
    [ -n "$netdev" ] || die "no network interface is up: give one by --netdev"
    as_root rdma link add "$MADE" type rxe netdev "$netdev" || die "could not make a device on $netdev"
    made=1
    wait_gid "$MADE"
    say "made $MADE on $netdev"
}

made=''
# The kernel waits here for a device that is still in use: not for ever.
cleanup() {
    [ -z "$made" ] || as_root timeout 20 rdma link delete "$MADE" || say "could not remove $MADE"
}

run() {
    local netdev=''
    while [ $# -gt 0 ]; do
        case $1 in
            --netdev) [ $# -gt 1 ] || die "--netdev needs a name"; netdev=$2; shift 2;;
            --) shift; break;;
            -*) die "unknown option $1 (see --help)";;
            *) break;;
        esac
    done
    [ $# -gt 0 ] || die "no command given (see --help)"
    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    [ -n "$(devices)" ] || make_device "$netdev"
    compgen -G '/usr/lib*/*/libibverbs.so.1' >/dev/null || compgen -G '/usr/lib*/libibverbs.so.1' >/dev/null ||
        say "no libibverbs found: install rdma-core (Debian and Ubuntu: ibverbs-providers)"
    SOFTROCE=1 SOFTROCE_DEVS=$(devices | xargs) "$@"
}

command=${1:-}
[ $# = 0 ] || shift
case $command in
    run) run "$@";;
    -h|--help|help) sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "$0";;
    *) sed -n '2,4{s/^# \{0,1\}//;p}' "$0" >&2; exit 125;;
esac
