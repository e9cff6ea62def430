#!/bin/sh
# test_cli.sh RMSNORM - what the command says and how it exits, on small files made here with printf.
#
# SPDX-License-Identifier: Apache-2.0
#
# Bytes are made by printf out of its own format:
# shellcheck disable=SC2059
set -u
export LC_ALL=C NO_COLOR=1 RMSNORM_IMPL=portable

rmsnorm=$(realpath "${1:?usage: test_cli.sh RMSNORM}")
[ -x "$rmsnorm" ] || { echo "$1: not there" >&2; exit 2; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 2
failures=0

fail() {
  echo "FAILED: $1" >&2
  sed 's/^/  stdout: /' out >&2
  sed 's/^/  stderr: /' err >&2
  failures=$((failures + 1))
}

# expect STATUS OUT ERR ARGUMENTS...: the exit status, and a basic regular expression that has to be on stdout and one
# on stderr ("" = nothing may be there at all).
expect() {
  status=$1 want_out=$2 want_err=$3
  shift 3
  "$rmsnorm" "$@" >out 2>err
  found=$?
  [ "$found" -eq "$status" ] || { fail "rmsnorm $*: exit status $found, expected $status"; return; }
  for pair in "out:$want_out" "err:$want_err"; do
    file=${pair%%:*} wanted=${pair#*:}
    if [ -z "$wanted" ]; then
      [ ! -s "$file" ] || { fail "rmsnorm $*: std$file is not empty"; return; }
    else
      grep -q -- "$wanted" "$file" || { fail "rmsnorm $*: no '$wanted' on std$file"; return; }
    fi
  done
}

# same_bytes FILE OCTAL: the end of a file, byte by byte (od's notation without spaces).
same_bytes() {
  n=$(printf '%s' "$2" | wc -c)
  found=$(tail -c $((n / 2)) "$1" | od -An -v -tx1 | tr -d ' \n')
  [ "$found" = "$2" ] || { : >out; : >err; fail "$1: ends in $found, expected $2"; }
}

# npy NAME DESCR SHAPE DATA: a .npy file; DATA for printf.
npy() {
  header="{'descr': '$2', 'fortran_order': False, 'shape': $3, }"
  { printf '\223NUMPY\001\000'; printf "\\$(printf %03o "${#header}")\\000"; printf '%s' "$header"; printf "$4"; } >"$1"
}

# x = [[1, 7], [0, 0]] and weight [1, 2] in f32; 1 and 7 have the mean square 25, so rstd = 1/5 (eps 0).
npy x.npy '<f4' '(2, 2)' '\000\000\200\077\000\000\340\100\000\000\000\000\000\000\000\000'
npy w.npy '<f4' '(2,)' '\000\000\200\077\000\000\000\100'
npy w3.npy '<f4' '(3,)' '\000\000\200\077\000\000\000\100\000\000\000\100'
npy two.npy '<f4' '(2, 2)' '\000\000\200\077\000\000\340\100\000\000\200\077\000\000\340\100' # [1, 7] twice
npy heads.npy '<f4' '(2, 2)' '\000\000\200\077\000\000\000\100\000\000\000\000\000\000\000\000'
npy b.npy '|V2' '(1, 2)' '\200\077\340\100' # [1, 7] in bf16, as numpy would save it
npy g.npy '<f4' '(2, 2)' '\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000'

# gguf NAME ARCHITECTURE: one tensor "w", f32 [1, 2], and an eps of 2^-20.
le8() { printf "\\$(printf %03o "$1")\\000\\000\\000\\000\\000\\000\\000"; }
text() { le8 "${#1}"; printf '%s' "$1"; }
gguf() {
  {
    printf 'GGUF\003\000\000\000'; le8 1; le8 2
    text general.architecture; printf '\010\000\000\000'; text "$2"
    text "$2.attention.layer_norm_rms_epsilon"; printf '\006\000\000\000\000\000\200\065'
    text w; printf '\001\000\000\000'; le8 2; printf '\000\000\000\000'; le8 0
  } >"$1"
  while [ $(($(wc -c <"$1") % 32)) -ne 0 ]; do printf '\000' >>"$1"; done
  printf '\000\000\200\077\000\000\000\100' >>"$1"
}
gguf gemma.gguf gemma2
gguf llama.gguf llama

# The front door.
expect 0 '^rmsnorm [0-9]*\.[0-9]*\.[0-9]*$' '' --version
expect 0 '^Examples:' '' --help
expect 0 '^Examples:' '' help
for command in run check bench diff bisect info; do
  expect 0 '^Examples:' '' help $command
  expect 0 '^Examples:' '' $command --help
done
expect 2 '' '^Examples:'
expect 2 '' "there is no command 'rnu'; expected run, check" rnu
expect 2 '' 'wants auto, always or never' --color=green info
expect 2 '' 'unknown option --foo. Try: rmsnorm run --help' run --foo
expect 2 '' 'unknown option -z' run x.npy -qz -e 0
expect 2 '' 'unknown option' info --foo
expect 0 '"name":"portable","usable":true' '' info --json
expect 0 'portable *yes' '' info
expect 0 "$(printf '\033')" '' info --color=always
"$rmsnorm" info | grep -q "$(printf '\033')" && { : >out; : >err; fail "colour although NO_COLOR is set"; }

# The job. y = [[1/5, 14/5], [0, 0]]: 1/5 = 3e4ccccd (0.2 + 3e-9); 7 times that lies
# nearest to 3fb33333; times 2 = 40333333.
expect 0 '^2 x 2 f32 -> f32, cpu, portable, .* us, .* GB/s$' '' run x.npy --weight w.npy --eps 0 -o y.npy
same_bytes y.npy cdcc4c3e333333400000000000000000
expect 0 '' '' run x.npy -w w.npy -e 0 -q -o y.npy --rstd r.npy
same_bytes r.npy cdcc4c3e00000000
expect 0 '"impl":"portable","seconds":[0-9.e+-]*,"bytes":40,"outputs":\[{"name":"y","dtype":"f32","shape":\[2,2\],"file":"y.npy"}\]}$' '' \
  run x.npy -w w.npy -e 0 --json -o y.npy
expect 0 '^1 x 2 x 2 f32' '' run two.npy -w heads.npy -e 0 -o y.npy # per head: the second head's weight is 0
same_bytes y.npy cdcc4c3e333333400000000000000000
expect 0 '.' '' run x.npy -e 0 --groups 2 -o y.npy # every element is its own group: +-1, and 0 stays 0
same_bytes y.npy 0000803f0000803f0000000000000000
expect 0 '.' '' run x.npy --residual x.npy -e 0 -o y.npy --residual-out s.npy # 2 and 14: rstd 1/10
same_bytes s.npy 00000040000060410000000000000000
same_bytes y.npy cdcc4c3e3333b33f0000000000000000
expect 0 '.' '' run x.npy -w w.npy -e 0 --offset 1 -o y.npy # weights 2 and 3
same_bytes y.npy cdcccc3e666686400000000000000000
expect 0 '.' '' run x.npy --gate g.npy --gate-act sigmoid -e 0 -o y.npy # sigmoid(0) = 1/2
same_bytes y.npy cdcccc3d3333333f0000000000000000
expect 0 '.' 'numpy has no bf16' run b.npy --dtype bf16 -e 0 -o y.npy # 0.2, 1.4 in bf16
same_bytes y.npy 4d3eb33f
expect 0 '1 x 2 bf16 -> f32' '' run b.npy --dtype bf16 -e 0 --out-dtype f32 -o y.npy
same_bytes y.npy cdcc4c3e3333b33f
expect 0 '.' 'numpy has no fp8_e4m3' run x.npy -e 0 --quant fp8-tensor --scale 1 -o q.npy # 0.2 -> 0.203125, 1.4 -> 1.375
same_bytes q.npy 253b0000
expect 0 '.' '' run x.npy -e 0 --quant int8-row -o q.npy --scale-out s.npy # 1.4 is 127; 0.2 is 18.14
same_bytes q.npy 127f0000
expect 0 '.' '' run x.npy -e 0 --quant mxfp8 -o m.safetensors --scale-out m.safetensors --y-out m.safetensors:y
expect 2 '' 'holds 3 tensors' run m.safetensors -e 0 -o y.npy
expect 0 '^portable' '' run x.npy -e 0 --explain

# The offset of a weight out of GGUF: never added unasked, and said so. y as with weights 1 and 2, or 2 and 3.
expect 0 '.' "already has the model's + 1 folded in; the preset's offset 1 is left out" \
  run x.npy -w gemma.gguf:w -e 0 -p gemma -o y.npy
same_bytes y.npy cdcc4c3e333333400000000000000000
expect 0 '.' 'folded in; --offset 1 is added all the same, as asked' run x.npy -w gemma.gguf:w -e 0 --offset 1 -o y.npy
same_bytes y.npy cdcccc3e666686400000000000000000
expect 0 '.' 'architecture llama: the weight in this file is used as it is.*; offset 0 is right' \
  run x.npy -w llama.gguf:w -e 0 -p llama -o y.npy
expect 2 '' 'The file of the weight says 9.536743e-07. Try: --eps 9.536743e-07' run x.npy -w llama.gguf:w -o y.npy
expect 2 '' 'holds no tensor called v. There are:' run x.npy -w llama.gguf:v -e 0 -o y.npy
expect 2 '' '^  w  F32 \[2\]$' run x.npy -w llama.gguf:v -e 0 -o y.npy

# Comparison: 0 the same, 1 different, 2 trouble.
"$rmsnorm" run x.npy -w w.npy -e 0 -q -o y.npy
expect 0 'y: 0 of 4 elements differ from y.npy' '' run x.npy -w w.npy -e 0 --expect y.npy
expect 1 'y: 2 of 4 elements differ from y.npy, at most' 'y: element 0 is 0.199.*, expected 0.2' run x.npy -w w.npy -e 0.01 --expect y.npy
expect 0 '.' '' run x.npy -w w.npy -e 1e-6 --expect y.npy --expect-ulp 1
expect 1 '"expect":"y.npy","within":false,"differ":2,"ulp":' 'y: element' run x.npy -w w.npy -e 0.01 --json --expect y.npy
expect 0 '"within":true,"differ":0,"ulp":0}\]}$' '' run x.npy -w w.npy -e 0 --json --expect y.npy
npy minus.npy '<f4' '(1, 2)' '\000\000\200\077\000\000\000\200' # [1, -0]
npy plus.npy '<f4' '(1, 2)' '\363\004\265\077\000\000\000\000' # [sqrt 2, +0]
expect 1 'y: 1 of 2 elements differ from plus.npy, at most 0 ulp' 'y: element 1 is -0, expected 0' \
  run minus.npy -e 0 --expect plus.npy
expect 0 '.' '' run minus.npy -e 0 --expect plus.npy --expect-ulp 1
expect 2 '' 'expected the same, found f32 with 2' run x.npy -w w.npy -e 0 --expect w.npy

# Refusals: nothing is written.
rm -f y.npy
expect 2 '' 'expected one tensor to normalise, found 0' run
expect 2 '' 'expected one tensor to normalise, found 2' run x.npy x.npy -o y.npy
expect 2 '' 'nothing to do: give -o' run x.npy
expect 2 '' '--eps is missing and has no default.*rms_norm_eps.*Try: --eps 1e-5' run x.npy -o y.npy
expect 2 '' "expected a number such as 1e-5, found 'tiny'" run x.npy -e tiny -o y.npy
for eps in nan inf -1; do expect 2 '' "--eps: expected a finite number >= 0, found '$eps'" run x.npy -e $eps -o y.npy; done
expect 2 '' "--divisor: expected a whole number of 1 or more, found '0'" run x.npy -e 0 --divisor 0 -o y.npy
expect 2 '' '--preset: expected one of .*llama.*; found .lama' run x.npy -e 0 -p lama -o y.npy
expect 2 '' 'missing.npy: can not be opened: No such file' run missing.npy -e 0 -o y.npy
expect 2 '' '^  expected \[2\] or, per head, \[2, 2\]$' run x.npy -w w3.npy -e 0 -o y.npy
expect 2 '' '^  found    \[3\]$' run x.npy -w w3.npy -e 0 -o y.npy
expect 2 '' 'expected the shape of x, \[2, 2\]$' run x.npy --residual w.npy -e 0 -o y.npy
expect 2 '' 'Try: --dtype bf16' run b.npy -e 0 -o y.npy
expect 2 '' 'Leave --dtype away' run x.npy --dtype bf16 -e 0 -o y.npy
expect 2 '' '--gate needs its activation' run x.npy --gate g.npy -e 0 -o y.npy
expect 2 '' 'wants a gate' run x.npy -p mamba2 -e 0 -o y.npy
expect 2 '' '--residual-out needs --residual' run x.npy --residual-out s.npy -e 0 -o y.npy
expect 2 '' 'needs the scale: --scale S' run x.npy --quant fp8-tensor -e 0 -o y.npy
expect 2 '' 'finds its own scales' run x.npy --quant fp8-row --scale 1 -e 0 -o y.npy
expect 2 '' 'scales are for --quant' run x.npy --scale-out s.npy -e 0 -o y.npy
expect 2 '' "expected a kind such as fp8-row.*found 'fp9'" run x.npy --quant fp9 -e 0 -o y.npy
expect 2 '' 'expected none, x, weight, promoted, stored' run x.npy --round-xhat up -e 0 -o y.npy
expect 2 '' 'ends in .npy or .safetensors' run x.npy -e 0 -o y.txt
expect 2 '' 'nonesuch' run x.npy --impl nonesuch -e 0 -o y.npy
expect 2 '' '--groups' run x.npy --groups 0 -e 0 -o y.npy
expect 2 '' 'groups' run x.npy --groups 3 -e 0 -o y.npy
expect 2 '' '--eps wants a value' run x.npy --eps
# A GPU that is not there, a file that is no driver, a place that does not exist.
for command in "check --smoke" bench "run x.npy -e 0 --impl cuda -o y.npy"; do
  export RMSNORM_CUDA_DRIVER=/nowhere/libcuda.so
  # shellcheck disable=SC2086
  expect 2 '' '/nowhere/libcuda.so: cannot open\|no CUDA' $command --device cuda
  export RMSNORM_CUDA_DRIVER=libm.so.6
  # shellcheck disable=SC2086
  expect 2 '' 'libm.so.6 is not a CUDA driver\|no CUDA\|cuInit\|driver' $command --device cuda
  # shellcheck disable=SC2086
  expect 2 '' "--device.*cpu, cuda, cuda:N, hip or hip:N.*found 'cuda:x'" $command --device cuda:x
  export RMSNORM_HIP_DRIVER=/nowhere/libamdhip64.so
  # shellcheck disable=SC2086
  expect 2 '' '/nowhere/libamdhip64.so: cannot open\|on a HIP device' $command --device hip
  export RMSNORM_HIP_DRIVER=libm.so.6
  # shellcheck disable=SC2086
  expect 2 '' 'libm.so.6 is not a HIP runtime\|on a HIP device' $command --device hip:1
  # shellcheck disable=SC2086
  expect 2 '' "--device.*found 'hip:'" $command --device hip:
done
expect 2 '' '--self-test breaks results in the memory of the CPU' check --self-test --device cuda
expect 2 '' '--peers, --dependent and --multiprocessors want a GPU' bench --peers none.csv
expect 2 '' '--peers none.csv: No such file' bench --device cuda --peers none.csv
printf 'op,dtype,rows,cols,mode,best_us,peer,bytes,copy_us\nfwd,bf16,1,64,hot,1.1,one,255,0.9\n' >peers.csv
expect 2 '' '--peers peers.csv: line 2 is not op,dtype' bench --device cuda --peers peers.csv
expect 2 '' "--op does not take 'gated'" bench --device cuda --op gated
expect 2 '' '--every wants a whole number from 1' check --every 0
expect 2 '' 'unknown option --foo' check --foo
expect 0 '^extent .*2^32' '' check --list --device cuda
expect 0 '^gpu  *none: .*CUDA' '' info
expect 0 '"gpus":\[\],"no_gpu":".*CUDA' '' info --json
expect 0 '^amd gpu  *none: .*HIP' '' info
expect 0 '^  triton-hip .*not run on AMD hardware' '' info
expect 0 '"device":"cpu"' '' run x.npy -e 0 --device cpu --json -o y.npy
unset RMSNORM_CUDA_DRIVER RMSNORM_HIP_DRIVER
rm -f y.npy

# Outputs that would replace each other, or tensors that are read.
ln -s "$PWD" here
ln -s nowhere.npy loose.npy
expect 2 '' 'y.npy and ./y.npy are the same file' run x.npy -e 0 -o y.npy --rstd ./y.npy
expect 2 '' 'are the same file' run x.npy -e 0 -o y.npy --rstd here/y.npy
expect 2 '' 'a .npy file holds one array, 2 were to go into it' run x.npy -e 0 -o y.npy --rstd y.npy
expect 2 '' 'two outputs would be called a in this file' run x.npy -e 0 -o y.safetensors:a --rstd y.safetensors:a
expect 2 '' 'two outputs would be called y in this file' run x.npy -e 0 -o y.safetensors --rstd y.safetensors:y
expect 2 '' 'a symbolic link that leads nowhere' run x.npy -e 0 -o loose.npy
expect 2 '' 'none/y.npy: can not be written: No such file' run x.npy -e 0 -o none/y.npy
expect 2 '' 'm.safetensors: an output, and also an input that holds 2 tensors of another name, which would be lost' \
  run m.safetensors:y -e 0 -o ./m.safetensors
expect 2 '' 'holds 3 tensors' run m.safetensors -e 0 -o y.npy # all three are still there
expect 2 '' 'x.npy: an output, and also what --expect compares with' run two.npy -e 0 -o x.npy --expect x.npy
[ ! -e y.safetensors ] || fail "a refused call wrote y.safetensors"
: >out; : >err
[ ! -e y.npy ] || fail "a refused call wrote y.npy"
# A link stays one, and its file gets the result.
cp w.npy kept.npy
ln -s kept.npy link.npy
expect 0 '.' '' run x.npy -w w.npy -e 0 -o link.npy
[ -L link.npy ] || fail "the symbolic link was replaced"
same_bytes kept.npy cdcc4c3e333333400000000000000000
ln kept.npy same.npy
expect 2 '' 'are the same file' run x.npy -e 0 -o kept.npy --rstd same.npy
expect 0 '.' '--offset does nothing without --weight' run x.npy -e 0 --offset 1 -o y.npy
expect 0 '.' 'the scales of --quant fp8-row are not kept' run x.npy -e 0 --quant fp8-row -o q.safetensors
if [ -c /dev/full ]; then
  "$rmsnorm" info >/dev/full 2>err && fail "a full disk behind stdout went unnoticed"
fi
# diff: x = [[1, 7], [0, 0]] again. The norm with eps 0 is [0.2, 1.4] and zeros; LayerNorm makes [-1, 1] of the first row.
expect 0 'Examples:' '' diff --help
expect 0 'mean-removed (input)' '' diff --list
expect 0 '"name":"eps","kind":"statistic"' '' diff --list --json
npy right.npy '<f4' '(2, 2)' '\315\314\114\076\063\063\263\077\000\000\000\000\000\000\000\000'
npy layer.npy '<f4' '(2, 2)' '\000\000\200\277\000\000\200\077\000\000\000\000\000\000\000\000'
npy other.npy '<f4' '(2, 2)' '\000\000\200\077\000\000\100\100\000\000\200\077\000\000\000\100'
expect 0 'equal: bits equal preset' '' diff right.npy --x x.npy --eps 0
expect 1 'this is LayerNorm' '' diff layer.npy --x x.npy --eps 0
expect 1 '"verdict":"explained".*"names":\["mean-removed"\]' '' diff layer.npy --x x.npy --eps 0 --json
expect 1 'not explained' '' diff other.npy --x x.npy --eps 0
expect 1 '' '' diff other.npy --x x.npy --eps 0 --quiet
expect 0 'same bits' '' diff right.npy --x x.npy --eps 0 --reference right.npy
expect 1 'the reference: bits equal.*LayerNorm' '' diff layer.npy --x x.npy --eps 0 --reference right.npy
expect 1 '.' '' diff other.npy right.npy
expect 0 '.' '' diff right.npy right.npy
expect 1 '"command":"diff","equal":false' '' diff other.npy right.npy --json
expect 1 '.' '' diff layer.npy --x x.npy --eps 0 --svg where.svg
grep -q '<svg' where.svg || fail 'diff --svg wrote no picture'
expect 2 '' 'expected two tensors, or one and --x, found 1' diff right.npy
expect 2 '' 'the weight has 3 elements, expected 2' diff right.npy --x x.npy --weight w3.npy
expect 2 '' 'theirs has 2 elements, expected 4' diff w.npy --x x.npy
expect 2 '' '--eps wants a finite number >= 0' diff right.npy --x x.npy --eps -1
expect 2 '' '--preset wants a name' diff right.npy --x x.npy --preset unheard-of
expect 2 '' '--quant and --scale belong together' diff right.npy --x x.npy --quant fp8-row
[ "$failures" -eq 0 ] || { echo "$failures failures" >&2; exit 1; }
echo "all of test_cli passed"
