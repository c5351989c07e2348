#!/usr/bin/env bash
# Runs an etcd cluster of N members on loopback until it is killed.
# usage: bench/peers/run-etcd.sh N DIR ENDPOINTS_FILE     (needs Go; the first run builds the server)
set -euo pipefail
members=$1 dir=$2 endpoints=$3
here=$(cd "$(dirname "$0")" && pwd)
port_base=${PORT_BASE:-24790}
mkdir -p "$dir"
server=$dir/etcd
[ -x "$server" ] || (cd "$here/etcd" && go build -o "$server" .)
cluster=
for ((m = 1; m <= members; m++)); do
    cluster+="${cluster:+,}m$m=http://127.0.0.1:$((port_base + m * 10 + 1))"
done
pids=() grpc=()
trap 'kill "${pids[@]}" 2>/dev/null; wait' EXIT
trap 'exit 0' TERM INT
for ((m = 1; m <= members; m++)); do
    client=127.0.0.1:$((port_base + m * 10)) peer=http://127.0.0.1:$((port_base + m * 10 + 1))
    "$server" --name "m$m" --data-dir "$dir/m$m" --log-level error \
        --listen-client-urls "http://$client" --advertise-client-urls "http://$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
        --initial-cluster "$cluster" --initial-cluster-state new 2>"$dir/m$m.log" &
    pids+=($!) grpc+=("\"$client\"")
done
join() { local IFS=,; echo "$*"; }
for ((tries = 0; tries < 100; tries++)); do
    ready=0
    for ((m = 1; m <= members; m++)); do
        (exec 3<>"/dev/tcp/127.0.0.1/$((port_base + m * 10))") 2>/dev/null && ready=$((ready + 1))
    done
    [ "$ready" = "$members" ] && break
    sleep 0.1
done
printf '{"grpc":[%s],"http":[],"resp":[],"pids":[%s]}' "$(join "${grpc[@]}")" "$(join "${pids[@]}")" >"$endpoints.new"
mv "$endpoints.new" "$endpoints"
wait
