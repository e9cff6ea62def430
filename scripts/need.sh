#!/bin/sh
# need.sh - make sure that tools are there before a build starts.
#
#   scripts/need.sh PACKAGE=PROBE ...
#
# PROBE is a command to look for, or a file when it begins with /. What is missing is installed with apt as root or
# through a sudo that asks no password; otherwise the line to run is printed and the build stops here.
# SPDX-License-Identifier: Apache-2.0
set -eu

missing=
for pair in "$@"; do
  package=${pair%%=*}
  probe=${pair#*=}
  case $probe in
    /*) [ -e "$probe" ] && continue ;;
    *) command -v "$probe" >/dev/null 2>&1 && continue ;;
  esac
  missing="$missing $package"
done
[ -n "$missing" ] || exit 0

# The names are separate words on purpose.
# shellcheck disable=SC2086
if command -v apt-get >/dev/null 2>&1; then
  if [ "$(id -u)" = 0 ]; then
    sudo=
  elif sudo -n true 2>/dev/null; then
    sudo=sudo
  else
    echo "Missing:$missing. Install with: sudo apt-get install -y$missing" >&2
    exit 1
  fi
  echo "Installing what is missing:$missing"
  $sudo apt-get update -q >/dev/null
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q --no-install-recommends $missing >/dev/null
else
  echo "Missing:$missing (names of Debian packages). Install them with this system's package manager." >&2
  exit 1
fi
