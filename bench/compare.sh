#!/usr/bin/env bash
# Compares Quoin with what it replaces: the same client, interleaved rounds in one run. Prints medians and
# ratios to the peer.
#   kv, route    three replicas beside three etcd members (needs Go to build etcd)
#   resp, table  one replica and three replicas beside Redis (needs redis-server)
# usage: bench/compare.sh [kv|route|resp|table] [DIR]
# Takes ROUNDS (3) and SECONDS_PER_CASE (5) from the environment.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/bench/lib.sh"
quoin=${QUOIN_BIN:-$here/target/release/quoin}
face=${1:-kv}
dir=${2:-$(mktemp -d)}
rounds=${ROUNDS:-3} seconds=${SECONDS_PER_CASE:-5}
mkdir -p "$dir" && rm -f "$dir"/result-*.json
server=$dir/etcd-server redis_port=
case $face in
kv | route)
    names=(quoin etcd)
    [ -x "$server" ] || (cd "$here/bench/peers/etcd" && go build -o "$server" .)
    ;;
resp | table)
    names=(quoin quoin3 redis)
    command -v redis-server >/dev/null || { echo "redis-server is not installed: apt-get install redis-server" >&2; exit 1; }
    ;;
*) echo "there is no comparison $face: choose kv, route, resp or table" >&2; exit 1 ;;
esac
running=
trap '[ -z "$running" ] || { kill "$running" 2>/dev/null || true; wait "$running" 2>/dev/null || true; }' EXIT

start() { # NAME: starts it on an empty folder; nothing else runs meanwhile
    rm -rf "$dir/$1" "$dir/$1.json"
    local replicas=3
    [ "$1" != quoin ] || [ "${names[1]}" = etcd ] || replicas=1
    case $1 in
    quoin | quoin3)
        "$quoin" playground --replicas "$replicas" --port-base 0 --dir "$dir/$1" --endpoints-file "$dir/$1.json" >"$dir/$1.log" 2>&1 &
        ;;
    redis)
        mkdir -p "$dir/redis"
        redis_port=$(free_ports 1)
        redis-server --bind 127.0.0.1 --port "$redis_port" --dir "$dir/redis" --save "" --appendonly yes \
            --appendfsync always >"$dir/redis.log" 2>&1 &
        ;;
    etcd)
        mkdir -p "$dir/etcd-data" && rm -rf "$dir"/etcd-data/m* && cp -f "$server" "$dir/etcd-data/etcd"
        "$here/bench/peers/run-etcd.sh" 3 "$dir/etcd-data" "$dir/etcd.json" >"$dir/etcd.log" 2>&1 &
        ;;
    esac
    running=$!
    # The endpoints file is written when every replica is ready.
    case $1 in
    redis) await "$running" redis says "$redis_port" 'PING\r\nQUIT\r\n' PONG ;;
    *) await "$running" "$1 ($dir/$1.log)" test -f "$dir/$1.json" ;;
    esac
}
stop() { kill "$running"; wait "$running" 2>/dev/null || true; running=; }

whom() { # NAME: its addresses, as options
    if [ "$1" = redis ]; then
        echo "--endpoints 127.0.0.1:$redis_port --server-pids $running"
    else
        echo "--endpoints-file $dir/$1.json"
    fi
}

resp() { # NAME ROUND CASE PIPELINE OPTIONS...
    # shellcheck disable=SC2046 # several words
    "$quoin" bench resp "$3" $(whom "$1") --clients 50 --pipeline "$4" --keys 20000 --seconds "$seconds" --warm-up 1 --json \
        "${@:5}" >"$dir/result-$1-$2-$3-$4.json"
}

resp_cases() { # NAME ROUND
    for pipeline in 1 16; do
        resp "$1" "$2" set "$pipeline"
        resp "$1" "$2" get "$pipeline"
        [ "$1" = redis ] || resp "$1" "$2" get-local "$pipeline"
    done
}

table() { # NAME ROUND API BATCH CLIENTS PIPELINE OPTIONS...: looks up BATCH of a million keys at a time
    local case=batch
    [ "$4" != 1 ] || case=single
    # shellcheck disable=SC2046 # several words
    "$quoin" bench table "$case" --api "$3" --batch "$4" $(whom "$1") --clients "$5" --pipeline "$6" --seconds "$seconds" \
        --warm-up 1 --json "${@:7}" >"$dir/result-$1-$2-$3.$4.p$6-$5.json"
}

table_cases() { # NAME ROUND: Redis answers MGET or GET, and is compared with both of our commands
    local api apis=(lookup mget) fill=(--fill "$dir/sample")
    [ "$1" != redis ] || apis=(redis)
    for api in "${apis[@]}"; do
        for batch in 1 100 1000; do
            for pipeline in 1 16; do
                table "$1" "$2" "$api" "$batch" 50 "$pipeline" "${fill[@]}"
                fill=()
            done
        done
        # Open loop: half a million keys a second.
        table "$1" "$2" "$api" 100 51 1 --rate 5000
    done
}

measure() { # NAME ROUND CASE CLIENTS CONNECTIONS
    "$quoin" bench kv "$3" --endpoints-file "$dir/$1.json" --clients "$4" --connections "$5" --seconds "$seconds" \
        --warm-up 2 --keys 20000 --value-bytes 1024 --json >"$dir/result-$1-$2-$3-$4.json"
}

route() { # NAME ROUND CASE CLIENTS OPTIONS...: over quoin.route.v1, or with the same rules as keys in etcd
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
    for name in "${names[@]}"; do
        start "$name"
        "${face}_cases" "$name" "$round"
        stop
    done
done

python3 - "$dir" "${names[@]}" <<'PY'
import glob, json, os, re, statistics, sys
folder, *names = sys.argv[1:]
peer = names[-1]
runs = {}
for path in glob.glob(os.path.join(folder, "result-*.json")):
    parts = os.path.basename(path)[len("result-"):-len(".json")].split("-")
    name, case, last = parts[0], "-".join(parts[2:-1]), int(parts[-1])
    runs.setdefault((case, last), {}).setdefault(name, []).append(json.load(open(path))[0])
median = lambda results, field: statistics.median(result[field] for result in results)

def peer_of(case, last):
    """The peer's runs of a case. For tables, both of our commands compare with the peer's only one."""
    return runs.get((re.sub(r"^(lookup|mget)\.", "redis.", case), last), {}).get(peer)

print(f"{'case':<22}{'of':>5} {'who':<7} {'/s':>9} {'ratio':>6} {'server us':>9} {'ratio':>6} {'client us':>9} "
      f"{'p50 ms':>7} {'p99 ms':>7} {'idle':>5} {'steal':>5}")
for (case, last), by_name in sorted(runs.items()):
    theirs = peer_of(case, last)
    for name in sorted(by_name, key=names.index):
        ours = by_name[name]
        ratio = lambda field: f"{median(ours, field) / median(theirs, field):.2f}" if theirs else "-"
        print(f"{case:<22}{last:>5} {name:<7} {median(ours, 'per_second'):>9.0f} {ratio('per_second'):>6} "
              f"{median(ours, 'server_cpu_us'):>9.2f} {ratio('server_cpu_us'):>6} {median(ours, 'client_cpu_us'):>9.2f} "
              f"{median(ours, 'p50_us') / 1e3:>7.2f} {median(ours, 'p99_us') / 1e3:>7.2f} "
              f"{median(ours, 'idle'):>5.0%} {median(ours, 'steal'):>5.0%}")
errors = sum(run["errors"] for by_name in runs.values() for results in by_name.values() for run in results)
print(f"{errors} errors. 'of': clients; for resp, requests per pipeline. A table's case is api.keys.pipeline; "
      "with 51 clients it is open loop")
PY
