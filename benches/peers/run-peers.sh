#!/usr/bin/env bash
# run-peers.sh - measure the peers of an all-reduce/transport runtime on one Linux machine; prints CSV.
#
# Needs (Debian 12 names):
#   apt: gcc g++ python3-venv iproute2 openmpi-bin libopenmpi-dev mpich libmpich-dev libucx0 ucx-utils
#        libfabric1 libgloo-dev libhwloc-dev iperf3
#   pip (each in a virtual environment of its own, made by "setup" under $PEERS_HOME):
#        torch numpy ninja     -> gloo        (plain PyPI has CUDA builds only: 5.4 GB; they run without a GPU)
#        openmpi (5.0.x)       -> openmpi5    mpich (5.0.x) -> mpich5     impi-devel -> impi
#        oneccl-cpu-devel intel-cmplr-lib-rt  -> oneccl (uses the Intel MPI runtime it brings)
#   Root (or CAP_NET_ADMIN+CAP_SYS_ADMIN) for the netns peers, for --cc, and for openmpi5-ucx-tcp and
#   mpich5-ucx-tcp, whose UCX 1.20 does not take "lo" for a route and gets a namespace of its own.
#
# Usage:
#   run-peers.sh setup                      virtual environments and programs (idempotent)
#   run-peers.sh list                       peers known here, and whether each is usable
#   run-peers.sh [--ops LIST] [--sizes LIST | --min B --max B --step K] [--ranks 2,4] [--peers LIST]
#                [--rounds N] [--first-round N] [--budget-ms MS] [--wait-quiet S] [--limit S] [--cc NAME] [--tunables STR]
#                [--bind] [--near NS] [--inplace] [--init-only]
#   run-peers.sh exec PEER RANKS -- ARGS..  one run of a peer's benchmark with the given arguments
#     peers: names, or the groups shm, tcp, netns, all (default: shm,tcp). Sizes take K and M.
#     --cc NAME: the tcp peers run in a network namespace of their own whose TCP congestion control is NAME
#     (loopback there, too), the netns peers' namespaces get it as well; the transport column gets "-NAME".
#     Matters where the machine's default is bbr, which paces even loopback. Needs root.
#     --tunables STR: GLIBC_TUNABLES of the peers; glibc.malloc.hugetlb=1 (needs madvise or always in
#     /sys/kernel/mm/transparent_hugepage/enabled) makes most MPIs about twice as fast at tens of MB.
#     Rounds are interleaved: every peer once, then the next round in another order.
#     --wait-quiet S: before each run wait up to S seconds for a second in which the rest of the machine
#     uses under 15 % of one core (others' load during the run is in the column others_pct anyway).
#     --bind: the ranks of every peer but Gloo are bound to cores, by the peer's own means; in namespaces everybody's, by
#     taskset. Without it Open MPI and Intel MPI bind theirs as long as there are enough cores, and nobody else does.
#     --near NS: make each run while a cache line passes between the first two CPUs within NS nanoseconds (handoff.c):
#     wait up to 20 s for such a moment, and run again, up to 4 times, if it was over before the run was. On a virtual
#     machine whose CPUs move about on the host, all peers' times depend on it.
# Ringway itself is the peers ringway-tcp, ringway-shm, ringway-plain-shm (buffers of malloc, not of comm.alloc) and ringway-netns,
# by the program at $RINGWAY (default: target/release/ringway here).
# Output: the CSV of bench_mpi.c, with the handoff in ns before and after the run, on stdout; remarks start with '#'.
# stderr of the peers goes to $PEERS_LOG (default: $PEERS_HOME/log).
set -u
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PEERS_HOME=${PEERS_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/peers-bench}
PEERS_LOG=${PEERS_LOG:-$PEERS_HOME/log}
B=$PEERS_HOME/bin
RINGWAY=${RINGWAY:-$HERE/../../target/release/ringway}   # cargo build --release makes it
V() { echo "$PEERS_HOME/venv-$1"; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
CFLAGS=${CFLAGS:--O3 -march=native}
NS=${PEERS_NS:-pb}                                # prefix of the network namespaces
TCPCC=${PEERS_CC:-}
NET=10.77.0                                       # addresses inside those namespaces only

SHM="openmpi4-shm openmpi5-shm openmpi4-ucx-shm openmpi5-ucx-shm mpich4-shm mpich5-shm mpich5-ofi-shm impi-shm oneccl-shm ringway-shm ringway-plain-shm"
TCP="ringway-tcp openmpi4-tcp openmpi5-tcp openmpi4-ucx-tcp openmpi5-ucx-tcp openmpi5-ofi-tcp mpich4-tcp mpich5-ucx-tcp mpich5-ofi-tcp mpich5-ofi-sockets impi-tcp oneccl-tcp gloo-tcp gloo-cpp-tcp gloo-native-tcp"
NETNS="ringway-netns openmpi4-netns openmpi5-netns openmpi4-ucx-netns openmpi5-ucx-netns mpich4-netns mpich5-ucx-netns mpich5-ofi-netns impi-netns gloo-netns gloo-cpp-netns"

setup() {
    mkdir -p "$B" "$PEERS_LOG"
    venv() { local d; d=$(V "$1"); shift; [ -x "$d/bin/python" ] || python3 -m venv "$d" || return 1; "$d/bin/pip" install -q "$@" 2>&1 | sed 's/^/# pip: /'; }
    venv torch torch numpy ninja; venv ompi5 openmpi; venv mpich5 mpich; venv impi impi-devel; venv oneccl oneccl-cpu-devel intel-cmplr-lib-rt
    build
}
build() {
    mkdir -p "$B" "$PEERS_LOG"; cd "$HERE" || return 1
    local I L
    gcc $CFLAGS -o "$B/handoff" handoff.c
    gcc $CFLAGS -o "$B/bounds" bounds.c
    command -v mpicc.openmpi >/dev/null && mpicc.openmpi $CFLAGS -o "$B/openmpi4" bench_mpi.c
    command -v mpicc.mpich >/dev/null && mpicc.mpich $CFLAGS -o "$B/mpich4" bench_mpi.c
    [ -x "$(V ompi5)/bin/mpicc" ] && "$(V ompi5)/bin/mpicc" $CFLAGS -o "$B/openmpi5" bench_mpi.c
    [ -x "$(V mpich5)/bin/mpicc" ] && "$(V mpich5)/bin/mpicc" $CFLAGS -o "$B/mpich5" bench_mpi.c
    I=$(V impi)/include L=$(V impi)/lib
    [ -f "$I/mpi.h" ] && gcc $CFLAGS -I"$I" -o "$B/impi" bench_mpi.c -L"$L" -Wl,-rpath,"$L" -lmpi
    L=$(V oneccl)/lib
    [ -f "$L/ccl/cpu/lib/libccl.a" ] && [ -f "$I/mpi.h" ] && gcc $CFLAGS -DSHIM -I"$I" -c bench_mpi.c -o "$B/ccl1.o" &&
        g++ -O2 -std=c++17 -I"$(V oneccl)/include" -I"$I" -c shim_ccl.cpp -o "$B/ccl2.o" &&
        g++ -o "$B/oneccl" "$B/ccl1.o" "$B/ccl2.o" "$L/ccl/cpu/lib/libccl.a" -L"$L" -Wl,-rpath,"$L" -lmpi -l:libintlc.so.5 -l:libsvml.so -l:libimf.so -l:libirng.so -lhwloc -lpthread -ldl
    command -v mpicc.openmpi >/dev/null && [ -f /usr/include/gloo/config.h ] && mpicc.openmpi $CFLAGS -DSHIM -c bench_mpi.c -o "$B/gloo1.o" &&
        mpicxx.openmpi -O2 -DOMPI_SKIP_MPICXX -c shim_gloo.cpp -o "$B/gloo2.o" && mpicxx.openmpi -o "$B/gloo-native" "$B/gloo1.o" "$B/gloo2.o" -lgloo
    rm -f "$B"/*.o
}

# cmd PEER RANKS: sets CMD (launcher + program), IMPL, TR; returns 1 for an unknown or missing peer
cmd() {
    local p=$1 n=$2 ns="" i h="" O4 O5 M4 M5 IM over=() free=()
    CMD=(); IMPL=${p%%-*}; TR=${p#*-}
    [ "$n" -gt "$(nproc)" ] && over=(1)
    case $p in *-netns) ns=1; for ((i = 1; i <= n; i++)); do h=$h,$NET.$i; done; h=${h#,};; esac
    # Open MPI: when oversubscribed both versions yield while idle only if told that slots are exceeded
    O4=(mpirun.openmpi -n "$n"); O5=("$(V ompi5)/bin/mpirun" -n "$n")
    if [ -z "$ns" ]; then
        [ ${#over[@]} -gt 0 ] && { O4+=(--oversubscribe --mca mpi_yield_when_idle 1); O5+=(--map-by :OVERSUBSCRIBE --mca mpi_yield_when_idle 1); }
        M4=(mpiexec.mpich -n "$n"); M5=("$(V mpich5)/bin/mpiexec" -n "$n"); IM=("$(V impi)/bin/mpiexec" -n "$n")
        free=("${O4[@]}")
        [ -n "$BIND" ] && { O4+=(--bind-to core:overload-allowed); O5+=(--bind-to core:overload-allowed); M4+=(-bind-to core); M5+=(-bind-to core); }
    else
        local hub=(ip netns exec "${NS}hub")
        O4=("${hub[@]}" mpirun.openmpi -n "$n" --host "$h" --mca plm_rsh_agent "$HERE/ns-agent.sh" --mca oob_tcp_if_include $NET.0/24 --mca btl_tcp_if_include $NET.0/24)
        O5=("${hub[@]}" "$(V ompi5)/bin/mpirun" -n "$n" --host "$h" --prtemca plm_ssh_agent "$HERE/ns-agent.sh" --prtemca prte_if_include $NET.0/24 --mca btl_tcp_if_include $NET.0/24)
        O4+=(--bind-to none); O5+=(--bind-to none)    # each "host" would bind its rank to core 0
        [ ${#over[@]} -gt 0 ] && { O4+=(--mca mpi_yield_when_idle 1); O5+=(--mca mpi_yield_when_idle 1); }
        M4=("${hub[@]}" mpiexec.mpich -n "$n" -ppn 1 -hosts "$h" -launcher ssh -launcher-exec "$HERE/ns-agent.sh" -iface eth0)
        M5=("${hub[@]}" "$(V mpich5)/bin/mpiexec" -n "$n" -ppn 1 -hosts "$h" -launcher ssh -launcher-exec "$HERE/ns-agent.sh" -iface eth0)
        IM=("${hub[@]}" "$(V impi)/bin/mpiexec" -n "$n" -ppn 1 -hosts "$h" -bootstrap ssh -bootstrap-exec "$HERE/ns-agent.sh" -iface eth0)
    fi
    case $p in
    openmpi4-shm)       CMD=("${O4[@]}" --mca pml ob1 --mca btl vader,self "$B/openmpi4");;
    openmpi5-shm)       CMD=("${O5[@]}" --mca pml ob1 --mca btl sm,self "$B/openmpi5");;
    openmpi4-ucx-shm)   CMD=("${O4[@]}" --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=posix,sysv,cma,self "$B/openmpi4");;
    openmpi5-ucx-shm)   CMD=("${O5[@]}" --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=posix,sysv,cma,self "$B/openmpi5");;
    mpich4-shm)         CMD=("${M4[@]}" "$B/mpich4");;
    mpich5-shm)         CMD=("${M5[@]}" "$B/mpich5");;
    mpich5-ofi-shm)     CMD=("${M5[@]}" -genv MPIR_CVAR_CH4_NETMOD ofi "$B/mpich5");;
    impi-shm)           CMD=("${IM[@]}" -genv I_MPI_FABRICS shm "$B/impi");;
    oneccl-shm)         CMD=("$(V oneccl)/bin/mpiexec" -n "$n" -genv I_MPI_FABRICS shm "$B/oneccl");;
    ringway-shm)        CMD=(env RINGWAY_NET=shm ${BIND:+RINGWAY_PIN=spread} "$HERE/bench_ringway.py" "$RINGWAY" "$n");;
    ringway-plain-shm)  CMD=(env RINGWAY_NET=shm ${BIND:+RINGWAY_PIN=spread} "$HERE/bench_ringway.py" "$RINGWAY" "$n" --plain);;
    ringway-netns)      CMD=(env RINGWAY_NET=tcp "$HERE/bench_ringway.py" "$RINGWAY" "$n" --wrap "$HERE/ns-agent.sh --rank {rank}" --master $NET.1:29556);;
    ringway-tcp)        CMD=(env RINGWAY_NET=tcp ${BIND:+RINGWAY_PIN=spread} "$HERE/bench_ringway.py" "$RINGWAY" "$n");;
    openmpi4-tcp)       CMD=("${O4[@]}" --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo "$B/openmpi4");;
    openmpi5-tcp)       CMD=("${O5[@]}" --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo "$B/openmpi5");;
    openmpi4-ucx-tcp)   CMD=("${O4[@]}" --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=tcp,self -x UCX_NET_DEVICES=lo "$B/openmpi4");;
    openmpi5-ucx-tcp)   CMD=("${O5[@]}" --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=tcp,self -x UCX_NET_DEVICES=d0 "$B/openmpi5");;
    openmpi5-ofi-tcp)   CMD=("${O5[@]}" --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include "tcp;ofi_rxm" -x FI_TCP_IFACE=lo "$B/openmpi5");;
    mpich4-tcp)         CMD=("${M4[@]}" -genv MPIR_CVAR_NOLOCAL 1 -genv UCX_TLS tcp,self -genv UCX_NET_DEVICES lo "$B/mpich4");;
    mpich5-ucx-tcp)     CMD=("${M5[@]}" -genv MPIR_CVAR_CH4_NETMOD ucx -genv MPIR_CVAR_NOLOCAL 1 -genv UCX_TLS tcp,self -genv UCX_NET_DEVICES d0 "$B/mpich5");;
    mpich5-ofi-tcp)     CMD=("${M5[@]}" -genv MPIR_CVAR_CH4_NETMOD ofi -genv MPIR_CVAR_NOLOCAL 1 -genv FI_PROVIDER tcp -genv FI_TCP_IFACE lo "$B/mpich5");;
    mpich5-ofi-sockets) CMD=("${M5[@]}" -genv MPIR_CVAR_CH4_NETMOD ofi -genv MPIR_CVAR_NOLOCAL 1 -genv FI_PROVIDER sockets -genv FI_SOCKETS_IFACE lo "$B/mpich5");;
    impi-tcp)           CMD=("${IM[@]}" -genv I_MPI_FABRICS ofi -genv I_MPI_COLL_INTRANODE pt2pt -genv I_MPI_OFI_PROVIDER tcp -genv FI_TCP_IFACE lo "$B/impi");;
    oneccl-tcp)         CMD=("$(V oneccl)/bin/mpiexec" -n "$n" -genv I_MPI_FABRICS ofi -genv I_MPI_COLL_INTRANODE pt2pt -genv I_MPI_OFI_PROVIDER tcp -genv FI_TCP_IFACE lo "$B/oneccl");;
    gloo-tcp)           CMD=("$(V torch)/bin/python" "$HERE/bench_gloo.py" --spawn "$n");;
    gloo-cpp-tcp)       IMPL=gloo-cpp TR=tcp; CMD=(env PATH="$(V torch)/bin:$PATH" "$(V torch)/bin/python" "$HERE/bench_gloo.py" --spawn "$n" --cpp --build-dir "$PEERS_HOME/gloo-ext");;
    gloo-native-tcp)    IMPL=gloo-native TR=tcp; CMD=("${free[@]}" --bind-to none "$B/gloo-native");;
    openmpi4-netns)     CMD=("${O4[@]}" --mca pml ob1 --mca btl tcp,self "$B/openmpi4");;
    openmpi5-netns)     CMD=("${O5[@]}" --mca pml ob1 --mca btl tcp,self "$B/openmpi5");;
    openmpi4-ucx-netns) CMD=("${O4[@]}" --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=tcp,self -x UCX_NET_DEVICES=eth0 "$B/openmpi4");;
    openmpi5-ucx-netns) CMD=("${O5[@]}" --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=tcp,self -x UCX_NET_DEVICES=eth0 "$B/openmpi5");;
    mpich4-netns)       CMD=("${M4[@]}" -genv UCX_TLS tcp,self -genv UCX_NET_DEVICES eth0 "$B/mpich4");;
    mpich5-ucx-netns)   CMD=("${M5[@]}" -genv MPIR_CVAR_CH4_NETMOD ucx -genv UCX_TLS tcp,self -genv UCX_NET_DEVICES eth0 "$B/mpich5");;
    mpich5-ofi-netns)   CMD=("${M5[@]}" -genv MPIR_CVAR_CH4_NETMOD ofi -genv FI_PROVIDER tcp -genv FI_TCP_IFACE eth0 "$B/mpich5");;
    impi-netns)         CMD=("${IM[@]}" -genv I_MPI_FABRICS ofi -genv I_MPI_COLL_INTRANODE pt2pt -genv I_MPI_OFI_PROVIDER tcp -genv FI_TCP_IFACE eth0 "$B/impi");;
    gloo-netns|gloo-cpp-netns)
        CMD=(env PATH="$(V torch)/bin:$PATH" "$(V torch)/bin/python" "$HERE/bench_gloo.py" --spawn "$n" --wrap "$HERE/ns-agent.sh --rank {rank}" --master $NET.1 --port 29555 --ifname eth0)
        [ "$p" = gloo-cpp-netns ] && { IMPL=gloo-cpp; TR=netns; CMD+=(--cpp --build-dir "$PEERS_HOME/gloo-ext"); };;
    *) return 1;;
    esac
    [ -n "$TCPCC" ] && case $p in *-tcp|*-sockets) CMD=(ip netns exec "${NS}lo" "${CMD[@]}"); TR=$TR-$TCPCC;; *-netns) TR=$TR-$TCPCC;; esac
    # UCX 1.20 takes "lo" for unreachable: give it a namespace with another device (bytes still go over loopback)
    [ -z "$TCPCC" ] && case $p in openmpi5-ucx-tcp|mpich5-ucx-tcp) CMD=(ip netns exec "${NS}lo" "${CMD[@]}");; esac
    case $p in impi-*) export I_MPI_ROOT; I_MPI_ROOT=$(V impi);; oneccl-*) export I_MPI_ROOT; I_MPI_ROOT=$(V oneccl);; *) unset I_MPI_ROOT;; esac
    local c; for c in "${CMD[@]}"; do case $c in "$B"/*|*/venv-*/bin/*|"$RINGWAY") [ -x "$c" ] || return 1;; esac; done
    return 0
}

netns_up() {     # a bridge in a namespace of its own, and one namespace per rank; no way out of them
    local n=$1 i
    ip netns add "${NS}hub" || return 1
    ip -n "${NS}hub" link set lo up; ip -n "${NS}hub" link add eth0 type bridge; ip -n "${NS}hub" addr add $NET.254/24 dev eth0; ip -n "${NS}hub" link set eth0 up
    for ((i = 1; i <= n; i++)); do
        ip netns add "$NS$i"; ip -n "$NS$i" link set lo up
        ip -n "${NS}hub" link add "v$i" type veth peer name eth0 netns "$NS$i"
        ip -n "${NS}hub" link set "v$i" master eth0 up; ip -n "$NS$i" addr add $NET.$i/24 dev eth0; ip -n "$NS$i" link set eth0 up
    done
}
lo_up() {        # one namespace for both ranks: an address on d0, reached through that namespace's loopback
    ip netns add "${NS}lo" && ip -n "${NS}lo" link set lo up && ip -n "${NS}lo" link add d0 type veth peer name d1 &&
        ip -n "${NS}lo" addr add $NET.250/24 dev d0 && ip -n "${NS}lo" link set d0 up && ip -n "${NS}lo" link set d1 up
}
netns_down() { local s; for s in $(ip netns list 2>/dev/null | awk '{print $1}'); do case $s in "$NS"hub|"$NS"lo|"$NS"[0-9]*) ip netns del "$s";; esac; done; }

machine_cpu() {
    if [ -r /sys/fs/cgroup/cpuacct/cpuacct.usage ]; then awk '{printf "%d", $1/1000}' /sys/fs/cgroup/cpuacct/cpuacct.usage
    elif [ -r /sys/fs/cgroup/cpu.stat ]; then awk 'NR==1{print $2}' /sys/fs/cgroup/cpu.stat
    else awk -v h="$(getconf CLK_TCK)" '/^cpu /{printf "%d", ($2+$3+$4+$7+$8)*1e6/h}' /proc/stat; fi
}
# ns, or 0 where it was not built or there is one CPU
handoff() { [ -x "$B/handoff" ] && timeout 5 "$B/handoff" || echo 0; }
is_near() { [ -z "$NEAR" ] || [ "$1" -le "$NEAR" ]; }
wait_near() { local end=$((SECONDS + 20)); BEFORE=$(handoff); while ! is_near "$BEFORE" && [ $SECONDS -lt $end ]; do sleep 0.2; BEFORE=$(handoff); done; }
wait_quiet() {
    local end=$((SECONDS + $1)) a b
    [ "$1" -gt 0 ] || return 0
    while [ $SECONDS -lt $end ]; do a=$(machine_cpu); sleep 1; b=$(machine_cpu); [ $((b - a)) -lt 150000 ] && return 0; done
}

BIND= NEAR=
case ${1:-} in
setup) setup; exit;;
build) build; exit;;
list) for p in $SHM $TCP $NETNS; do if cmd "$p" 2; then echo "$p: ${CMD[*]}"; else echo "$p: not installed"; fi; done; exit;;
netns-up) netns_up "${2:-4}" && lo_up; exit;;
netns-down) netns_down; exit;;
exec) shift; p=$1 n=$2; shift 3; cmd "$p" "$n" || { echo "no peer $p" >&2; exit 2; }; cd /tmp; export PEERS_NS=$NS; exec "${CMD[@]}" "$@";;
esac

OPS= TUN= FIRST=1 SIZES=() RANKS=2 PEERS=shm,tcp ROUNDS=3 BUDGET=150 QUIET=0 LIMIT=240 MORE=()
while [ $# -gt 0 ]; do
    case $1 in
    --ops) OPS=$2; shift 2;;
    --sizes|--min|--max|--step) SIZES+=("$1" "$2"); shift 2;;
    --ranks) RANKS=$2; shift 2;;
    --peers) PEERS=$2; shift 2;;
    --rounds) ROUNDS=$2; shift 2;;
    --first-round) FIRST=$2; shift 2;;
    --budget-ms) BUDGET=$2; shift 2;;
    --wait-quiet) QUIET=$2; shift 2;;
    --limit) LIMIT=$2; shift 2;;
    --cc) TCPCC=$2; shift 2;;
    --tunables) TUN=$2; shift 2;;
    --bind) BIND=1; shift;;
    --near) NEAR=$2; shift 2;;
    --inplace|--init-only) MORE+=("$1"); shift;;
    --tries|--quiet-pct|--quiet-wait|--min-iters|--max-iters) MORE+=("$1" "$2"); shift 2;;
    *) sed -n '2,/^set -u/{/^set -u/!p}' "${BASH_SOURCE[0]}"; exit 2;;
    esac
done
mkdir -p "$PEERS_LOG"
list=
for p in ${PEERS//,/ }; do case $p in shm) list+=" $SHM";; tcp) list+=" $TCP";; netns) list+=" $NETNS";; all) list+=" $SHM $TCP $NETNS";; *) list+=" $p";; esac; done
export PEERS_NS=$NS PEERS_BIND=$BIND
case $list in
*netns*) netns_down; netns_up 4 && lo_up || exit 1; trap netns_down EXIT;;
*openmpi5-ucx-tcp*|*mpich5-ucx-tcp*) netns_down; lo_up || exit 1; trap netns_down EXIT;;
*-tcp*) [ -z "$TCPCC" ] || { netns_down; lo_up || exit 1; trap netns_down EXIT; };;
esac
[ -z "$TCPCC" ] || for s in $(ip netns list | awk '{print $1}'); do
    case $s in "$NS"lo|"$NS"hub|"$NS"[0-9]*) ip netns exec "$s" sh -c "echo $TCPCC > /proc/sys/net/ipv4/tcp_congestion_control" || exit 1;; esac
done
echo "impl,transport,op,ranks,bytes,iters,median_us,p99_us,algbw_GBps,busbw_GBps,min_us,lilo_us,cpu_us,round,others_pct,handoff_before_ns,handoff_after_ns"
for ((r = FIRST; r < FIRST + ROUNDS; r++)); do
    for n in ${RANKS//,/ }; do
        for p in $(tr ' ' '\n' <<<"$list" | grep . | shuf --random-source=<(yes $r)); do
            cmd "$p" "$n" || { [ $r = $FIRST ] && echo "# missing,$p"; continue; }
            args=(--impl "$IMPL" --transport "$TR" --round $r --budget-ms "$BUDGET" "${SIZES[@]}" "${MORE[@]}")
            [ -n "$OPS" ] && args+=(--ops "$OPS")
            wait_quiet "$QUIET"
            t0=$(date +%s.%N)
            for try in 1 2 3 4; do
                wait_near
                out=$(cd /tmp && { [ -z "$TUN" ] || export GLIBC_TUNABLES="$TUN"; } && timeout -k 5 "$LIMIT" "${CMD[@]}" "${args[@]}" </dev/null 2>"$PEERS_LOG/$p.$n.$r.err")
                rc=$? after=$(handoff)
                is_near "$after" && break
            done
            [ -z "$out" ] || sed "/^#/!s/\$/,$BEFORE,$after/" <<<"$out"
            printf '# run,%s,%s,round=%d,rc=%d,tries=%d,wall_s=%.2f\n' "$p" "$n" "$r" "$rc" "$try" "$(echo "$(date +%s.%N) - $t0" | bc 2>/dev/null || awk -v a="$t0" -v b="$(date +%s.%N)" 'BEGIN{print b-a}')"
        done
    done
done
