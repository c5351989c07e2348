#!/usr/bin/env bash
# Patroni keeps a PostgreSQL of two nodes available with three replicas of Quoin in place of etcd: it elects a leader; the leader is
# killed and replaced; a replica of Quoin is killed, and the new leader too. No acknowledged write is lost. Debian's packages; takes
# a minute or two.
# usage: tests/compat/patroni/run.sh        QUOIN_BIN from the environment
set -euo pipefail
cd "$(dirname "$0")/../../.."
export QUOIN_BIN=${QUOIN_BIN:-$PWD/target/release/quoin} PYTHONPATH=tests/compat
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
{ command -v patroni && ls -d /usr/lib/postgresql/*/bin/initdb; } >/dev/null 2>&1 ||
    { as_root apt-get -qq update && as_root apt-get -qq install -y --no-install-recommends patroni postgresql; }
exec /usr/bin/python3 tests/compat/patroni/failover.py
