#!/usr/bin/env bash
# How long `quoin route agent --apply-linux` takes to write rules into Linux's tables, beside `ip -batch` and
# `bridge -batch` with the same entries, which is what the kernel takes: interleaved rounds, each on a new device
# in a network namespace of its own. Then what a comparison takes that finds no difference. Needs root.
# usage: bench/tables.sh [RULES]
# Takes ROUNDS (3) and QUOIN_BIN from the environment.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/bench/lib.sh"
[ -n "${IN_NAMESPACE:-}" ] || exec env IN_NAMESPACE=1 unshare --net "$0" "$@"
quoin=${QUOIN_BIN:-$here/target/release/quoin}
rules=${1:-100000} rounds=${ROUNDS:-3}
dir=$(mktemp -d)
processes=()
trap 'for process in "${processes[@]}"; do kill "$process" 2>/dev/null || true; done; wait; rm -rf "$dir"' EXIT

device() { # makes vxlan1 anew
    ip link del vxlan1 2>/dev/null || true
    ip link add vxlan1 type vxlan id 1 local 127.0.0.1 dstport 4789 nolearning
    ip link set vxlan1 up
}
ms() { echo $(($(date +%s%N) / 1000000)); }
metric() { curl -s 127.0.0.1:9000/metrics | awk -v name="quoin_agent_$1" '$1 == name {print $2}'; }
until_said() { # COUNT TEXT: waits until the agent has said TEXT so often
    while [ "$(grep -c "$2" "$dir/agent.log" || true)" -lt "$1" ]; do sleep 0.1; done
}

ip link set lo up
awk -v n="$rules" -v dir="$dir" 'BEGIN {
    print "vni,ip,mac,host_ip,group" > (dir "/rules.csv")
    for (i = 0; i < n; i++) {
        ip = sprintf("10.%d.%d.%d", i / 65536, i / 256 % 256, i % 256)
        mac = sprintf("02:00:00:%02x:%02x:%02x", i / 65536, i / 256 % 256, i % 256)
        host = sprintf("192.168.%d.%d", i % 4, i % 250 + 1)
        print "1," ip "," mac "," host ",g" > (dir "/rules.csv")
        print "neigh replace " ip " lladdr " mac " dev vxlan1 nud permanent protocol 81" > (dir "/ip")
        print "fdb replace " mac " dev vxlan1 dst " host " self permanent extern_learn" > (dir "/bridge")
    }
}'
"$quoin" --log warn dev --data-dir "$dir/node" >/dev/null 2>&1 &
processes+=($!)
until "$quoin" route list --group none >/dev/null 2>&1; do sleep 0.1; done
"$quoin" route load "$dir/rules.csv" >/dev/null
"$quoin" route agent --group g --dir "$dir/copy" --apply-linux --resync 5 --listen-http 127.0.0.1:9000 2>"$dir/agent.log" &
processes+=($!)
until_said 1 "without_device=$rules"

for round in $(seq "$rounds"); do
    read -r idle steal all < <(machine)
    device
    until_said "$round" "why=Links"
    agent=$(grep "why=Links" "$dir/agent.log" | tail -1 | grep -o ' ms=[0-9]*' | cut -d= -f2)
    entries=$(($(ip neigh show dev vxlan1 nud permanent | wc -l) + $(bridge fdb show dev vxlan1 | grep -c dst)))
    read -r idle2 steal2 all2 < <(machine)
    # The agent must not write to the other's device.
    kill -STOP "${processes[1]}"
    device
    begin=$(ms)
    ip -batch "$dir/ip"
    middle=$(ms)
    bridge -batch "$dir/bridge"
    end=$(ms)
    ip link del vxlan1
    kill -CONT "${processes[1]}"
    echo "round $round: agent $agent ms for $entries entries; ip -batch $((middle - begin)) ms, bridge -batch $((end - middle)) ms;" \
        "ratio $(awk -v a="$agent" -v b=$((end - begin)) 'BEGIN{printf "%.2f", b / a}');" \
        "idle $(((idle2 - idle) * 100 / (all2 - all)))%, steal $(((steal2 - steal) * 100 / (all2 - all)))%"
done
device
until_said "$((rounds + 1))" "why=Links"
for round in $(seq "$rounds"); do
    done=$(metric comparisons_total)
    until [ "$(metric comparisons_total)" -gt "$done" ]; do sleep 0.1; done
    echo "a comparison without differences: $(metric last_comparison_seconds) s"
done
grep VmRSS "/proc/${processes[1]}/status"
