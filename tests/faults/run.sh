#!/usr/bin/env bash
# Real nodes under load while things go wrong: see README.md.
# usage: tests/faults/run.sh --check      says what is missing to run it, if anything is
#        tests/faults/run.sh [--minutes M] [--runs N] [--nodes 3|5] [--faults a,b] [--seed N] [--json]      QUOIN_BIN from the environment;
# KEEP=1 keeps the folder of a run in which all was well, too
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "${1:-}" = --check ]; then
  missing() { echo "$1" >&2; exit 1; }
  [ "$(id -u)" = 0 ] || missing "it needs root"
  for tool in cc go unshare losetup mkfs.ext4; do command -v $tool >/dev/null || missing "$tool is not installed"; done
  [ -c /dev/net/tun ] || missing "there is no /dev/net/tun"
  unshare --net --mount --pid --fork --mount-proc true || missing "namespaces are not permitted here"
  losetup --find >/dev/null || missing "there are no loop devices"
  exit 0
fi
QUOIN_BIN=$(realpath "${QUOIN_BIN:-target/release/quoin}")
export QUOIN_BIN
folder=$(mktemp -d "${TMPDIR:-/tmp}/quoin-faults.XXXXXX")
cc -O2 -Wall -Wextra -Werror -shared -fPIC -o "$folder/shim.so" tests/faults/shim/shim.c -ldl
(cd tests/faults && go build -o "$folder/faults" .)
# Networks, mounts and processes of its own: nothing of them is left, however it ends.
status=0
unshare --net --mount --pid --fork --kill-child --mount-proc "$folder/faults" --shim "$folder/shim.so" --folder "$folder" "$@" || status=$?
if [ "$status" = 0 ] && [ -z "${KEEP:-}" ]; then rm -rf "$folder"; fi
exit "$status"
