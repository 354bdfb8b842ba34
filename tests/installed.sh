#!/usr/bin/env bash
# installed.sh BUILD EXAMPLE - the library as others get it: BUILD is installed, and the C program EXAMPLE is built against
# that, by find_package with either library and by pkg-config, and prints what README says.
set -euo pipefail
build=$1 example=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CONVJIT_CACHE_DIR=$work/cache

expect_output() { # PROGRAM...
    local got
    got=$("$@")
    [ "$got" = "y[0] = 2" ] || {
        echo "$* printed '$got'"
        exit 1
    }
}

cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix" # it may be moved
mkdir "$work/user"
cp "$example" "$work/user/example.c"
cat >"$work/user/CMakeLists.txt" <<'TXT'
cmake_minimum_required(VERSION 3.20)
project(user C)
find_package(convjit 0.1 REQUIRED)
foreach(library convjit static)
  add_executable(with_${library} example.c)
  target_link_libraries(with_${library} PRIVATE convjit::${library})
endforeach()
TXT
if ! { cmake -S "$work/user" -B "$work/user/build" -D CMAKE_PREFIX_PATH="$work/prefix" &&
    cmake --build "$work/user/build"; } >"$work/log" 2>&1; then
    cat "$work/log"
    exit 1
fi
expect_output "$work/user/build/with_convjit"
expect_output "$work/user/build/with_static"

PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name convjit.pc)")
export PKG_CONFIG_PATH
read -ra flags < <(pkg-config --cflags --libs convjit)
cc "$work/user/example.c" "${flags[@]}" -o "$work/user/with_pkg_config"
LD_LIBRARY_PATH=$(pkg-config --libs-only-L convjit | sed 's/^-L//; s/ *$//') expect_output "$work/user/with_pkg_config"
