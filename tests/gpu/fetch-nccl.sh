#!/bin/sh
# Fetches the real NCCL for the tests that load it, from Python's package index: one file of the wheel nvidia-nccl-cu12, kept
# outside of the clone. No GPU is needed and nothing is installed. Prints where the file is. Without it those tests say
# SKIPPED, and so does this script where there is no python3 with pip, or no network.
#
#   NCCL_VERSION   the version of the wheel (default below)
#   NCCL_CACHE     where the file is kept (default: ringway/nccl in the user's cache folder)
set -u

version=${NCCL_VERSION:-2.21.5}
cache=${NCCL_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/ringway/nccl}
file=$cache/libnccl.so.2
say() { printf 'nccl: %s\n' "$*" >&2; }

if [ -f "$file" ]; then
    echo "$file"
    exit 0
fi
if ! python3 -m pip --version >/dev/null 2>&1; then
    say "SKIPPED: no python3 with pip to fetch it with"
    exit 0
fi
mkdir -p "$cache"
part=$(mktemp -d "$cache/part.XXXXXX")
trap 'rm -rf "$part"' EXIT
if ! python3 -m pip download -q --no-deps --disable-pip-version-check --only-binary :all: -d "$part" \
    "nvidia-nccl-cu12==$version" >&2; then
    say "SKIPPED: nvidia-nccl-cu12 $version cannot be fetched"
    exit 0
fi
python3 - "$part" <<'PY'
import glob, shutil, sys, zipfile
folder = sys.argv[1]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
    with wheel.open("nvidia/nccl/lib/libnccl.so.2") as source, open(folder + "/libnccl.so.2", "wb") as to:
        shutil.copyfileobj(source, to)
PY
# In one step, so that a file which is there is whole.
mv "$part/libnccl.so.2" "$file" && echo "$file"
