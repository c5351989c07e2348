#!/usr/bin/env bash
# Runs an etcd cluster of N members on loopback until it is killed.
# usage: bench/peers/run-etcd.sh N DIR ENDPOINTS_FILE     (needs Go; the first run builds the server)
set -euo pipefail
members=$1 dir=$2 endpoints=$3
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib.sh"
port_base=$(free_ports $((members * 2)))
mkdir -p "$dir"
server=$dir/etcd
[ -x "$server" ] || (cd "$here/etcd" && go build -o "$server" .)
cluster=
for ((m = 1; m <= members; m++)); do
    cluster+="${cluster:+,}m$m=http://127.0.0.1:$((port_base + m * 2 - 1))"
done
pids=() grpc=()
trap 'kill "${pids[@]}" 2>/dev/null; wait' EXIT
trap 'exit 0' TERM INT
for ((m = 1; m <= members; m++)); do
    client=127.0.0.1:$((port_base + m * 2 - 2)) peer=http://127.0.0.1:$((port_base + m * 2 - 1))
    "$server" --name "m$m" --data-dir "$dir/m$m" --log-level error \
        --listen-client-urls "http://$client" --advertise-client-urls "http://$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
        --initial-cluster "$cluster" --initial-cluster-state new 2>"$dir/m$m.log" &
    pids+=($!) grpc+=("\"$client\"")
done
join() { local IFS=,; echo "$*"; }
# A member is healthy once it knows a leader.
for ((m = 1; m <= members; m++)); do
    await "${pids[m - 1]}" "m$m ($dir/m$m.log)" says $((port_base + m * 2 - 2)) \
        'GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' '"health":"true"'
done
printf '{"grpc":[%s],"http":[],"resp":[],"pids":[%s]}' "$(join "${grpc[@]}")" "$(join "${pids[@]}")" >"$endpoints.new"
mv "$endpoints.new" "$endpoints"
wait
