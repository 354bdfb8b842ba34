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
clang-format --dry-run -Werror "${files[@]}"

# Only files that the build compiles; headers are checked through the files that include them (HeaderFilterRegex).
sources=()
for file in "${files[@]}"; do
    if grep -qF "\"file\": \"$PWD/$file\"" "$build/compile_commands.json"; then
        sources+=("$file")
    elif [[ $file == *.c ]]; then
        echo "lint.sh: $file is not compiled by $build, so not checked by clang-tidy" >&2
    fi
done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy -p "$build" --quiet >"$log" 2>&1; then
    grep -vE '^[0-9]+ warnings? (and [0-9]+ errors? )?generated|^Suppressed|^Use -header-filter' "$log" >&2
    exit 1
fi
