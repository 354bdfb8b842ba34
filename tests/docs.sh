#!/usr/bin/env bash
# Tests of the documentation: what README.md and the other *.md say must be so. One check a call:
#
#   docs.sh settings             the settings table of README is that of src/settings.h
#   docs.sh help CONVJIT         the synopsis in README is what CONVJIT --help prints
#   docs.sh warm CONVJIT NVRTC   the commands under "Warm a deployment" in README work; NVRTC is the fake one
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

# The commands run in a folder with the files that they name; /opt and /build are folders in it.
check_warm() { # CONVJIT NVRTC
    local folder commands command count=0
    folder=$(mktemp -d)
    commands=$(section 'Warm a deployment' | awk '
        /^```(sh|dockerfile)$/ { inside = 1; next }
        /^```/ { inside = 0 }
        inside && NF && !/^(FROM|COPY) / { sub(/^RUN /, ""); sub(/^ENV /, "export "); print }')
    mkdir -p "$folder/bin" "$folder/opt" "$folder/build"
    ln -s "$1" "$folder/bin/convjit"
    printf '%s\n' '#!/bin/sh' "CONVJIT_CACHE_MODE=off convjit warm --target cpu,sm_80 'conv2d c2 k8 in5x6 f3x3'" \
        >"$folder/application"
    chmod +x "$folder/application"
    # A Conv over x, of any size, with w of [1, 1, 3]; field by field as onnx.proto numbers them.
    { printf '\072\054\012\017\012\001x\012\001w\022\001y\042\004Conv'
        printf '\052\031\010\001\010\001\010\003\020\001\102\001w\112\014abcdefghijkl'; } >"$folder/build/model.onnx"
    (
        cd "$folder"
        export PATH="$folder/bin:$PATH" HOME=$folder CONVJIT_NVRTC=$2 CONVJIT_CXX=/no/such/file SLURM_ARRAY_TASK_ID=1
        unset CONVJIT_CACHE_DIR CONVJIT_CACHE_MODE CONVJIT_CACHE_SIZE CONVJIT_RECORD XDG_CACHE_HOME
        while IFS= read -r command; do
            command=$(sed -E "s#(^|[ :])/(opt|build)/#\\1$folder/\\2/#g" <<<"$command")
            case $command in export*) ;; *) [ ! -e layers.txt ] || cp layers.txt build/ ;; esac
            # shellcheck disable=SC2294
            eval "$command" >output 2>&1 || case $command in
            *./application) ;; # it asks for the target cpu too, whose compiler is not there
            *) printf '%s\n' "fails: $command" && cat output && exit 1 ;;
            esac
            case $command in *--check*) unset CONVJIT_CACHE_MODE CONVJIT_CACHE_DIR ;; esac # the image ends here
        done <<<"$commands"
        # The commands did what they say: two layers for two targets, and one of eight parts of one layer for two.
        [ "$(find opt/kernels -name '*.entry' | wc -l)" = 4 ] || { echo "opt/kernels: not 4 entries" && exit 1; }
        [ "$(find elsewhere -name '*.entry' | wc -l)" = 1 ] || { echo "elsewhere: not 1 entry" && exit 1; }
        cmp <(sort -u layers.txt) <(echo 'conv2d c2 k8 in5x6 f3x3 s1 p0 f32 nchw fp32')
    ) || failed=1
    count=$(grep -c 'convjit' <<<"$commands")
    [ "$count" -ge 5 ] || wrong "only $count commands found: is the pattern still right?"
    rm -rf "$folder"
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
