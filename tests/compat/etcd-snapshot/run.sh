#!/usr/bin/env bash
# Snapshot files from a real etcd to Quoin and back: with Debian's etcd (3.4) and, where there is a Go, with etcd 3.6.
# usage: tests/compat/etcd-snapshot/run.sh        QUOIN_BIN from the environment
set -euo pipefail
cd "$(dirname "$0")/../../.."
export QUOIN_BIN=${QUOIN_BIN:-$PWD/target/release/quoin} PYTHONPATH=tests/compat
here=$PWD/tests/compat/etcd-snapshot
# Unpacked and not installed: a package's service would start on the machine.
folder=$PWD/target/etcd-server
for package in etcd-server etcd-client; do
    case $package in etcd-server) program=etcd ;; *) program=etcdctl ;; esac
    [ -x "$folder/usr/bin/$program" ] && continue
    as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
    mkdir -p "$folder"
    (cd "$folder" && { apt-get -qq download $package || { as_root apt-get -qq update && apt-get -qq download $package; }; })
    dpkg -x "$folder"/${package}_*.deb "$folder"
done
# etcdutl began with 3.5; before, etcdctl did its work.
ETCD_BIN=$folder/usr/bin/etcd ETCDCTL_BIN=$folder/usr/bin/etcdctl ETCDUTL_BIN=$folder/usr/bin/etcdctl python3 "$here/roundtrip.py"
if command -v go >/dev/null; then
    tools=$PWD/target/etcd-3.6
    mkdir -p "$tools"
    (cd "$here/tools" && go build -o "$tools" go.etcd.io/etcd/etcdctl/v3 go.etcd.io/etcd/etcdutl/v3 go.etcd.io/etcd/server/v3)
    ETCD_BIN=$tools/server ETCDCTL_BIN=$tools/etcdctl ETCDUTL_BIN=$tools/etcdutl python3 "$here/roundtrip.py"
else
    echo "etcd 3.6 was NOT tried: there is no Go"
fi
echo "etcd snapshots: all good"
