#!/usr/bin/env bash
# Everything that only a GPU can show, in one command. See --help.
# shellcheck disable=SC2317  # stage_* are called by name
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<'TXT'
usage: tools/gpu_check.sh [OPTION ...] [STAGE ...]

Runs the stages in this order, or those given, and prints a summary: about a quarter of an hour in all. Needs a GPU and a built
folder; no compiler but NVRTC, no network. A stage whose means are missing is "not run", with the reason. Exit status: 0
none failed, 1 one did, 2 nothing could be run.

  numerics    every layer of the tests' grid, and the ONNX conformance cases, against float64
  host        host time of a forward beside a bare launch
  warm        layers used from a warmed cache, with NVRTC out of reach
  tune        the reference layers measured by convjit tune, and run as the plan file says
  tensor      the grid again, forced onto family tensor, in each of the three maths
  depthwise   the grid again, forced onto family depthwise
  bench       the layers of tools/bench/layers.txt beside cuDNN in the three maths (needs PyTorch; about 12 minutes); writes the
              results file and its picture, and prints how the bars stand
  sanitize    small layers of all families under compute-sanitizer's memcheck and racecheck
  large       tensors of more than 2^31 elements (tools/bench/large_layers.txt; needs PyTorch and 40 GiB of the GPU's memory)

  --build DIR         built folder, default build
  --warm-cache DIR    cache that `convjit warm --file tools/bench/sanitizer_layers.txt` filled, on any machine, for this
                      GPU's target; without it the stage warms one here
  --cache DIR         cache of the stages that do not measure compiling, which may have been filled elsewhere; default a new
                      one, thrown away
  --onnx DIR          folder of the ONNX conformance data, default /usr/share/libonnx-testdata/data where there
  --commit ID         of what is measured, where this is no git repository; default CONVJIT_COMMIT
  --output FILE       results file of bench, default tools/bench/results/h200.json
  --bench OPTIONS     of tools/bench/compare_torch.py, in one word; default "--merge"
  --log FILE          all output, default tools/bench/results/gpu_check.txt
  --help              this text

Environment: PYTHON (default python3), COMPUTE_SANITIZER (default compute-sanitizer, also looked for in CUDA_HOME).
TXT
}

all_stages=(numerics host warm tune tensor depthwise bench sanitize large)
not_run=77 # exit status of a stage that lacks its means
layers=tools/bench/sanitizer_layers.txt

build=build
warm_cache=
cache=
onnx=/usr/share/libonnx-testdata/data
output=tools/bench/results/h200.json
bench=--merge
log=tools/bench/results/gpu_check.txt
stages=()
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=${2:?--build needs a folder} && shift ;;
    --warm-cache) warm_cache=${2:?--warm-cache needs a folder} && shift ;;
    --cache) cache=${2:?--cache needs a folder} && shift ;;
    --onnx) onnx=${2:?--onnx needs a folder} && shift ;;
    --commit) export CONVJIT_COMMIT=${2:?--commit needs an id} && shift ;;
    --output) output=${2:?--output needs a file} && shift ;;
    --bench) bench=${2:?--bench needs options} && shift ;;
    --log) log=${2:?--log needs a file} && shift ;;
    --help) usage && exit 0 ;;
    *)
        [[ " ${all_stages[*]} " == *" $1 "* ]] || {
            echo "gpu_check.sh: unknown option or stage $1; see --help" >&2
            exit 2
        }
        stages+=("$1")
        ;;
    esac
    shift
done
[ ${#stages[@]} -gt 0 ] || stages=("${all_stages[@]}")

convjit=$build/tools/convjit
python=${PYTHON:-python3}
work=$(mktemp -d)
cache=${cache:-$work/cache}
trap 'rm -rf "$work"' EXIT

lacks() { # REASON...
    echo "not run: $*"
    exit "$not_run"
}

need_program() { [ -x "$1" ] || lacks "$1 is not there; build it first (tools/test.sh)"; }

# Compiles the layer lines of standard input on all cores, into the cache of the stages that do not measure compiling. A
# layer that fails here fails again in its stage, and is named there.
warm_ahead() {
    "$convjit" warm --target "$target" --cache "$cache" --file - >/dev/null 2>&1 || true
}

cases=() # of the numerics, beside the grid
[ ! -d "$onnx" ] || cases=(--onnx "$onnx")

stage_numerics() {
    need_program "$build/tests/convjit_numerics"
    [ -d "$onnx" ] || echo "no ONNX data in $onnx: the grid alone"
    "$build/tests/convjit_numerics" --list "${cases[@]}" | sed -n 's/ | .*//p' | warm_ahead
    CONVJIT_CACHE_DIR=$cache "$build/tests/convjit_numerics" "${cases[@]}"
}

stage_host() {
    need_program "$build/tools/bench/host_overhead"
    CONVJIT_CACHE_DIR=$cache "$build/tools/bench/host_overhead"
}

stage_warm() {
    local warm=$work/warm
    if [ -n "$warm_cache" ]; then
        cp -r "$warm_cache" "$warm"
    else
        "$convjit" warm --target "$target" --cache "$warm" --file "$layers"
    fi
    # First the proof that NVRTC is out of reach: from an empty cache a layer must fail.
    export CONVJIT_NVRTC=/nonexistent
    if "$convjit" run --target "$target" --cache "$work/empty" "conv2d c1 k1 in4x4 f1x1" >"$work/control" 2>&1; then
        cat "$work/control"
        echo "a layer was compiled with CONVJIT_NVRTC=$CONVJIT_NVRTC: this stage would prove nothing"
        return 1
    fi
    CONVJIT_CACHE_MODE=cache-only "$convjit" run --target "$target" --cache "$warm" --repeat 0 --file "$layers"
}

stage_tune() {
    local plan
    "$convjit" tune --cache "$cache" --candidates 4 --plans "$work/plans" --file tools/reference_layers.txt
    "$convjit" run --cache "$cache" --plans "$work/plans" --file tools/reference_layers.txt | tee "$work/planned"
    while IFS= read -r plan; do
        plan=${plan#* | * | * | } # the configuration, and what is for people
        grep -qF "${plan% | *}" "$work/planned" || {
            echo "not run as planned: ${plan% | *}"
            return 1
        }
    done <"$work/plans"
}

stage_tensor() {
    local math wrong=0
    local numerics=$build/tests/convjit_numerics
    need_program "$numerics"
    export CONVJIT_FAMILY=tensor
    for math in fp32 fp32_block tf32; do
        "$numerics" --list --math "$math" "${cases[@]}"
    done | sed -n 's/ | .*//p' | warm_ahead # layers that the family refuses end there
    for math in fp32 fp32_block tf32; do
        echo "== $math"
        CONVJIT_CACHE_DIR=$cache "$numerics" --family tensor --math "$math" "${cases[@]}" || wrong=1
    done
    return "$wrong"
}

stage_depthwise() {
    local numerics=$build/tests/convjit_numerics
    need_program "$numerics"
    export CONVJIT_FAMILY=depthwise
    "$numerics" --list "${cases[@]}" | sed -n 's/ | .*//p' | warm_ahead # refused layers end there
    CONVJIT_CACHE_DIR=$cache "$numerics" --family depthwise "${cases[@]}"
}

stage_bench() {
    local status=0
    "$python" -c 'import torch' 2>/dev/null || lacks "$python has no PyTorch"
    # shellcheck disable=SC2086  # options, separated by spaces
    "$python" -B tools/bench/compare_torch.py $bench --library "$build/libconvjit.so" --output "$output" || status=$?
    "$python" -B tools/bench/gate.py "$output" || true # how fast is no matter of right or wrong
    return "$status"
}

stage_large() {
    local free
    free=$("$python" -c 'import torch; print(torch.cuda.mem_get_info()[0] >> 30)') || lacks "$python has no PyTorch"
    [ "$free" -ge 40 ] || lacks "$free GiB of the GPU's memory are free, 40 are needed"
    "$python" -B tools/bench/compare_torch.py --layers tools/bench/large_layers.txt --family tensor,depthwise,direct \
        --no-cudnn --no-cold --cache "$cache" --seconds-per-layer 0 --library "$build/libconvjit.so" --replace \
        --output "$work/large.json"
}

find_sanitizer() {
    local candidate
    for candidate in "${COMPUTE_SANITIZER:-compute-sanitizer}" "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer"; do
        command -v "$candidate" && return
    done
    return 1
}

# Runs the layers of file $3, forced onto family $2, under tool $1. A kernel that hangs under it is a failure too.
sanitized() { # TOOL FAMILY FILE
    local run=("$convjit" run --target "$target" --cache "$cache" --repeat 0 --file "$3")
    echo "== $1, $2"
    CONVJIT_FAMILY=$2 timeout 120 "$sanitizer" --tool "$1" --error-exitcode 9 "${run[@]}" >"$work/$1" 2>&1 || {
        cat "$work/$1"
        if grep -q 'Device not supported' "$work/$1"; then
            lacks "compute-sanitizer does not work on this machine"
        fi
        return 1
    }
    grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$work/$1" || {
        cat "$work/$1"
        echo "$1 printed no summary"
        return 1
    }
}

stage_sanitize() {
    local sanitizer tool family
    sanitizer=$(find_sanitizer) || lacks "compute-sanitizer is not there"
    grep '^tensor_' "$layers" >"$work/tensor"
    grep '^depthwise_' "$layers" >"$work/depthwise"
    grep '^[a-z]' "$layers" | grep -v '^tensor_' >"$work/direct"
    for family in direct depthwise tensor; do
        # Compiling under the sanitizer would take long.
        sed 's/^[^:]*: //' "$work/$family" | CONVJIT_FAMILY=$family warm_ahead
    done
    for tool in memcheck racecheck; do
        for family in direct depthwise tensor; do
            sanitized "$tool" "$family" "$work/$family"
        done
    done
}

mkdir -p "$(dirname "$log")"
exec > >(tee "$log") 2>&1
tee_process=$!
CONVJIT_CACHE_DIR=$cache "$convjit" info | sed "s|$PWD/||" || exit 2
target=$("$convjit" info --json | sed -n 's/.*"target": *"\(sm_[0-9a-z]*\)".*/\1/p')
if [ -z "$target" ]; then # the target cpu would take its place unasked
    echo "gpu_check.sh: no GPU found"
    exit 2
fi

summary=()
failed=0
for stage in "${stages[@]}"; do
    printf '\n==== %s\n' "$stage"
    start=$SECONDS
    set +e # a stage tested by || or if would run without -e
    (
        set -e
        "stage_$stage"
    )
    status=$?
    set -e
    case $status in
    0) result=pass ;;
    "$not_run") result="not run" ;;
    *) result=FAIL failed=1 ;;
    esac
    summary+=("$(printf '%-10s %-8s %4d s' "$stage" "$result" $((SECONDS - start)))")
done

printf '\n==== summary\n'
printf '%s\n' "${summary[@]}"
exec >&- 2>&-
wait "$tee_process" || true
exit $failed
