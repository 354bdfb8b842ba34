#!/usr/bin/env bash
# Tests of the documentation: what README.md and the other *.md say must be so. One check a call:
#
#   docs.sh settings             the settings table of README is that of src/settings.h
#   docs.sh help CONVJIT         the synopsis in README is what CONVJIT --help prints
#   docs.sh example PROGRAM      the C example of README, built as PROGRAM, prints what its comment says
#   docs.sh paths                every path of the repository that a *.md names exists
#   docs.sh identifiers          every convjit_... and CONVJIT_... that a *.md names exists
#   docs.sh order LIBRARY        calls between the object files of LIBRARY go down the reading order of README
#
# Run from the top of the source tree. Prints what is wrong; exit status 1 if anything is.
set -euo pipefail
failed=0
wrong() {
    printf '%s\n' "$*"
    failed=1
}

# section TITLE: the lines of README under "## TITLE"
section() { awk -v title="## $1" '/^## / { inside = ($0 == title); next } inside' README.md; }

documents() { find . -name '*.md' -not -path './build*' -not -path './.git/*'; }

same() { # WHAT WANTED GOT
    if ! diff <(printf '%s\n' "$2") <(printf '%s\n' "$3"); then
        wrong "$1: README differs (<: as it is, >: as README has it)"
    fi
}

check_settings() {
    local wanted
    wanted=$(tr -d '\\\n' <src/settings.h | grep -oE 'X\([A-Z_]+, +"[^"]*", +"[^"]*"\)' |
        sed -E 's/X\([A-Z_]+, +"([^"]*)", +"([^"]*)"\)/| `\1` | \2 |/')
    [ -n "$wanted" ] || wrong "found no setting in src/settings.h"
    same "settings" "$wanted" "$(section Settings | grep '^| `')"
}

check_help() { # CONVJIT
    same "convjit --help" "$("$1" --help)" "$(section 'Command line' | awk '/^```/ { inside = !inside; next } inside')"
}

check_example() { # PROGRAM
    local wanted cache
    wanted=$(sed -nE 's|.*printf\("y\[0\] = .*/\* (.*) \*/$|y[0] = \1|p' README.md)
    cache=$(mktemp -d)
    same "output of the C example" "$(CONVJIT_CACHE_DIR=$cache "$1" || true)" "$wanted"
    rm -rf "$cache"
}

# NAME in a path stands for any name: there must be at least one such file.
check_paths() {
    local document path count=0
    while read -r document; do
        while read -r path; do
            count=$((count + 1))
            compgen -G "${path//NAME/*}" >/dev/null || wrong "$document names $path, which is not there"
        done < <(grep -oE '(^|[^A-Za-z0-9_./-])((\.ci|include|src|cache|kernel_src|tests|tools)/[A-Za-z0-9_./-]*|[A-Z]+\.md|LICENSE|CMakeLists\.txt)' \
            "$document" | sed -E 's/^[^A-Za-z.]//; s/\.$//' | sort -u)
    done < <(documents)
    [ $count -gt 20 ] || wrong "only $count paths found in the documents: is the pattern still right?"
}

check_identifiers() {
    local name count=0
    while read -r name; do
        count=$((count + 1))
        case $name in
        convjit_*)
            grep -rqw "$name" include src || grep -qw "add_executable($name" tests/CMakeLists.txt ||
                wrong "$name is in neither include/ nor src/, and no program of the tests"
            ;;
        *) grep -rqw --include='*.[ch]' --include='*.sh' --include='*.txt' --include='*.py' --exclude='docs.sh' \
            "$name" CMakeLists.txt include src cache tests tools || wrong "$name is nowhere in the code" ;;
        esac
    done < <(documents | xargs grep -ohE '\b(convjit_[a-z0-9_]+|CONVJIT_[A-Z0-9_]+)\b' | sort -u)
    [ $count -gt 10 ] || wrong "only $count identifiers found in the documents: is the pattern still right?"
}

# The reading order as lines "NUMBER STEM", where the stem of src/layer.c is layer; unnumbered (-) files get 99.
reading_order() {
    section 'Read the code in this order' | awk '
        /^[0-9]+\. / { number = $1 + 0 }
        /^- / { number = 99 }
        number {
            line = $0
            while (match(line, /`(include|src|cache)\/[a-z0-9_]+\.[ch]`/)) {
                path = substr(line, RSTART + 1, RLENGTH - 2)
                line = substr(line, RSTART + RLENGTH)
                sub(/.*\//, "", path); sub(/\..*/, "", path)
                print number, path
            }
        }'
}

check_order() { # LIBRARY
    local file stem
    for file in src/*.c cache/*.c; do
        stem=$(basename "$file" .c)
        reading_order | grep -qx "[0-9]* $stem" || wrong "$file is missing in the reading order of README"
    done
    # nm: a line "layer.c.o:", then "ADDRESS T name" for each definition and "U name" for each use.
    nm "$1" 2>/dev/null | awk '
        NR == FNR { number[$2] = $1; next }
        /\.o:$/ { file = $0; sub(/\..*/, "", file); next }
        $1 == "U" && $2 ~ /^(cj_|convjit_)/ { used[file " " $2] = 1 }
        $2 ~ /^[TDRBV]$/ { owner[$3] = file }
        END {
            for (pair in used) {
                split(pair, use, " ")
                from = number[use[1]]; to = number[owner[use[2]]]
                if (from != "" && to != "") checked++
                if (from != "" && to != "" && from + 0 > to + 0) {
                    print use[1] " (" from ") uses " use[2] " of " owner[use[2]] " (" to "), against the reading order"
                    bad = 1
                }
            }
            if (checked < 20) { print "only " checked + 0 " calls found in the library: is the pattern still right?"; bad = 1 }
            exit bad
        }' <(reading_order) - || failed=1
}

check=check_${1:?which check}
shift
"$check" "$@"
exit $failed
