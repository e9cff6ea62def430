#!/bin/sh
# run.sh BUILD - install BUILD, move the installation elsewhere, and use it: from CMake, from pkg-config (shared and
# static), and as a subdirectory of another project.
# SPDX-License-Identifier: Apache-2.0
set -eu
build=$1
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/moved"
prefix=$work/moved

cmake -S "$here" -B "$work/user" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$work/user" >/dev/null
ctest --test-dir "$work/user" --output-on-failure | tail -n 3

pc=$(dirname "$(find "$prefix" -name rmsnorm.pc)")
libdir=$(dirname "$pc")
export PKG_CONFIG_PATH="$pc"
# The flags are separate words on purpose.
# shellcheck disable=SC2046
cc $(pkg-config --cflags rmsnorm) "$here/use.c" $(pkg-config --libs rmsnorm) -Wl,-rpath,"$libdir" -o "$work/use_pc"
"$work/use_pc"
# shellcheck disable=SC2046
cc $(pkg-config --cflags rmsnorm) "$here/use.c" "$libdir/librmsnorm.a" \
  $(pkg-config --static --libs-only-l --libs-only-other rmsnorm | sed 's/-lrmsnorm//') -o "$work/use_pc_static"
"$work/use_pc_static"

if [ -x "$prefix/bin/rmsnorm" ]; then
  "$prefix/bin/rmsnorm" --version
fi

mkdir "$work/sub"
cat >"$work/sub/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(sub C)
add_subdirectory($top rmsnorm)
add_executable(use $here/use.c)
target_link_libraries(use PRIVATE rmsnorm::rmsnorm)
END
# Without kernels for GPUs, which take minutes to build and are no different there.
cmake -S "$work/sub" -B "$work/sub/build" -DRMSNORM_CUDA=OFF >/dev/null
cmake --build "$work/sub/build" -j"$(nproc)" >/dev/null
"$work/sub/build/use"
