#!/bin/sh
# test_bisect_demo.sh RMSNORM - the example that is shipped, demo/diff, is solved by the commands that people are shown, and
# docs/diagnosis.md is the catalogue that the command has.
#
# SPDX-License-Identifier: Apache-2.0
set -u
export LC_ALL=C NO_COLOR=1

rmsnorm=$(realpath "${1:?usage: test_bisect_demo.sh RMSNORM}")
cd "$(dirname "$0")/.." || exit 2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failures=0

fail() {
  echo "FAILED: $1" >&2
  sed 's/^/  /' "$dir/out" >&2
  failures=$((failures + 1))
}

# says STATUS WORDS...: what the last command, whose status is given, has to have printed.
says() {
  [ "$1" -eq "$status" ] || fail "exit status $status, expected $1"
  shift
  for words in "$@"; do
    grep -q -e "$words" "$dir/out" || fail "nothing is said of '$words'"
  done
}

fault='columns past 512 never contributed'

demo/diff/solve.sh "$rmsnorm" >"$dir/out" 2>&1
status=$?
says 0 'layers.15.post_attention_layernorm .*AT FAULT' \
  'first norm that differs by itself: layers.15.post_attention_layernorm' "$fault"
[ "$(grep -c -e "$fault" "$dir/out")" -ge 2 ] || fail "not both commands name the fault"

# The commands of the README, as they stand there.
sed -e ':a' -e '/\\$/{N;s/\\\n *//;ta' -e '}' README.md | sed -n 's/^ *build\/rmsnorm \(\(diff\|bisect\) .*demo\/diff.*\)$/\1/p' \
  >"$dir/commands"
while read -r command; do
  eval "\"\$rmsnorm\" $command" >"$dir/out" 2>&1
  status=$?
  says 1 "$fault"
  echo "as the README has it: rmsnorm $command"
done <"$dir/commands"

# The file of the port is what its script makes.
if python3 -c 'import numpy' 2>/dev/null; then
  python3 demo/diff/port.py "$dir/port.safetensors" >"$dir/out" 2>&1 || fail "port.py does not run"
  for norm in layers.0.input_layernorm layers.15.post_attention_layernorm norm; do
    "$rmsnorm" diff "$dir/port.safetensors:$norm.output" "demo/diff/port.safetensors:$norm.output" >"$dir/out" 2>&1
    status=$?
    says 0
  done
fi

# Every explanation has a heading, and every heading an explanation.
"$rmsnorm" diff --list --json >"$dir/list" 2>"$dir/out" || fail "there is no list"
grep -o '"name":"[^"]*"' "$dir/list" | cut -d'"' -f4 | sort >"$dir/names"
sed -n 's/^### //p' docs/diagnosis.md | sort >"$dir/headings"
diff "$dir/names" "$dir/headings" >"$dir/out" || fail "the list of the command (<) is not that of docs/diagnosis.md (>)"
[ -s "$dir/names" ] || fail "the list is empty"
# Each with its four parts, in order, and links that lead somewhere.
awk '/^## /{if(name&&part!=4)print name;name="";part=0} /^### /{if(name&&part!=4)print name;name=$2;part=0}
     /^- \*\*Symptom\.\*\*/{part+=part==0} /^- \*\*Cause\.\*\*/{part+=part==1}
     /^- \*\*Check\.\*\*/{part+=part==2} /^- \*\*Fix\.\*\*/{part+=part==3}
     END{if(name&&part!=4)print name}' docs/diagnosis.md >"$dir/out"
[ ! -s "$dir/out" ] || fail "explanations without symptom, cause, check and fix"
sed -n 's/^###* //p' docs/diagnosis.md | tr 'A-Z ' 'a-z-' | tr -d ',' | sort >"$dir/anchors"
grep -o '](#[^)]*)' docs/diagnosis.md | sed 's/](#\(.*\))/\1/' | sort -u >"$dir/links"
comm -13 "$dir/anchors" "$dir/links" >"$dir/out"
[ ! -s "$dir/out" ] || fail "links that lead nowhere"

[ $failures -eq 0 ] || exit 1
