#!/bin/sh
# run.sh RMSNORM - the main job on real input: normalise hidden states of SmolLM2-135M with its own weights and compare
# with the model's own RMSNorm, element by element; then a short benchmark. RMSNORM is the path of the command.
#
# The model's reference adds in an order of its own, so the last bit of a row's factor may differ, and with it the
# rounding of an element here and there: 1 ulp of bfloat16 (1 code of fp8) is allowed, more fails, and what differs is
# counted and shown.
#
# SPDX-License-Identifier: Apache-2.0
set -eu

rmsnorm=$(realpath "${1:?usage: run.sh RMSNORM}")
cd "$(dirname "$0")"
data=smollm2-135m.safetensors
first=$data:layers.0.input_layernorm
middle=$data:layers.15.post_attention_layernorm
last=$data:norm
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# show TITLE ARGUMENTS: the command as one would type it, then what it says.
show() {
  echo
  echo "# $1"
  shift
  echo "rmsnorm $*" | sed "s|$out/||g"
  "$rmsnorm" "$@"
}

echo "SmolLM2-135M-Instruct, 25 tokens of a prompt, 576 columns, bfloat16 (see demo/NOTICE)"

show "the first norm of the model" \
  run "$first.input" --weight "$first.weight" --eps 1e-5 --preset llama -o "$out/y.safetensors" \
  --expect "$first.output" --expect-ulp 1

show "layer 15: add the attention's output to the residual stream and normalise, in one pass" \
  run "$middle.branch" --residual "$middle.residual" --weight "$middle.weight" --eps 1e-5 --preset llama \
  -o "$out/y.safetensors" --residual-out "$out/y.safetensors" \
  --expect "$middle.output" --expect-residual "$middle.sum" --expect-ulp 1

show "the last norm" \
  run "$last.input" --weight "$last.weight" --eps 1e-5 --preset llama -o "$out/y.safetensors" \
  --expect "$last.output" --expect-ulp 1

show "the last norm, quantised to fp8 with a scale for every token" \
  run "$last.input" --weight "$last.weight" --eps 1e-5 --preset llama --quant fp8-row \
  -o "$out/q.safetensors" --scale-out "$out/q.safetensors" \
  --expect "$last.output_fp8" --expect-scale "$last.scale" --expect-ulp 1

status=0
show "the comparison can fail: with the preset of another family it does" \
  run "$last.input" --weight "$last.weight" --eps 1e-5 --preset gemma -q --expect "$last.output" --expect-ulp 1 || status=$?
if [ "$status" -ne 1 ]; then
  echo "expected that comparison to fail (exit status 1), found status $status" >&2
  exit 1
fi

show "a short benchmark at the width of this model, in cache and out of it, beside a copy of the same bytes" \
  bench --op forward,residual --dtype bf16 --cols 576 --bytes 512K,128M --threads 1 --time 0.05
