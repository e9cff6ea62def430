#!/bin/sh
# solve.sh RMSNORM - a port of SmolLM2-135M has a mistake in one norm (port.py makes it, and says which): find the norm,
# and find the mistake. RMSNORM is the path of the command; the two commands below are those of the README.
#
# SPDX-License-Identifier: Apache-2.0
set -u

rmsnorm=$(realpath "${1:?usage: solve.sh RMSNORM}")
cd "$(dirname "$0")/../.." || exit 2

# solve TITLE ARGUMENTS: the command as one would type it, then what it says. Exit status 1 is what is expected: something
# differs.
solve() {
  echo
  echo "# $1"
  shift
  echo "rmsnorm $*"
  echo
  "$rmsnorm" "$@"
  status=$?
  [ $status -eq 1 ] || { echo "solve.sh: exit status $status, expected 1" >&2; exit 2; }
}

solve "which norm is at fault?" \
  bisect --model demo/smollm2-135m.safetensors --dump-a demo/diff/port.safetensors \
  --dump-b demo/smollm2-135m.safetensors --eps 1e-5

model=demo/smollm2-135m.safetensors:layers.15.post_attention_layernorm
solve "and why?" \
  diff demo/diff/port.safetensors:layers.15.post_attention_layernorm.output --x "$model.branch" \
  --residual "$model.residual" --weight "$model.weight" --eps 1e-5 --reference "$model.output"
