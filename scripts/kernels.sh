#!/bin/sh
# kernels.sh FOLDER - what the compiled kernels in FOLDER (FAMILY.fatbin, FAMILY.ARCH.cubin.report) have to be: without
# spilled registers (but for some words of the quantising ones), by the assembler's report; and the fast ones with
# 16-byte accesses, by the disassembly, where cuobjdump and nvdisasm are on PATH (they are small packages of their own:
# pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm).
# SPDX-License-Identifier: Apache-2.0
set -eu
folder=$1
failed=0

reports=$(find "$folder" -name '*.cubin.report')
[ -n "$reports" ] || {
  echo "kernels: $folder has no report of the assembler" >&2
  exit 1
}
for report in $reports; do
  awk -v family="$(basename "$report" .cubin.report)" '
    /Compiling entry function/ { split($0, part, "\047"); entry = part[2]; arch = part[4]; kernels++ }
    /Function properties for/ { name = $NF }
    /bytes spill stores/ {
      # What lies apart runs seldom. For the quantising kernels see RN_QUANTISE_REGISTERS.
      split($0, bytes, /[^0-9]+/)
      spilled = bytes[3] > bytes[4] ? bytes[3] : bytes[4]
      if (name !~ /_apart/ && spilled > (entry ~ /^rn_quantise_/ ? 192 : 0)) {
        sub(/^ */, "")
        printf "kernels: %s for %s: %s: %s\n", entry, arch, name, $0
        bad++
      }
    }
    END {
      printf "kernels: %s: %d compiled, %d spill\n", family, kernels, bad
      exit bad > 0 || kernels == 0
    }' "$report" || failed=1
done

if ! command -v cuobjdump >/dev/null || ! command -v nvdisasm >/dev/null; then
  echo "kernels: cuobjdump and nvdisasm are not on PATH: no look at the machine code"
  exit $failed
fi
# A kernel of 16-byte words: rn_copy, and in the fast families those whose threads take 16 bytes of x at a time.
for family in copy forward quantise backward; do
  image=$folder/$family.fatbin
  [ -f "$image" ] || continue
  cuobjdump --dump-sass "$image" | awk -v family=$family '
    function judge() {
      if (name == "" || name !~ /^rn_copy_|^rn_forward_(bf16|f16|f32)_[a-z]+_8_|^rn_quantise_|^rn_backward_[A-Z_]+_(bf16|f16)_8_|^rn_backward_[A-Z_]+_f32_4_/) return
      judged++
      if (wide_loads > 0 && wide_stores > 0) return
      printf "kernels: %s for %s: 16-byte loads %d, 16-byte stores %d\n", name, arch, wide_loads, wide_stores
      bad++
    }
    /^[ \t]*arch = / { next_arch = $3 }
    /Function : / { judge(); name = $NF; arch = next_arch; wide_loads = wide_stores = 0 }
    / LDG[.A-Z0-9]*\.128| UBLKCP/ { wide_loads++ }
    / STG[.A-Z0-9]*\.128/ { wide_stores++ }
    END {
      judge()
      printf "kernels: %s: %d with 16-byte words looked at, %d without\n", family, judged, bad
      exit bad > 0 || judged == 0
    }' || failed=1
done
exit $failed
