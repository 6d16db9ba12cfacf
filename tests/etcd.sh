#!/bin/sh
# Makes sure that etcd's server is here for the tests of a coordination service over etcd: on the PATH, or unpacked from
# Debian's package beside what cargo builds. Nothing is installed or started. Without it those tests say SKIPPED.
set -u
cd "$(dirname "$0")/.."

say() { printf 'etcd: %s\n' "$*" >&2; }

command -v etcd >/dev/null 2>&1 && exit 0
into="${CARGO_TARGET_DIR:-target}/etcd"
[ -x "$into/usr/bin/etcd" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1; then
    say "not here, and no apt-get to fetch it with: put etcd on the PATH to run the tests that need it"
    exit 0
fi
mkdir -p "$into"
fetch() { (cd "$into" && apt-get download -qq etcd-server >/dev/null 2>&1); }
if ! fetch; then
    # The lists of packages may be missing, as in a fresh container.
    [ "$(id -u)" = 0 ] && apt-get update -qq >/dev/null 2>&1
    fetch || { say "Debian's package etcd-server cannot be fetched: the tests that need it are skipped"; exit 0; }
fi
dpkg-deb -x "$into"/etcd-server_*.deb "$into" && say "unpacked in $into"
