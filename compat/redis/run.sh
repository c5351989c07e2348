#!/usr/bin/env bash
# Clients of Redis against a cluster: redis-py and the crate redis do what their users do, redis-benchmark its usual cases.
# usage: run.sh PATH-TO-QUOIN
set -euo pipefail
quoin=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
command -v redis-benchmark >/dev/null && /usr/bin/python3 -c 'import redis' 2>/dev/null ||
    { as_root apt-get -qq update && as_root apt-get -qq install -y redis-tools python3-redis; }
folder=$(mktemp -d)
base=$(/usr/bin/python3 - <<'PY'
import socket
def free(port):
    with socket.socket() as s:
        try: s.bind(("127.0.0.1", port)); return True
        except OSError: return False
print(next(base for base in range(21000, 31000, 50) if all(free(base + offset) for offset in range(30))))
PY
)
"$quoin" --log warn playground --replicas 3 --dir "$folder/data" --port-base "$base" --endpoints-file "$folder/ends.json" >"$folder/log" 2>&1 &
playground=$!
trap 'kill $playground; wait $playground || true; rm -rf "$folder"' EXIT
for _ in $(seq 600); do [ -s "$folder/ends.json" ] && break; sleep 0.1; done
/usr/bin/python3 "$here/clients.py" "$folder/ends.json"
table=$folder/table
{ echo key,value; for key in $(seq 1000); do printf '%d,%08d\n' "$key" "$key"; done; } >"$folder/table.csv"
"$quoin" table build compat --input "$folder/table.csv" --output "$table"
"$quoin" table publish "$table" --activate --endpoints "127.0.0.1:$base"
cargo run --quiet --manifest-path "$here/crate/Cargo.toml" -- "$folder/ends.json"
port=$((base + 3))
# It asks CONFIG GET first, and prints one line for each case.
cases=$(redis-benchmark -p "$port" -t set,get,incr,mset -n 2000 -c 20 -P 8 -d 100 -q --csv)
echo "$cases"
[ "$(echo "$cases" | grep -cE '^"(SET|GET|INCR|MSET)')" = 4 ]
echo "redis clients: all good"
