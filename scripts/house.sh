#!/bin/sh
# house.sh - the laws of the house that a text search can check.
# SPDX-License-Identifier: Apache-2.0
set -eu
cd "$(dirname "$0")/.."
failed=0
complain() {
  echo "house: $1" >&2
  failed=1
}

sources=$(git ls-files '*.c' '*.h' '*.cu' '*.cpp')

for file in $sources; do
  head -n 40 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || complain "$file has no licence line near its top"
  [ -z "$(tail -c 1 "$file")" ] || complain "$file does not end with a newline"
  case $file in src/*) most=600 ;; include/*) most=700 ;; *) most=700 ;; esac
  lines=$(wc -l <"$file")
  [ "$lines" -le "$most" ] || complain "$file has $lines lines, more than $most: two subjects in one file"
done

tabs=$(printf '\t')
# shellcheck disable=SC2086
if grep -ln "$tabs" $sources; then complain "tabs in the files above"; fi
# shellcheck disable=SC2086
if grep -n '^#if 0' $sources; then complain "dead code in the files above"; fi

names=$(for file in $sources; do basename "$file"; done | sort | uniq -d)
[ -z "$names" ] || complain "file names that occur twice: $names"

# Nothing outside src looks into it, except the tests of the number formats and of src/cuda.
outside=$(git ls-files 'cli/*.[ch]' 'tests/*.[ch]' 'examples/*.c' |
  grep -vE '^tests/(test_numeric|test_divisor|test_rstd|test_cuda_plan|test_cuda_host|test_triton_plan|test_triton_host|test_hip_host|triton_calls|hip_emulator|random_problem).[ch]$|^tests/emulator/')
private=$(git ls-files 'src/*.h' | xargs -n 1 basename)
for header in $private; do
  # shellcheck disable=SC2086
  if grep -n "#include \"\(.*/\)\?$header\"" $outside; then complain "a file outside src includes $header"; fi
done
# The wings do not know each other.
if grep -n '#include "portable' src/cpu/*; then complain "src/cpu includes a file of the portable implementation"; fi
if grep -nE '#include "(cpu|cuda|gpu|triton)/' src/*.[ch]; then complain "src includes a file of a wing"; fi
if grep -nE '#include ".*(cpu/|portable|triton)' src/cuda/*; then complain "src/cuda includes a file of another wing"; fi
if grep -nE '#include ".*(cuda|gpu/|triton)' src/cpu/*; then complain "src/cpu includes a file of another wing"; fi
if grep -nE '#include ".*(cpu/|cuda/|portable)' src/triton/*.[ch]; then complain "src/triton includes a file of another wing"; fi
# Drivers and devices: what stands on them is not known there.
if grep -nE '#include ".*(cpu/|cuda/|portable|triton)' src/gpu/*; then complain "src/gpu includes a file of a wing"; fi
# Kernels know the device through device.h alone, so that they can be emulated; the host knows no device words, and no
# file needs a header of CUDA.
kernels=$(git ls-files 'src/cuda/*.cu')
# shellcheck disable=SC2086
if [ -n "$kernels" ] && grep -n '#include "host.h"' $kernels; then complain "a kernel includes host.h"; fi
if grep -n '#include "device.h"' src/cuda/*.c; then complain "a host file of src/cuda includes device.h"; fi
if grep -nE '#include <(cuda|cu|nv)' src/cuda/* src/*.[ch]; then complain "src includes a header of CUDA"; fi
# Approximations would be other bits.
if grep -nE '\b(__fdividef|__frsqrt_rn|rsqrtf?|rsqrt\.approx|__?expf|__?exp2f|__?sinf|__?cosf|__?logf|__?powf|fast_math)\b *\(' src/cuda/*; then
  complain "src/cuda uses arithmetic that docs/numerics.md does not have"
fi

exit $failed
