# install.sh - read by quickstart.sh and test.sh with `source`: what the build needs, installed where it is missing.
# Nothing here asks the network while everything is there.

say() { printf '%s\n' "$*"; }
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "installing packages needs root or sudo; as root: $*"
    fi
}

# Is it there? By what the build looks for, not by the package, so that other systems and own builds count too.
#   command:NAME  header:NAME  file:PATH  pip (of python3)  fuzzer (clang's libFuzzer and sanitizers)
have() {
    case $1 in
    command:*) command -v "${1#*:}" >/dev/null ;;
    header:*) printf '#include <%s>\n' "${1#*:}" | cc -E -x c - >/dev/null 2>&1 ;;
    file:*) [ -e "${1#*:}" ] ;;
    pip) python3 -m pip --version >/dev/null 2>&1 ;;
    fuzzer)
        printf 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n ? 0 : 0; }\n' |
            clang -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null
        ;;
    *) die "internal error: probe $1" ;;
    esac
}

# install_missing PROBE PACKAGE PROBE PACKAGE ...: installs the packages (Debian's names) whose probes fail.
install_missing() {
    local packages=() probes=()
    while [ $# -gt 0 ]; do
        if ! have "$1"; then
            probes+=("$1")
            packages+=("$2")
        fi
        shift 2
    done
    [ ${#packages[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        die "missing: ${probes[*]}; no apt-get here, so install what holds them (in Debian: ${packages[*]})"
    say "installing ${packages[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null
    local probe
    for probe in "${probes[@]}"; do
        have "$probe" || die "still missing after installing ${packages[*]}: $probe"
    done
}

install_build_tools() {
    install_missing command:cc gcc command:c++ g++ header:stdlib.h libc6-dev command:cmake cmake \
        command:ninja ninja-build header:uthash.h uthash-dev header:xxhash.h libxxhash-dev
}

# Where a folder has cuda.h, nvrtc.h and NVRTC, its include folder.
toolkit_include() {
    local root=$1 library
    [ -e "$root/include/cuda.h" ] && [ -e "$root/include/nvrtc.h" ] || return 1
    for library in "$root"/lib64/libnvrtc.so* "$root"/lib/libnvrtc.so* "$root"/lib/*/libnvrtc.so*; do
        if [ -e "$library" ]; then
            printf '%s\n' "$root/include"
            return 0
        fi
    done
    return 1
}

# find_cuda FOLDER: sets cuda_include, the folder of cuda.h and nvrtc.h. Takes the CUDA toolkit; where there is none,
# the PyPI packages, unpacked into FOLDER/packages, with CONVJIT_NVRTC exported so that convjit finds NVRTC there.
find_cuda() {
    local folder=$1 root
    if [ -z "${CONVJIT_HIDE_TOOLKIT:-}" ]; then
        for root in "${CUDA_HOME:-}" /usr/local/cuda /usr; do
            if [ -n "$root" ] && cuda_include=$(toolkit_include "$root"); then
                say "CUDA: the toolkit in $root"
                return 0
            fi
        done
    fi
    [ -e "$folder/lib/libnvrtc.so" ] || fetch_cuda "$folder"
    say "CUDA: no toolkit; the PyPI packages in $folder"
    cuda_include=$folder/include
    export CONVJIT_NVRTC=$folder/lib/libnvrtc.so
}

# The packages' layout differs by version (nvidia/cu13/include, nvidia/cuda_runtime/include, ...), so the files are
# looked for by name and linked to fixed places. libnvrtc.so comes last: it says that the folder is complete.
fetch_cuda() {
    local folder=$1 header library found
    install_missing pip python3-pip
    say "CUDA: no toolkit; fetching cuda.h, nvrtc.h and NVRTC from PyPI (about 100 MB)"
    mkdir -p "$folder/include"
    rm -rf "$folder/packages" "$folder/lib"
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --target "$folder/packages" \
        'nvidia-cuda-runtime>=13,<14' 'nvidia-cuda-nvrtc>=13,<14'
    for header in cuda.h nvrtc.h; do
        found=$(find "$folder/packages" -name $header -print -quit)
        [ -n "$found" ] || die "no $header in the PyPI packages under $folder/packages"
        ln -sfn "$found" "$folder/include/$header"
    done
    library=$(find "$folder/packages" -name 'libnvrtc.so.*' ! -name '*alt*' -print -quit)
    [ -n "$library" ] || die "no libnvrtc.so in the PyPI packages under $folder/packages"
    ln -sfn "$(dirname "$library")" "$folder/lib"
    ln -sfn "$(basename "$library")" "$folder/lib/libnvrtc.so"
}

# configure BUILD OPTION...: CMake with Ninja and the headers find_cuda chose, also where another choice was cached.
configure() {
    local build=$1
    shift
    cmake -S . -B "$build" -G Ninja --log-level=WARNING -D CONVJIT_CUDA_INCLUDE="$cuda_include" \
        -U CONVJIT_CUDA_HEADERS -U CONVJIT_NVRTC_HEADERS "$@" >/dev/null
}
