#!/usr/bin/env bash
# guest.sh - run a command with real RDMA verbs (soft-RoCE, rdma_rxe) on a machine
# whose own kernel has no RDMA and can load no modules: most containers and
# runners of CI.
#
# It boots a stock Debian kernel under QEMU's software emulation (no /dev/kvm is
# needed), loads rdma_rxe there, brings up two devices that talk over a veth pair,
# runs COMMAND on a private copy-on-write view of this machine's root file system,
# hands on its stdout and stderr, and exits with its exit status. What was built
# here runs there as it is, under the same path. Boot and end cost some 5 s.
#
#   guest.sh prepare             download and build what is needed; print where
#   guest.sh run [options] -- COMMAND [ARG...]
#
# Options of run:
#   --share DIR     mount DIR read-write in the guest, at the same path. Anything
#                   else that the command writes is gone at the end. (may repeat)
#   --mem MB        guest memory (default 2048)
#   --smp N         guest CPUs (default: 2, or 1 on a machine with one)
#   --timeout S     stop the guest after S seconds, boot included (default 600); the
#                   exit status is then 124
#   --mtu N         MTU of the veth pair. RoCE uses the largest of 256, 512 .. 4096
#                   that fits (default 9000, which gives 4096; 1500 gives 1024)
#   --hugepages N   2 MiB huge pages to reserve in the guest (default 32)
#   --env NAME[=VAL]  set a variable for COMMAND, or hand on its value from here
#                   (may repeat). Handed on unasked: the names in HANDED_ON below
#   --cwd DIR       working directory (default: the current one)
#   --netem SPEC    tc-netem rule on both veth ends, such as 'loss 1% delay 2ms'
#   --dmesg FILE    write the guest's kernel log there
#   --link L,R,N    instead of the veth pair: join this guest to another one that
#                   runs beside it. L is this guest's unix socket path, R the
#                   other's, N this guest's number (1 or 2). One device, rxe0.
#   --no-rxe        load the modules, create no device
#   --keep          keep the run folder (console log and so on) and print its path
#   -v              show the guest's console on stderr
#
# COMMAND finds in the guest:
#   rxe0 on 10.77.0.1 and rxe1 on 10.77.0.2, both in the first network namespace,
#   whose packets to each other really cross the veth pair sr0 <-> sr1, where they
#   can be captured, delayed and dropped; and the variables
#     SOFTROCE=1  SOFTROCE_DEVS="rxe0 rxe1"  SOFTROCE_IPS="10.77.0.1 10.77.0.2"
#     SOFTROCE_NETDEVS="sr0 sr1"
#     SOFTROCE_GID_INDEX=N   the RoCEv2 GID of that IPv4 address (same on both)
#   With --link: rxe0 only, its own address in SOFTROCE_IPS, the other's in
#   SOFTROCE_PEER_IP. In any case: root, no limit on locked memory, the device files
#   /dev/infiniband/{uverbs*,rdma_cm}, /dev/shm, /dev/hugepages, and the modules of
#   the guest's kernel, so that modprobe works.
#
# To cut the link in a test: tc qdisc replace dev sr0 root netem loss 100%; to mend
# it: tc qdisc del dev sr0 root. Setting an end down drops its route as well:
#   ip link set sr0 up; ip route add 10.77.0.2 dev sr0 src 10.77.0.1 table 100
#   ip link set sr1 up; ip route add 10.77.0.1 dev sr1 src 10.77.0.2 table 101
#
# As a cargo runner, one guest for each test binary:
#   CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$PWD/tests/soft-roce/guest.sh run --"
#
# Exit status: the command's own; 124 after --timeout; 125 when the guest could not
# be prepared, did not boot, or died before the command ended (an oops of its
# kernel counts as that).
#
# Environment:
#   SOFTROCE_DIR     folder for what is downloaded and built, kept between runs (about
#                    240 MB). Default: target/soft-roce of the project (the folder with
#                    .git) around this file, else ~/.cache/soft-roce. A guest is built
#                    anew when the kernel package's version or the recipe in this file
#                    changes.
#   SOFTROCE_KERNEL  kernel packages, separated by blanks (default: what
#                    linux-image-amd64 or linux-image-generic needs). Debian's
#                    -cloud- kernels have no rdma_rxe.
#   SOFTROCE_QEMU    a qemu-system-x86_64 to use (default: the one in PATH, else the
#                    distribution's, unpacked into SOFTROCE_DIR)
#   SOFTROCE_QEMU_ARGS  extra arguments for QEMU, split at blanks
#
# Needs: bash, apt-get and dpkg of an amd64 Debian or a derivative. As root, or with
# sudo that asks no password, it installs the small packages that it lacks. QEMU
# and the kernel are only unpacked into SOFTROCE_DIR: the machine's own stay as they are.
set -euo pipefail

HANDED_ON="CI LD_LIBRARY_PATH CARGO_MANIFEST_DIR RUST_BACKTRACE RUST_LOG RUST_TEST_THREADS"
# Guests that nobody has used for so many days make room for a new one.
KEPT_DAYS=7

say() { printf 'guest.sh: %s\n' "$*" >&2; }
die() { say "$*"; exit 125; }

# ---------------------------------------------------------------- preparation

# On this machine: the verbs libraries, since the guest sees this machine's own files;
# and the tools that build the guest and set up its devices. As package:command.
TOOLS=(cpio:cpio kmod:modprobe iproute2:rdma busybox-static:busybox xz-utils:xz
       ibverbs-utils:ibv_devinfo)

PATH=$PATH:/usr/sbin:/sbin
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
APT=(apt-get -q -o DPkg::Lock::Timeout=300)

# Runs a command as root, or fails.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Once: new package lists. Without them, apt goes on with those that it has.
update_lists() {
    [ -z "${lists_updated:-}" ] || return 0
    lists_updated=1
    as_root "${APT[@]}" update >&2 || say "apt-get update failed: going on with the lists there are"
}

install_tools() {
    local missing=() tool
    for tool in "${TOOLS[@]}"; do
        command -v "${tool#*:}" >/dev/null || missing+=("${tool%%:*}")
    done
    compgen -G '/usr/lib/*/libibverbs/librxe-*.so' >/dev/null || missing+=(ibverbs-providers)
    [ ${#missing[@]} != 0 ] || return 0
    as_root true 2>/dev/null || die "these packages are missing: ${missing[*]}. Install them as root"
    say "installing ${missing[*]}"
    # --no-remove: never trade away a package that the machine has.
    local install=("${APT[@]}" install -y --no-install-recommends --no-remove "${missing[@]}")
    as_root "${install[@]}" >&2 && return
    update_lists
    as_root "${install[@]}" >&2 || die "could not install ${missing[*]}"
}

# fetch FOLDER PACKAGE...: downloads packages there.
fetch() {
    local folder=$1; shift
    mkdir -p "$folder"
    (cd "$folder" && "${APT[@]}" download "$@" >/dev/null 2>&1) && return
    update_lists
    (cd "$folder" && "${APT[@]}" download "$@" >&2) || die "could not download $*"
}

# The version that apt would install, if it knows the package.
version_of() { apt-cache policy "$1" 2>/dev/null | awk '$1 == "Candidate:" && $2 != "(none)" { print $2 }'; }

# A name that is fit for a folder.
plain() { printf '%s' "${1//[^A-Za-z0-9.+-]/_}"; }

# Sets QEMU, a command. Debian's own is unpacked rather than installed: it might push out
# a qemu-utils from elsewhere, and needs nothing but its files. What apt would install is
# just what is missing here.
find_qemu() {
    if [ -n "${SOFTROCE_QEMU:-}" ]; then QEMU=("$SOFTROCE_QEMU"); return; fi
    if command -v qemu-system-x86_64 >/dev/null; then QEMU=(qemu-system-x86_64); return; fi
    local at
    at=$(find "$WORK" -maxdepth 1 -name 'qemu-*' -type d ! -name '*.part' | sort | tail -n1)
    [ -n "$at" ] || unpack_qemu
    local lib=$at/usr/lib/x86_64-linux-gnu
    QEMU=(env "LD_LIBRARY_PATH=$lib:$at/lib/x86_64-linux-gnu" "QEMU_MODULE_DIR=$lib/qemu"
          "$at/usr/bin/qemu-system-x86_64" -L "$at/usr/share/qemu" -L "$at/usr/share/seabios")
}

# Sets at.
unpack_qemu() {
    local version packages deb
    version=$(version_of qemu-system-x86)
    if [ -z "$version" ]; then update_lists; version=$(version_of qemu-system-x86); fi
    packages=$(apt-get install -s --no-install-recommends qemu-system-x86 2>/dev/null |
               awk '/^Inst/ { print $2 }')
    [ -n "$packages" ] || die "apt-get knows no package qemu-system-x86"
    at=$WORK/qemu-$(plain "$version")
    rm -rf "$at.part"
    # shellcheck disable=SC2086  # a list
    fetch "$at.part/debs" $packages
    for deb in "$at.part/debs"/*.deb; do dpkg -x "$deb" "$at.part"; done
    rm -rf "$at.part/debs" "$at.part/usr/share/doc"
    mv "$at.part" "$at"
    say "unpacked QEMU $version"
}

# Prints the wanted kernel packages, a line each, if apt knows them. Ubuntu keeps modules in
# packages of their own.
kernel_packages() {
    if [ -n "${SOFTROCE_KERNEL:-}" ]; then
        # shellcheck disable=SC2086  # a list
        printf '%s\n' $SOFTROCE_KERNEL
        return
    fi
    local meta
    for meta in linux-image-amd64 linux-image-generic; do
        [ -z "$(version_of "$meta")" ] || break
    done
    apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances "$meta" 2>/dev/null | grep -E '^linux-(image|modules)(-extra)?-[0-9]' | sort -u || true
}

# The guest's modules by name; what they depend on is added. rdma_rxe asks for crc32 at run
# time; the table-driven one is the faster of the two under emulation.
MODULES="virtio_pci virtio_console 9pnet_virtio 9p overlay virtio_rng veth virtio_net rdma_rxe rdma_ucm"
# Not in every kernel.
MORE_MODULES="pvpanic-pci crc32_generic ib_umad"

# Sets GUEST, a folder with vmlinux, initramfs and lib/modules, built if need be.
find_guest() {
    local packages recipe
    packages=$(kernel_packages)
    if [ -z "$packages" ]; then update_lists; packages=$(kernel_packages); fi
    # Built by other packages or another recipe, a guest is another guest.
    recipe=$(declare -f build_guest keep_modules extract_vmlinux list_modules guest_init
             echo "$MODULES $MORE_MODULES")
    recipe=$(sha256sum <<<"$recipe" | cut -c1-12)
    if [ -z "$packages" ]; then
        # No package lists: a guest that this recipe made before will do.
        GUEST=$(find "$WORK" -maxdepth 1 -name "guest-*-$recipe" -type d | sort -V | tail -n1)
        [ -n "$GUEST" ] || die "apt knows no kernel package; run apt-get update, or give SOFTROCE_KERNEL"
    else
        local first=${packages%%$'\n'*}
        GUEST=$WORK/guest-$(plain "$first-$(version_of "$first")")-$recipe
    fi
    if [ ! -e "$GUEST/ready" ]; then
        find "$WORK" -maxdepth 2 -path '*/guest*/ready' -mtime "+$KEPT_DAYS" -printf '%h\0' | xargs -r0 rm -rf
        say "building the guest from ${packages//$'\n'/ }"
        # shellcheck disable=SC2086  # a list
        build_guest "$GUEST" $packages
    fi
    touch "$GUEST/ready"
}

# build_guest FOLDER PACKAGE...
build_guest() {
    local guest=$1 part=$1.part deb version module
    shift
    rm -rf "$part"
    mkdir -p "$part/unpacked" "$part/root/modules" "$part/root/bin" "$part/lib/modules"
    fetch "$part/debs" "$@"
    for deb in "$part/debs"/*.deb; do dpkg -x "$deb" "$part/unpacked"; done
    rm -rf "$part/debs"
    local from=$part/unpacked/lib/modules
    [ -d "$from" ] || from=$part/unpacked/usr/lib/modules
    version=$(ls "$from")
    find "$from" -name 'rdma_rxe.ko*' | grep -q . || die "no rdma_rxe in $*"
    if ! extract_vmlinux "$part/unpacked/boot/vmlinuz-$version" "$part/vmlinux"; then
        say "using the compressed kernel as it is (it boots more slowly)"
        cp "$part/unpacked/boot/vmlinuz-$version" "$part/vmlinux"
    fi
    keep_modules "$from/$version" "$part/lib/modules/$version"
    rm -rf "$part/unpacked"
    depmod -b "$part" "$version"
    list_modules "$part" "$version" | while read -r module; do
        case $module in
            *.xz) xz -dc "$module" >"$part/root/modules/$(basename "$module" .xz)";;
            *.zst) zstd -qdc "$module" >"$part/root/modules/$(basename "$module" .zst)";;
            *) cp "$module" "$part/root/modules/";;
        esac
        basename "$module" | sed 's/\.xz$//; s/\.zst$//'
    done >"$part/root/modules/order"
    cp -L "$(command -v busybox)" "$part/root/bin/busybox"
    guest_init >"$part/root/init"
    chmod 755 "$part/root/init"
    (cd "$part/root" && find . | cpio -o -H newc --quiet -R 0:0) >"$part/initramfs"
    rm -rf "$part/root"
    : >"$part/ready"
    rm -rf "$guest"
    mv "$part" "$guest"
}

# keep_modules FROM TO: of a kernel's modules, those that a network test could ask for.
keep_modules() {
    mv "$1" "$2"
    local drivers=$2/kernel/drivers
    rm -rf "$2/kernel/sound" "$drivers/infiniband/hw"
    find "$drivers" -mindepth 1 -maxdepth 1 ! -name infiniband ! -name net ! -name virtio \
        ! -name char ! -name block ! -name misc -exec rm -rf {} +
    find "$drivers/misc" -mindepth 1 -maxdepth 1 ! -name pvpanic -exec rm -rf {} +
    find "$drivers/net" -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
}

# list_modules FOLDER VERSION: the files of the guest's modules, in the order to load them.
list_modules() {
    local module
    {
        # shellcheck disable=SC2086  # lists
        modprobe -d "$1" -S "$2" -a --show-depends $MODULES
        for module in $MORE_MODULES; do modprobe -d "$1" -S "$2" --show-depends "$module" 2>/dev/null || true; done
    } | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

# extract_vmlinux BZIMAGE OUT: the ELF kernel inside a bzImage. QEMU starts it directly (PVH),
# which saves a slow decompression inside the emulator. Offsets: the kernel's
# Documentation/arch/x86/boot.rst, setup_sects, payload_offset, payload_length.
extract_vmlinux() {
    local setup offset length magic unpack=
    setup=$(od -An -tu1 -j $((0x1f1)) -N1 "$1")
    offset=$(od -An -tu4 -j $((0x248)) -N4 "$1")
    length=$(od -An -tu4 -j $((0x24c)) -N4 "$1")
    local start=$(((setup + 1) * 512 + offset))
    magic=$(od -An -tx1 -j $start -N4 "$1" | tr -d ' ')
    case $magic in
        fd377a58) unpack="xz -dc";;
        28b52ffd) unpack="zstd -qdc";;
        1f8b*) unpack="gzip -qdc";;
        *) return 1;;
    esac
    # The last four bytes are the kernel's length, except with gzip, which has it at its own end.
    [ "$unpack" = "gzip -qdc" ] || length=$((length - 4))
    # The reader of the whole may be cut short: only what comes out counts.
    (set +o pipefail; tail -c +$((start + 1)) "$1" | head -c "$length" | $unpack >"$2") || return 1
    [ "$(od -An -tx1 -N4 "$2" | tr -d ' ')" = 7f454c46 ]
}

# One at a time: runs may start side by side and share the work folder.
prepare() {
    exec 9>"$WORK/lock"
    flock 9
    install_tools
    find_qemu
    find_guest
    exec 9>&-
}

# ----------------------------------------------------------- inside the guest

# The guest's first process. /conf is laid by run, below.
guest_init() { cat <<'EOF'
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /host /scratch /new /sbin
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do
    insmod /modules/$module || echo "init: insmod $module failed"
done
. /conf

# port NAME: the virtio port to the host of that name. Ports appear a moment after their
# driver is loaded.
port() {
    for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        for p in /sys/class/virtio-ports/*; do
            [ "$(cat $p/name 2>/dev/null)" = "$1" ] && { echo /dev/${p##*/}; return; }
        done
        usleep 50000
    done
}
OUT=$(port guest.out) ERR=$(port guest.err) STATUS=$(port guest.status) LOG=$(port guest.dmesg)

finish() { # finish STATUS
    dmesg >$LOG 2>/dev/null
    echo "$1" >$STATUS
    sync
    poweroff -f
}
fail() { echo "guest.sh: in the guest: $*" >$ERR; finish 125; }

# The host's root, read-only, with a scratch layer in memory on top of it.
NINE=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o $NINE,ro,cache=loose hostroot /host || fail "no root over 9p"
mount -t tmpfs -o mode=755 scratch /scratch
mkdir /scratch/upper /scratch/work
mount -t overlay -o lowerdir=/host,upperdir=/scratch/upper,workdir=/scratch/work overlay /new ||
    fail "no overlay on the root"
mount -t proc proc /new/proc
mount -t sysfs sys /new/sys
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm /new/dev/hugepages
mount -t devpts -o mode=620,ptmxmode=666 devpts /new/dev/pts
mount -t tmpfs -o mode=1777 shm /new/dev/shm
ln -sf /proc/self/fd /new/dev/fd
ln -sf fd/0 /new/dev/stdin; ln -sf fd/1 /new/dev/stdout; ln -sf fd/2 /new/dev/stderr
if [ "$HUGEPAGES" -gt 0 ]; then
    echo "$HUGEPAGES" >/proc/sys/vm/nr_hugepages
    mount -t hugetlbfs -o pagesize=2M none /new/dev/hugepages
fi
KERNEL=$(uname -r)
mkdir -p /new/lib/modules/$KERNEL
mount --bind "/host$GUEST/lib/modules/$KERNEL" /new/lib/modules/$KERNEL
n=0
while [ $n -lt $SHARES ]; do
    folder=$(cat /share$n)
    mkdir -p "/new$folder"
    mount -t 9p -o $NINE,cache=mmap share$n "/new$folder" || fail "no $folder over 9p"
    n=$((n + 1))
done
hostname softroce$NODE
rm -f /new/etc/hosts
echo "127.0.0.1 localhost softroce$NODE" >/new/etc/hosts
# The kernel itself loads modules on demand, with the host's modprobe.
printf '#!/bin/sh\nexec /bin/chroot /new /sbin/modprobe "$@"\n' >/sbin/modprobe
chmod 755 /sbin/modprobe
ulimit -l unlimited
ulimit -n 65536
cp /command /new/run/softroce-command
cp /devices /new/run/softroce-devices
IN="chroot /new /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
$IN MODE=$MODE MTU=$MTU NETEM="$NETEM" NODE=$NODE bash /run/softroce-devices 2>$ERR ||
    fail "the devices could not be set up"
read up idle </proc/uptime
echo "init: ready after $up s" >/dev/console
$IN bash /run/softroce-command </dev/null >$OUT 2>$ERR
finish $?
EOF
}

# Brings up the devices; runs in the guest, with the host's own tools.
guest_devices() { cat <<'EOF'
set -e
PATH=$PATH:/usr/sbin:/sbin
ip link set lo up
# A burst of RoCE packets must not overflow the backlog of the receiving CPU.
echo 100000 >/proc/sys/net/core/netdev_max_backlog
wait_gid() { # wait_gid DEVICE IP: waits for the RoCEv2 GID of an address; prints its index
    local gid try n at=/sys/class/infiniband/$1/ports/1
    gid=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' ${2//./ })
    for ((try = 0; try < 100; try++)); do
        for n in 0 1 2 3 4 5 6 7; do
            if [ "$(cat $at/gids/$n 2>/dev/null)" = "$gid" ] &&
               [ "$(cat $at/gid_attrs/types/$n 2>/dev/null)" = "RoCE v2" ]
            then echo $n; return; fi
        done
        sleep 0.05
    done
    echo "no RoCEv2 GID for $2 on $1" >&2; return 1
}
tell() { echo "export $1=\"$2\"" >>/run/softroce-env; }
: >/run/softroce-env
case $MODE in
none) ;;
pair)
    # Two ends of a veth pair in one namespace: rdma_rxe of this kernel works in the first
    # network namespace only. The rules make packets between two local addresses leave by one
    # end and come in by the other, rather than being short-cut over lo. In one batch, as
    # starting a program is slow in the emulator.
    for setting in ipv6/conf/default/disable_ipv6=1 ipv4/conf/default/accept_local=1 \
                   ipv4/conf/default/rp_filter=0 ipv4/conf/all/rp_filter=0; do
        echo ${setting#*=} >/proc/sys/net/${setting%=*}
    done
    ip -batch - <<END
link add sr0 numtxqueues 1 numrxqueues 1 mtu $MTU address 02:00:00:77:00:01 type veth peer name sr1 numtxqueues 1 numrxqueues 1 mtu $MTU address 02:00:00:77:00:02
addr add 10.77.0.1/32 dev sr0
addr add 10.77.0.2/32 dev sr1
link set sr0 up
link set sr1 up
neigh replace 10.77.0.2 lladdr 02:00:00:77:00:02 dev sr0 nud permanent
neigh replace 10.77.0.1 lladdr 02:00:00:77:00:01 dev sr1 nud permanent
route add 10.77.0.2 dev sr0 src 10.77.0.1 table 100
route add 10.77.0.1 dev sr1 src 10.77.0.2 table 101
rule add pref 10 iif sr0 lookup local
rule add pref 10 iif sr1 lookup local
rule add pref 20 from 10.77.0.1 to 10.77.0.2 lookup 100
rule add pref 21 from 10.77.0.2 to 10.77.0.1 lookup 101
rule add pref 30 to 10.77.0.2 oif sr0 lookup 100
rule add pref 31 to 10.77.0.1 oif sr1 lookup 101
rule add pref 100 lookup local
rule del pref 0
END
    if [ -n "$NETEM" ]; then
        modprobe sch_netem
        tc qdisc add dev sr0 root netem $NETEM
        tc qdisc add dev sr1 root netem $NETEM
    fi
    rdma link add rxe0 type rxe netdev sr0
    rdma link add rxe1 type rxe netdev sr1
    gid0=$(wait_gid rxe0 10.77.0.1); gid1=$(wait_gid rxe1 10.77.0.2)
    [ $gid0 = $gid1 ]
    tell SOFTROCE_DEVS "rxe0 rxe1"
    tell SOFTROCE_IPS "10.77.0.1 10.77.0.2"
    tell SOFTROCE_NETDEVS "sr0 sr1"
    tell SOFTROCE_GID_INDEX $gid0
    ;;
link)
    dev=$(basename "$(ls -d /sys/bus/virtio/drivers/virtio_net/virtio*/net/* | head -n1)")
    me=10.77.0.$NODE
    echo 1 >/proc/sys/net/ipv6/conf/$dev/disable_ipv6
    ip addr add $me/24 dev $dev
    ip link set $dev mtu $MTU up
    if [ -n "$NETEM" ]; then modprobe sch_netem; tc qdisc add dev $dev root netem $NETEM; fi
    rdma link add rxe0 type rxe netdev $dev
    gid0=$(wait_gid rxe0 $me)
    tell SOFTROCE_DEVS rxe0
    tell SOFTROCE_IPS $me
    tell SOFTROCE_PEER_IP 10.77.0.$((3 - NODE))
    tell SOFTROCE_NETDEVS $dev
    tell SOFTROCE_GID_INDEX $gid0
    ;;
esac
EOF
}

# ------------------------------------------------------------------------ run

# quote TEXT: for a POSIX shell.
quote() { printf "'%s'" "${1//\'/\'\\\'\'}"; }

defaults() {
    mem=2048 timeout=600 mtu=9000 hugepages=32 netem='' dmesg='' keep='' verbose=''
    mode=pair node='' cwd=$PWD link='' shares=() envs=()
    smp=$(nproc)
    [ "$smp" -le 2 ] || smp=2
}

run() {
    local mem smp timeout mtu hugepages netem dmesg keep verbose mode node cwd link shares envs
    defaults
    while [ $# -gt 0 ]; do
        case $1 in
            --share|--mem|--smp|--timeout|--mtu|--hugepages|--env|--cwd|--netem|--dmesg|--link)
                [ $# -gt 1 ] || die "$1 needs a value (see --help)";;&
            --share)     shares+=("$(realpath -e -- "$2")") || die "no folder $2"; shift 2;;
            --mem)       mem=$2; shift 2;;
            --smp)       smp=$2; shift 2;;
            --timeout)   timeout=$2; shift 2;;
            --mtu)       mtu=$2; shift 2;;
            --hugepages) hugepages=$2; shift 2;;
            --env)       envs+=("$2"); shift 2;;
            --cwd)       cwd=$(realpath -- "$2"); shift 2;;
            --netem)     netem=$2; shift 2;;
            --dmesg)     dmesg=$2; shift 2;;
            --link)      link=$2; mode="link"; node=${2##*,}; shift 2;;
            --no-rxe)    mode=none; shift;;
            --keep)      keep=1; shift;;
            -v)          verbose=1; shift;;
            --)          shift; break;;
            -*)          die "unknown option $1 (see --help)";;
            *)           break;;
        esac
    done
    [ $# -gt 0 ] || die "no command given (see --help)"
    prepare

    RUN=$(mktemp -d "$WORK/run.XXXXXX")
    KEEP=$keep
    [ -z "$keep" ] || say "run folder $RUN"
    lay_run "$@"
    build_command
    start
    hand_on_status
}

# lay_run COMMAND...: what differs between runs goes into a second, tiny initramfs.
lay_run() {
    local in=$RUN/in i name word
    mkdir "$in"
    {
        echo "GUEST=$(quote "$(realpath "$GUEST")") MODE=$mode MTU=$mtu NETEM=$(quote "$netem")"
        echo "HUGEPAGES=$hugepages SHARES=${#shares[@]} NODE=$node"
    } >"$in/conf"
    guest_devices >"$in/devices"
    {
        echo "export HOME=$(quote "${HOME:-/root}") TERM=dumb LANG=C.UTF-8 SOFTROCE=1"
        echo "export PATH=$(quote "$PATH")"
        echo ". /run/softroce-env"
        for name in $HANDED_ON ${envs[@]+"${envs[@]}"}; do
            case $name in
                *=*) echo "export ${name%%=*}=$(quote "${name#*=}")";;
                *) [ -z "${!name+set}" ] || echo "export $name=$(quote "${!name}")";;
            esac
        done
        echo "cd $(quote "$cwd") || exit 125"
        printf exec
        for word in "$@"; do printf ' %s' "$(quote "$word")"; done
        echo
    } >"$in/command"
    for i in ${shares[@]+"${!shares[@]}"}; do printf '%s' "${shares[i]}" >"$in/share$i"; done
    (cd "$in" && find . | cpio -o -H newc --quiet -R 0:0) >"$RUN/in.cpio"
    cat "$GUEST/initramfs" "$RUN/in.cpio" >"$RUN/initramfs"
}

# Sets VM_COMMAND. Its CPU is all that can be emulated, less "rep movsb" (erms, fsrm), which is
# emulated byte by byte and which both kernel and libc would pick for copying; and less
# five-level page tables.
build_command() {
    local i port local_path remote_path
    VM_COMMAND=("${QEMU[@]}" -nodefaults -no-user-config -display none -no-reboot -M q35
        -accel "tcg,thread=multi" -cpu "max,-erms,-fsrm,-la57" -smp "$smp" -m "$mem"
        -kernel "$GUEST/vmlinux" -initrd "$RUN/initramfs"
        -append "console=ttyS0 quiet panic=-1 oops=panic tsc=reliable mitigations=off nowatchdog no_timer_check audit=0 random.trust_cpu=on"
        -serial "file:$RUN/console"
        -device pvpanic-pci
        -device virtio-rng-pci
        -device virtio-serial-pci
        -fsdev "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"
        -device "virtio-9p-pci,fsdev=root,mount_tag=hostroot")
    for port in out err status dmesg; do
        VM_COMMAND+=(-chardev "file,id=$port,path=$RUN/$port"
                     -device "virtserialport,chardev=$port,name=guest.$port")
    done
    for i in ${shares[@]+"${!shares[@]}"}; do
        VM_COMMAND+=(-fsdev "local,id=share$i,path=${shares[i]//,/,,},security_model=none,multidevs=remap"
                     -device "virtio-9p-pci,fsdev=share$i,mount_tag=share$i")
    done
    if [ -n "$link" ]; then
        IFS=, read -r local_path remote_path node <<<"$link"
        VM_COMMAND+=(-netdev "dgram,id=link,local.type=unix,local.path=$local_path,remote.type=unix,remote.path=$remote_path"
                     -device "virtio-net-pci,netdev=link,mac=02:00:00:77:00:0$node,host_mtu=$mtu,romfile=")
    fi
    # shellcheck disable=SC2206  # split at blanks, as promised
    VM_COMMAND+=(${SOFTROCE_QEMU_ARGS:-})
}

# Runs the guest to its end; sets ended, the emulator's exit status.
start() {
    mkfifo "$RUN/out" "$RUN/err"
    : >"$RUN/status"
    # The second cat drains what comes after our reader has gone (run ... | head).
    ( trap '' PIPE; cat || cat >/dev/null ) <"$RUN/out" 2>/dev/null & local out=$!
    ( trap '' PIPE; cat >&2 || cat >/dev/null ) <"$RUN/err" & local err=$!
    # Both pipes stay open while the emulator starts, so that neither cat can end early.
    exec 7<>"$RUN/out" 8<>"$RUN/err"
    local console=''
    ended=0
    timeout -k 5 "$timeout" "${VM_COMMAND[@]}" </dev/null >"$RUN/qemu" 2>&1 7>&- 8>&- &
    VM=$!
    if [ -n "$verbose" ]; then
        ( while [ ! -e "$RUN/console" ]; do sleep 0.1; done; exec tail -f "$RUN/console" >&2 ) 7>&- 8>&- & console=$!
    fi
    wait "$VM" || ended=$?
    VM=''
    [ -z "$console" ] || { kill "$console" 2>/dev/null || true; wait "$console" 2>/dev/null || true; }
    exec 7>&- 8>&-
    wait "$out" "$err" || true
}

# Exits as the command did.
hand_on_status() {
    local status
    [ -z "$dmesg" ] || cp "$RUN/dmesg" "$dmesg"
    status=$(cat "$RUN/status")
    if [[ $status =~ ^[0-9]+$ ]]; then exit "$status"; fi
    if [ "$ended" = 124 ] || [ "$ended" = 137 ]; then say "stopped after $timeout s"; exit 124; fi
    say "the guest ended without a status (the emulator's exit status is $ended); its last words:"
    tail -n 30 "$RUN/qemu" "$RUN/console" >&2 2>/dev/null || true
    exit 125
}

VM='' RUN='' KEEP=''
cleanup() {
    [ -z "$VM" ] || kill "$VM" 2>/dev/null || true
    [ -z "$RUN" ] || [ -n "$KEEP" ] || rm -rf "$RUN"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

default_folder() {
    local at
    at=$(realpath "${BASH_SOURCE[0]}")
    while [ "$at" != / ]; do
        at=$(dirname "$at")
        [ ! -e "$at/.git" ] || { echo "$at/target/soft-roce"; return; }
    done
    echo "${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/soft-roce"
}

find_work_folder() {
    [ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || die "needs an amd64 Debian or a derivative"
    WORK=${SOFTROCE_DIR:-$(default_folder)}
    mkdir -p "$WORK"
    WORK=$(realpath "$WORK")
}

command=${1:-}
[ $# = 0 ] || shift
case $command in
    run) find_work_folder; run "$@";;
    prepare) find_work_folder; prepare; say "ready: $GUEST";;
    -h|--help|help) sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "$0";;
    *) sed -n '2,/^# Options/{/^# Options/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 125;;
esac
