#!/bin/sh
# nvcc.sh REPORT NVCC ARGUMENTS - run NVCC, keep what it and the assembler say in REPORT, show it only when it matters.
# SPDX-License-Identifier: Apache-2.0
set -eu
report=$1
shift
if "$@" >"$report.new" 2>&1; then
  grep -iE 'warning|error' "$report.new" >&2 || true
  mv "$report.new" "$report"
else
  status=$?
  grep -v '^ptxas info\|bytes stack frame' "$report.new" >&2 || true
  exit $status
fi
