# Completion of the rmsnorm command for bash. Options come out of the command's own help, so they are never out of date.
# SPDX-License-Identifier: Apache-2.0
_rmsnorm() {
  local word=$2 before=$3 command=${COMP_WORDS[1]} list
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    list="run check bench diff bisect info help --help --version --color"
  else
    case $before in
      -p | --preset) list=$(rmsnorm info --json 2>/dev/null | sed 's/.*"presets"//' | grep -o '"name":"[^"]*"' | cut -d'"' -f4) ;;
      --impl) list=$(rmsnorm info --json 2>/dev/null | sed 's/"presets".*//' | grep -o '"name":"[^"]*"' | cut -d'"' -f4) ;;
      --dtype | --out-dtype) list="f32 f16 bf16 f64" ;;
      --color) list="auto always never" ;;
      --device) list="cpu cuda hip" ;;
      --gate-act) list="none silu sigmoid" ;;
      --gate-place) list="after before" ;;
      --round-*) list="none x weight promoted stored" ;;
      --scale-op) list="divide reciprocal" ;;
      --scale-layout) list="row col" ;;
      --e8m0) list="floor ceil" ;;
      --quant)
        list="mxfp8 mxfp8-e5m2 $(printf '%s ' {fp8,fp8-e5m2,int8}-{tensor,row,block32,block64,block128})" ;;
      help) list="run check bench diff bisect info" ;;
      *)
        [[ $word == -* ]] || return 0 # files: bash's own
        list=$(rmsnorm "$command" --help 2>/dev/null | grep -o -- '--[a-z0-9][a-z0-9-]*' | sort -u) ;;
    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W "$list" -- "$word")
}
complete -o default -F _rmsnorm rmsnorm
