#!/usr/bin/env bash
# Quoin beside etcd: three replicas each, the same client, interleaved rounds in one run. Prints medians and ratios.
# usage: bench/compare.sh [kv|route] [DIR]        ROUNDS (3) and SECONDS_PER_CASE (5) from the environment; needs Go for etcd
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
quoin=${QUOIN_BIN:-$here/target/release/quoin}
face=${1:-kv}
dir=${2:-$(mktemp -d)}
rounds=${ROUNDS:-3} seconds=${SECONDS_PER_CASE:-5}
mkdir -p "$dir"
server=$dir/etcd-server
[ -x "$server" ] || (cd "$here/bench/peers/etcd" && go build -o "$server" .)
running=
trap '[ -z "$running" ] || { kill "$running" 2>/dev/null || true; wait "$running" 2>/dev/null || true; }' EXIT

start() { # NAME: starts it on an empty folder; the other one must not take the processor meanwhile
    rm -rf "$dir/$1" "$dir/$1.json"
    if [ "$1" = quoin ]; then
        "$quoin" playground --replicas 3 --dir "$dir/quoin" --endpoints-file "$dir/quoin.json" >"$dir/quoin.log" 2>&1 &
    else
        mkdir -p "$dir/etcd-data" && rm -rf "$dir"/etcd-data/m* && cp -f "$server" "$dir/etcd-data/etcd"
        "$here/bench/peers/run-etcd.sh" 3 "$dir/etcd-data" "$dir/etcd.json" >"$dir/etcd.log" 2>&1 &
    fi
    running=$!
    for _ in $(seq 200); do [ -f "$dir/$1.json" ] && break; sleep 0.1; done
    sleep 2
}
stop() { kill "$running"; wait "$running" 2>/dev/null || true; running=; sleep 1; }

measure() { # NAME ROUND CASE CLIENTS CONNECTIONS
    "$quoin" bench kv "$3" --endpoints-file "$dir/$1.json" --clients "$4" --connections "$5" --seconds "$seconds" \
        --warm-up 2 --keys 20000 --value-bytes 1024 --json >"$dir/result-$1-$2-$3-$4.json"
}

route() { # NAME ROUND CASE CLIENTS OPTIONS...: over its own protocol, or the same rules as keys of etcd
    api=etcd
    [ "$1" = etcd ] || api=route
    "$quoin" bench route "$3" --api "$api" --endpoints-file "$dir/$1.json" --seconds "$seconds" --warm-up 2 --json \
        "${@:5}" >"$dir/result-$1-$2-$3-$4.json"
}

route_cases() { # NAME ROUND
    route "$1" "$2" new-watcher 1
    route "$1" "$2" get 50 --no-fill --clients 50 --connections 8
    route "$1" "$2" get-local 50 --no-fill --clients 50 --connections 8
    for watchers in 1 10 100 1000; do
        route "$1" "$2" update "$watchers" --no-fill --watchers "$watchers" --rate 1000 --target all
    done
    route "$1" "$2" put 256 --no-fill --clients 256
    if [ "$1" = quoin ]; then
        route "$1" "$2" get-stream 100 --no-fill --clients 100
        route "$1" "$2" get-stream-local 100 --no-fill --clients 100
        route "$1" "$2" get-stream-local 20 --no-fill --clients 20 --batch 100
        route "$1" "$2" put 16 --no-fill --clients 16 --batch 2000
    else
        route "$1" "$2" put 16 --no-fill --clients 16 --batch 100
    fi
}

kv_cases() { # NAME ROUND
    measure "$1" "$2" put 256 16
    measure "$1" "$2" put 1 1
    measure "$1" "$2" get-linearizable 64 16
    measure "$1" "$2" get-local 64 16
    measure "$1" "$2" delete 64 16
    measure "$1" "$2" mix-existing 64 16
    measure "$1" "$2" mix-absent 64 16
    if [ "$1" = quoin ]; then
        measure "$1" "$2" stream-put 1024 4
        measure "$1" "$2" stream-get 1024 4
    fi
}

for round in $(seq "$rounds"); do
    for name in quoin etcd; do
        start "$name"
        "${face}_cases" "$name" "$round"
        stop
    done
done

python3 - "$dir" <<'PY'
import glob, json, os, statistics, sys
runs = {}
for path in glob.glob(os.path.join(sys.argv[1], "result-*.json")):
    parts = os.path.basename(path)[len("result-"):-len(".json")].split("-")
    name, clients = parts[0], parts[-1]
    case = "-".join(parts[2:-1])
    runs.setdefault((case, int(clients)), {}).setdefault(name, []).append(json.load(open(path))[0])
median = lambda results, field: statistics.median(result[field] for result in results)
print(f"{'case':<18}{'clients':>8} {'quoin /s':>9} {'etcd /s':>9} {'ratio':>6} "
      f"{'CPU us':>7} {'etcd':>7} {'ratio':>6} {'p50 ms':>7} {'etcd':>7} {'p99 ms':>7} {'etcd':>7} {'idle':>5} {'steal':>5}")
for (case, clients), by_name in sorted(runs.items()):
    ours, theirs = by_name["quoin"], by_name.get("etcd")
    rate, cpu = median(ours, "per_second"), median(ours, "server_cpu_us")
    row = f"{case:<18}{clients:>8} {rate:>9.0f} "
    if theirs:
        rate2, cpu2 = median(theirs, "per_second"), median(theirs, "server_cpu_us")
        row += f"{rate2:>9.0f} {rate / rate2:>6.2f} {cpu:>7.1f} {cpu2:>7.1f} {cpu / cpu2:>6.2f} "
    else:
        row += f"{'-':>9} {'-':>6} {cpu:>7.1f} {'-':>7} {'-':>6} "
    for field in ("p50_us", "p99_us"):
        other = f"{median(theirs, field) / 1e3:>7.2f}" if theirs else f"{'-':>7}"
        row += f"{median(ours, field) / 1e3:>7.2f} {other} "
    every = ours + (theirs or [])
    print(row + f"{median(every, 'idle'):>5.0%} {median(every, 'steal'):>5.0%}")
PY
