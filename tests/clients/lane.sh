#!/usr/bin/env bash
# lane.sh - builds Ringway and lets unmodified TensorFlow and JAX clients use it: sessions, remote eager, clusters
# of our servers and TensorFlow's own, failures, the examples in Python, and jobs of JAX. run.py says how a scenario looks.
#
#   lane.sh [--against stock] [SCENARIO...]
#
#   --against stock   TensorFlow's own servers instead of ours: whether the scenarios expect what it does
#   SCENARIO          session/matmul, or a room such as session; all without any
#
# Environment:
#   CLIENTS_LANE  require: not being able to run is a failure. skip: do not run. auto (the default): say why
#                 and succeed where there is no Python that they are made for, or it cannot be installed.
#   CLIENTS_DIR   where the virtual environment is kept between runs (about 2 GB);
#                 ~/.cache/ringway-clients by default
#   CLIENTS_PYTHON  the Python to make it with; python3 by default
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

case ${1:-} in -h|--help) sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "$0"; exit;; esac

LANE=${CLIENTS_LANE:-auto}
impossible() {
    echo "client lane: skipped: $*"
    [ "$LANE" != require ] || { echo "client lane: that is a failure, as CLIENTS_LANE=require" >&2; exit 1; }
    exit 0
}
[ "$LANE" != skip ] || { echo "client lane: skipped: CLIENTS_LANE=skip"; exit 0; }

python=${CLIENTS_PYTHON:-python3}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || impossible "there is no $python"
case $version in
    3.11|3.12|3.13) ;;
    *) impossible "what is in requirements.txt is made for Python 3.11 to 3.13, and $python is $version";;
esac

# One environment for each list of packages and each Python; one at a time makes it.
folder=${CLIENTS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ringway-clients}
venv=$folder/$version-$(sha256sum tests/clients/requirements.txt | cut -c1-12)
mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9
if [ ! -e "$venv/complete" ]; then
    echo "client lane: installing TensorFlow and JAX in $venv"
    rm -rf "$venv"
    "$python" -m venv "$venv" || impossible "$python cannot make virtual environments (its words are above)"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/clients/requirements.txt ||
        impossible "TensorFlow and JAX could not be installed (pip's words are above)"
    touch "$venv/complete"
fi
flock -u 9

echo "client lane: building"
# Optimised, as users run it: the networks are trained by its kernels.
program=$(cargo build --release --locked --bin ringway --message-format=json | grep -o '"executable":"[^"]*"' | cut -d'"' -f4)
exec "$venv/bin/python" tests/clients/run.py --program "$program" "$@"
