#!/usr/bin/env bash
# Compares the ledger with PostgreSQL 15: `quoin bench ledger` on one and three replicas, then the same transfer
# in PostgreSQL.
# usage: bench/ledger.sh [DIR]
# Takes SECONDS_PER_CASE (8) from the environment. Needs Debian's postgresql-15.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/bench/lib.sh"
quoin=${QUOIN_BIN:-$here/target/release/quoin}
dir=${1:-$(mktemp -d)}
seconds=${SECONDS_PER_CASE:-8}
mkdir -p "$dir"
running=
trap '[ -z "$running" ] || { kill "$running" 2>/dev/null || true; wait "$running" 2>/dev/null || true; }' EXIT
start() { # REPLICAS
    rm -rf "$dir/data" "$dir/endpoints.json"
    "$quoin" playground --replicas "$1" --dir "$dir/data" --port-base 0 --endpoints-file "$dir/endpoints.json" >"$dir/log" 2>&1 &
    running=$!
    # The endpoints file is written when every replica is ready.
    await "$running" "the cluster ($dir/log)" test -f "$dir/endpoints.json"
}
stop() { kill "$running"; wait "$running" 2>/dev/null || true; running=; }
measure() { # CASE CLIENTS CONNECTIONS [MORE]
    "$quoin" bench ledger "$1" --endpoints-file "$dir/endpoints.json" --clients "$2" --connections "$3" --seconds "$seconds" \
        --warm-up 2 "${@:4}" | tail -n +"$line"
    line=2
}
for replicas in 1 3; do
    echo "== $replicas replica(s)"
    line=1
    # Each case runs on fresh replicas, so that no case affects the next one's figures.
    start "$replicas"; measure batch 4 4; stop
    start "$replicas"; echo "all transfers touch one account:"; measure batch 4 4 --hot; stop
    start "$replicas"; echo "ids in random order:"; measure batch 4 4 --random-ids; stop
    start "$replicas"; measure stream 2 2; stop
    start "$replicas"; measure single 32 8; stop
    start "$replicas"; for case in http-sync http-async http-journey-sync http-journey-async; do measure "$case" 100 4; done; stop
done
echo "== PostgreSQL 15, one server"
SECONDS_PER_CASE=$seconds "$here/bench/peers/postgres/run.sh"
