#!/bin/sh
# Builds the doubles of libcuda and libnccl (double.h) into a folder, for LD_LIBRARY_PATH, and verbs.so there, for LD_PRELOAD
# where a test asks for it:  make.sh FOLDER
set -eu
here=$(cd "$(dirname "$0")" && pwd)
into=${1:?a folder}
mkdir -p "$into"
cc() { command cc -std=gnu11 -O1 -g -Wall -Wextra -Werror -fwrapv -fPIC -shared -pthread "$@"; }
# In one step each, so that tests which build at the same time do not meet half a file.
part=$into/part.$$
cc -Wl,-soname,libcuda.so.1 -o "$part" "$here/cuda.c" && mv "$part" "$into/libcuda.so.1"
# cudarc asks for this name first.
ln -sf libcuda.so.1 "$into/libcuda.so"
cc -Wl,-soname,libnccl.so.2 -Wl,-rpath,'$ORIGIN' -o "$part" "$here/nccl.c" "$into/libcuda.so.1" && mv "$part" "$into/libnccl.so.2"
cc -o "$part" "$here/verbs.c" -ldl && mv "$part" "$into/verbs.so"
