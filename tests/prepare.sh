#!/bin/sh
# Makes sure that what Ringway builds with is here: a C linker, pkg-config, and the headers of hwloc and udev.
# Installs what is missing where it may (root, or sudo without a password); else says exactly what to run.
set -u

missing() {
    command -v cc >/dev/null 2>&1 || return 0
    command -v pkg-config >/dev/null 2>&1 || return 0
    pkg-config --exists 'hwloc >= 2.8' libudev || return 0
    return 1
}

say() { printf '%s\n' "$*" >&2; }

if ! command -v cargo >/dev/null 2>&1; then
    say "prepare: no cargo on the PATH: install a Rust toolchain (1.89 or later) from rustup.rs or your distribution"
    exit 1
fi
missing || exit 0

if command -v apt-get >/dev/null 2>&1; then
    update="apt-get update -qq"
    install="apt-get install -y -qq --no-install-recommends gcc libc6-dev pkg-config libhwloc-dev libudev-dev"
elif command -v dnf >/dev/null 2>&1; then
    update=true
    install="dnf install -y -q gcc pkgconf-pkg-config hwloc-devel systemd-devel"
elif command -v pacman >/dev/null 2>&1; then
    update=true
    install="pacman -S --noconfirm --needed gcc pkgconf hwloc systemd-libs"
else
    say "prepare: no apt-get, dnf or pacman here: install a C compiler, pkg-config, and the development files of"
    say "  hwloc (2.8 or later) and libudev; or build without hwloc: add --no-default-features to cargo's arguments"
    exit 1
fi

if [ "$(id -u)" = 0 ]; then
    as=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as="sudo -n"
else
    say "prepare: some system packages are missing. Run, as root:"
    say "  $install"
    say "or build without hwloc: add --no-default-features to cargo's arguments"
    exit 1
fi

say "prepare: installing: $install"
export DEBIAN_FRONTEND=noninteractive
# Word splitting is wanted: these are command lines of this file.
{ $as $update && $as $install; } >&2 || {
    say "prepare: the package manager failed (its words are above). Run by hand: $install"
    exit 1
}
if missing; then
    say "prepare: installed, but hwloc 2.8 or later is still not found by pkg-config. Build without it:"
    say "  add --no-default-features to cargo's arguments"
    exit 1
fi
