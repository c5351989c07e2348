#!/usr/bin/env bash
# The cases of Arion master's performance report, against three replicas, with the client that the report used
# (ghz, built through the Go module proxy) and its columns; the last one, a watch, with `quoin bench`, since ghz
# ends a stream by count of requests and not by what arrived.
# usage: bench/arion.sh [REQUESTS]      REQUESTS (200,000): the report has 1,000,000
# Takes RULES (100000), CONNECTIONS (12) and QUOIN_BIN from the environment.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/bench/lib.sh"
quoin=${QUOIN_BIN:-$here/target/release/quoin}
requests=${1:-200000} rules=${RULES:-100000} connections=${CONNECTIONS:-12}
dir=$(mktemp -d)
running=
trap '[ -z "$running" ] || { kill "$running" 2>/dev/null || true; wait "$running" 2>/dev/null || true; }; rm -rf "$dir"' EXIT
ghz=${GHZ_BIN:-$dir/ghz}
[ -x "$ghz" ] || GOBIN=$dir go install github.com/bojand/ghz/cmd/ghz@v0.93.0
"$quoin" playground --replicas 3 --port-base 0 --dir "$dir/cluster" --endpoints-file "$dir/cluster.json" >"$dir/log" 2>&1 &
running=$!
await "$running" "the cluster ($dir/log)" test -f "$dir/cluster.json"
first=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["grpc"][0])' "$dir/cluster.json")
# A replica's address is known a moment after it has started.
leads() { leader=$("$quoin" cluster status --json --endpoints "$first" | python3 -c '
import json, sys
print(next(r["clients"][0].removeprefix("http://") for r in json.load(sys.stdin)["replicas"] if r["role"] == "leader"))'); }
until leads 2>/dev/null; do sleep 0.1; done
case_of() { # NAME METHOD DATA OPTIONS...
    local idle steal all idle2 steal2 all2
    read -r idle steal all < <(machine)
    "$ghz" --insecure --connections "$connections" --call "quoin.route.v1.Route/$2" -d "$3" -O json "${@:4}" "$leader" >"$dir/result.json"
    read -r idle2 steal2 all2 < <(machine)
    python3 - "$1" "$dir/result.json" $(((idle2 - idle) * 100 / (all2 - all))) $(((steal2 - steal) * 100 / (all2 - all))) <<'PY'
import json, sys
name, file, idle, steal = sys.argv[1:]
run = json.load(open(file))
ms = lambda ns: f"{ns / 1e6:.2f}"
at = {place["percentage"]: ms(place["latency"]) for place in run["latencyDistribution"]}
print(f"{name}: count {run['count']}, total {run['total'] / 1e9:.2f} s, slowest {ms(run['slowest'])}, fastest {ms(run['fastest'])}, "
      f"average {ms(run['average'])} ms, {run['rps']:.0f} requests/s; "
      + ", ".join(f"{percent} % in {at[percent]}" for percent in (10, 25, 50, 75, 90, 95, 99) if percent in at)
      + f" ms; {run['statusCodeDistribution']}; idle {idle}%, steal {steal}%")
PY
}
# Writes first: they make the rules.
# ghz counts requests from 0; an address of IPv6 takes the number in hexadecimal.
ip='{{$n := printf `%08x` .RequestNumber}}fd00::{{slice $n 0 4}}:{{slice $n 4 8}}'
case_of "unary write" Put "{\"rules\":[{\"vni\":1,\"ip\":\"$ip\",\"mac\":\"02:00:00:00:00:01\",\"host_ip\":\"192.168.0.1\",\"group\":\"g\"}]}" -n "$requests" -c 36
"$quoin" bench route new-watcher --rules "$rules" --endpoints-file "$dir/cluster.json" --clients 1 --seconds 5
case_of "unary read" Get "{\"lookups\":[{\"request_id\":1,\"vni\":1,\"ip\":\"fd00::1\"}]}" -n "$requests" -c 12
case_of "100 streams of 1,000 reads" GetStream "{\"lookups\":[{\"request_id\":1,\"vni\":1,\"ip\":\"fd00::1\"}]}" -n 100 -c 30 --stream-call-count 1000
