#!/usr/bin/env bash
# clang-format and clang-tidy over every C file of the repository; silent where all is well.
# usage: tools/lint.sh [BUILD]      BUILD: a built folder, default build, for its compile_commands.json
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
[ -e "$build/compile_commands.json" ] || {
    echo "lint.sh: no $build/compile_commands.json; build first (tools/test.sh)" >&2
    exit 1
}

mapfile -t files < <(git ls-files -- '*.c' '*.h')
failed=0
clang-format --dry-run -Werror "${files[@]}" || failed=1

# Only files that the build compiles; headers are checked through the files that include them (HeaderFilterRegex).
sources=()
for file in "${files[@]}"; do
    if grep -qF "\"file\": \"$PWD/$file\"" "$build/compile_commands.json"; then
        sources+=("$file")
    elif [[ $file == *.c ]]; then
        echo "lint.sh: $file is not compiled by $build, so not checked by clang-tidy" >&2
    fi
done
# One file a process: in one that has already checked another file, clang-tidy 14 takes every va_list for uninitialized.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy -p "$build" --quiet >"$log" 2>&1; then
    grep -vE '^[0-9]+ warnings? (and [0-9]+ errors? )?generated|^Suppressed|^Use -header-filter' "$log" >&2
    failed=1
fi
exit $failed
