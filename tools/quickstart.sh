#!/usr/bin/env bash
# From a fresh machine to two verified layers: installs what is missing, builds, warms a cache, runs. See --help.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/install.sh

usage() {
    cat <<'TXT'
usage: tools/quickstart.sh [--build DIR]

Builds convjit, warms a kernel cache for the two layers of tools/reference_layers.txt, and runs both, compared with
float64: on the GPU, or on the target cpu at reduced sizes where there is none. Installs what is missing (apt-get, as
root or with sudo). Safe to run again: a second run installs, downloads and compiles nothing.

  --build DIR   build folder, default build
  --help        this text

Environment:
  CONVJIT_CACHE_DIR         kernel cache, default DIR/cache
  CONVJIT_HIDE_TOOLKIT=1    behave as if there were no CUDA toolkit: take cuda.h, nvrtc.h and NVRTC from PyPI
TXT
}

build=build
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=${2:?--build needs a folder} && shift ;;
    --help) usage && exit 0 ;;
    *) die "unknown option $1; see --help" ;;
    esac
    shift
done
mkdir -p "$build"
build=$(cd "$build" && pwd)

install_build_tools
find_cuda "$build/cuda"

say "building in $build"
first=()
[ -e "$build/CMakeCache.txt" ] || first=(-D CONVJIT_TESTS=OFF) # they need more packages: tools/test.sh
configure "$build" "${first[@]}"
cmake --build "$build" --target convjit_cli -- --quiet
convjit=$build/tools/convjit

export CONVJIT_CACHE_DIR=${CONVJIT_CACHE_DIR:-$build/cache}
say
"$convjit" info

layers() { grep -E "^kb6[02]$1:" tools/reference_layers.txt; } # SUFFIX
run() { # TARGET SUFFIX
    layers "$2" | "$convjit" warm --target "$1" --file -
    say
    layers "$2" | "$convjit" run --target "$1" --file -
}
target=$("$convjit" info --json | sed -nE 's/.*"target": "(sm_[0-9a-z]+)".*/\1/p')
if [ -n "$target" ]; then
    say
    say "Warming the cache for this GPU, then running the two layers on it"
    run "$target" ""
else
    say
    say "Warming the cache for a GPU that is not here"
    layers "" | "$convjit" warm --target sm_90a --file -
    say
    say "No GPU: warming and running the two layers at reduced sizes on the target cpu"
    run cpu -small
fi
