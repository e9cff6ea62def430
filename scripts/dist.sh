#!/bin/sh
# dist.sh GENERATED FOLDER - FOLDER/rmsnorm-VERSION.tar.gz: what is committed, and the kernels in GENERATED (binaries,
# manifest.json, triton_table.c) as generated/triton, where a build finds them and needs no Triton.
# SPDX-License-Identifier: Apache-2.0
set -eu
generated=$1
folder=$2
top=$(cd "$(dirname "$0")/.." && pwd)
part() {
  sed -n "s/^#define RMSNORM_VERSION_$1 //p" "$top/include/rmsnorm.h"
}
name=rmsnorm-$(part MAJOR).$(part MINOR).$(part PATCH)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git -C "$top" archive --prefix="$name/" HEAD | tar -x -C "$work"
mkdir -p "$work/$name/generated/triton"
cp "$generated"/triton_table.c "$generated"/manifest.json "$work/$name/generated/triton/"
find "$generated" -name '*.cubin' -exec cp {} "$work/$name/generated/triton/" \;
find "$generated" -name '*.hsaco' -exec cp {} "$work/$name/generated/triton/" \;
# The same bytes from the same commit, whoever makes it and when.
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git -C "$top" log -1 --format=%ct)" -c "$name" |
  gzip -n9 >"$folder/$name.tar.gz"
echo "$folder/$name.tar.gz"
