#!/usr/bin/env bash
# Builds and runs the tests; with options also under sanitizers, the fuzz targets and lint. See --help.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/install.sh

usage() {
    cat <<'TXT'
usage: tools/test.sh [STAGE ...]

Installs what is missing (apt-get, as root or with sudo), then runs the stages in order; without one, --plain.

  --plain                         build in build/, run all tests
  --sanitize address,undefined    build in build-asan/, with the kernels of the target cpu under the same sanitizers
  --sanitize thread               build in build-tsan/
  --fuzz SECONDS                  build in build-fuzz/ (clang), run each fuzz target that long
  --lint                          clang-format and clang-tidy (tools/lint.sh)
  --all                           what CI runs: all of these, 40 seconds a fuzz target
  --help                          this text

Environment:
  CONVJIT_TEST_STRIDE=N     test every N-th layer of the numerics grid; under sanitizers the default is below
  CONVJIT_HIDE_TOOLKIT=1    behave as if there were no CUDA toolkit: take cuda.h, nvrtc.h and NVRTC from PyPI
TXT
}

jobs=$(nproc)
address_stride=${CONVJIT_TEST_STRIDE:-16} # runs 3 times slower than the plain stage
thread_stride=${CONVJIT_TEST_STRIDE:-64}  # 10 times, and races are between calls and blocks, not in a layer's numbers

build_and_test() { # BUILD OPTION...
    configure "$@" -D CONVJIT_TESTS=ON
    cmake --build "$1" -j "$jobs" -- --quiet
    ctest --test-dir "$1" --parallel "$jobs" --output-on-failure --no-tests=error --timeout 900
}

plain() { build_and_test build; }

sanitize() { # LIST
    case $1 in
    address,undefined)
        CONVJIT_TEST_STRIDE=$address_stride UBSAN_OPTIONS=print_stacktrace=1 \
            CONVJIT_CXXFLAGS="-fsanitize=$1 -fno-sanitize-recover=all" \
            build_and_test build-asan -D CONVJIT_SANITIZE="$1"
        ;;
    thread)
        CONVJIT_TEST_STRIDE=$thread_stride TSAN_OPTIONS=halt_on_error=1 \
            build_and_test build-tsan -D CONVJIT_SANITIZE="$1"
        ;;
    *) die "unknown sanitizers $1: address,undefined or thread" ;;
    esac
}

fuzz() { # SECONDS
    local program name names=()
    CC=clang configure build-fuzz -D CONVJIT_TESTS=ON -D CONVJIT_FUZZ=ON \
        -D CONVJIT_SANITIZE=address,undefined,fuzzer-no-link
    cmake --build build-fuzz -j "$jobs" --target fuzz -- --quiet
    for program in build-fuzz/tests/fuzz_*; do
        [ -f "$program" ] && [ -x "$program" ] || continue
        name=${program##*/fuzz_}
        names+=("$name")
        mkdir -p "build-fuzz/corpus/$name" # kept, so that the next run starts where this one ended
        cp -n tests/golden/"$name"* "build-fuzz/corpus/$name" 2>/dev/null || true
    done
    say "fuzzing ${names[*]} for $1 s each"
    printf '%s\n' "${names[@]}" | xargs -P "$jobs" -I NAME env build-fuzz/tests/fuzz_NAME -max_total_time="$1" -verbosity=0 \
        -print_final_stats=1 -artifact_prefix=build-fuzz/ build-fuzz/corpus/NAME
}

lint() {
    configure build -D CONVJIT_TESTS=ON
    cmake --build build -j "$jobs" -- --quiet # generated files
    bash tools/lint.sh build
}

stage() { # FUNCTION ARGUMENT...
    local start=$SECONDS
    say "==== $*"
    "$@"
    times+=("$(printf '%5d s  %s' $((SECONDS - start)) "$*")")
}

stages=()
while [ $# -gt 0 ]; do
    case $1 in
    --plain | --lint) stages+=("${1#--}") ;;
    --sanitize) stages+=("sanitize ${2:?--sanitize needs a list}") && shift ;;
    --fuzz) stages+=("fuzz ${2:?--fuzz needs seconds}") && shift ;;
    --all) stages+=(plain "sanitize address,undefined" "sanitize thread" "fuzz 40" lint) ;;
    --help) usage && exit 0 ;;
    *) die "unknown option $1; see --help" ;;
    esac
    shift
done
[ ${#stages[@]} -gt 0 ] || stages=(plain)

install_build_tools
install_missing header:criterion/criterion.h libcriterion-dev header:protobuf-c/protobuf-c.h libprotobuf-c-dev \
    command:protoc-c protobuf-c-compiler file:/usr/include/onnx/onnx.proto libonnx-dev \
    file:/usr/share/libonnx-testdata/data/node libonnx-testdata command:clang clang fuzzer libclang-rt-dev \
    command:clang-format clang-format command:clang-tidy clang-tidy command:python3 python3 command:pkg-config pkg-config
find_cuda "$PWD/build/cuda"

times=()
for words in "${stages[@]}"; do
    read -ra words <<<"$words"
    stage "${words[@]}"
done
say "==== times"
printf '%s\n' "${times[@]}"
