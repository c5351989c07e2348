#!/usr/bin/env bash
# Asks a real etcd and Quoin the same over HTTP/1 and compares the answers field by field; then etcd3gw, a client written for
# etcd's JSON gateway, does on Quoin what its users do.
# usage: tests/compat/etcd-gateway/run.sh        QUOIN_BIN and ETCD_BIN (Debian's etcd-server) from the environment
set -euo pipefail
cd "$(dirname "$0")/../../.."
export QUOIN_BIN=${QUOIN_BIN:-$PWD/target/release/quoin} PYTHONPATH=tests/compat
here=tests/compat/etcd-gateway
if [ -z "${ETCD_BIN:-}" ]; then
    # Unpacked and not installed: a package's service would start on the machine.
    folder=$PWD/target/etcd-server
    if [ ! -x "$folder/usr/bin/etcd" ]; then
        as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
        mkdir -p "$folder"
        (cd "$folder" && { apt-get -qq download etcd-server || { as_root apt-get -qq update && apt-get -qq download etcd-server; }; })
        dpkg -x "$folder"/etcd-server_*.deb "$folder"
    fi
    export ETCD_BIN=$folder/usr/bin/etcd
fi
venv=$PWD/target/etcd3gw
[ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import etcd3gw' 2>/dev/null ||
    { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet etcd3gw==2.7.0; }
"$venv/bin/python" "$here/compare.py"
"$venv/bin/python" "$here/client.py"
echo "etcd gateway: all good"
