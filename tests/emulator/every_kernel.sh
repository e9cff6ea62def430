#!/bin/sh
# every_kernel.sh COMMAND... - run the command on the emulated device; it has to succeed and to have launched every
# kernel of the library. The driver has those of the list in src/cuda/kernels.h, or loading them fails, and the copies
# of `rmsnorm bench`, which do not count here.
# SPDX-License-Identifier: Apache-2.0
set -eu
trace=$(mktemp)
trap 'rm -f "$trace"' EXIT
RMSNORM_EMULATED_TRACE=1 "$@" 2>"$trace" || {
  status=$?
  cat "$trace" >&2
  exit $status
}
awk '
  /^emulated device: +[0-9]+ launches of / && $NF !~ /^rn_copy_/ {
    kernels++
    if ($3 == 0) {
      print "never launched: " $NF
      missed++
    }
  }
  END {
    printf "%d kernels, %d never launched\n", kernels, missed
    exit kernels == 0 || missed > 0
  }' "$trace"
