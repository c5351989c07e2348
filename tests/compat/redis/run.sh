#!/usr/bin/env bash
# Clients of Redis against a cluster of three replicas: redis-py, libraries of limits, locks, caches and sessions (Python, Node.js) and the crate redis do
# what their users do, redis-benchmark runs its usual cases, and random commands are answered as a redis-server answers them.
# usage: tests/compat/redis/run.sh        QUOIN_BIN, DIFFERENTIAL_COMMANDS (20000) and DIFFERENTIAL_SEED (1) from the environment
set -euo pipefail
cd "$(dirname "$0")/../../.."
export QUOIN_BIN=${QUOIN_BIN:-$PWD/target/release/quoin}
here=tests/compat/redis
if [ -z "${CLUSTER_RESP:-}" ]; then
    as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
    command -v redis-server >/dev/null && command -v redis-benchmark >/dev/null && /usr/bin/python3 -c 'import redis' 2>/dev/null ||
        { as_root apt-get -qq update && as_root apt-get -qq install -y redis-tools redis-server python3-redis; }
    # Runs this script again, beside a cluster.
    exec cargo run --quiet -p quoin-testkit --bin with-cluster -- 3 "$here/run.sh"
fi
# shellcheck disable=SC2086 # several addresses
/usr/bin/python3 "$here/clients.py" $CLUSTER_RESP
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Their redis-py is newer than Debian's, and has a folder of its own.
python3 -m pip install --quiet --disable-pip-version-check --target "$folder/python" limits==5.8.0 pottery==3.0.1 redis==8.1.0 \
    django==5.2.19 flask==3.1.3 flask-session==0.8.0
# shellcheck disable=SC2086 # several addresses
PYTHONPATH="$folder/python" python3 "$here/limiters.py" $CLUSTER_RESP
# shellcheck disable=SC2086 # several addresses
PYTHONPATH="$folder/python" python3 "$here/sessions.py" $CLUSTER_RESP
npm install --silent --no-audit --no-fund --no-package-lock --ignore-scripts --prefix "$folder/node" \
    connect-redis@10.0.0 express@5.3.0 express-session@1.19.0 ioredis@6.0.0 rate-limiter-flexible@11.4.0 redis@6.3.1
cp "$here/sessions.mjs" "$folder/node/"
# shellcheck disable=SC2086 # several addresses
node "$folder/node/sessions.mjs" $CLUSTER_RESP
{ echo key,value; for key in $(seq 1000); do printf '%d,%08d\n' "$key" "$key"; done; } >"$folder/table.csv"
"$QUOIN_BIN" table build compat --input "$folder/table.csv" --output "$folder/table"
"$QUOIN_BIN" table publish "$folder/table" --activate
# shellcheck disable=SC2086 # several addresses
cargo run --quiet --manifest-path "$here/crate/Cargo.toml" -- $CLUSTER_RESP
first=${CLUSTER_RESP%% *}
# It asks CONFIG GET first, and prints one line per case.
cases=$(redis-benchmark -p "${first##*:}" -t set,get,incr,mset -n 2000 -c 20 -P 8 -d 100 -q --csv)
echo "$cases"
[ "$(echo "$cases" | grep -cE '^"(SET|GET|INCR|MSET)')" = 4 ]
# shellcheck disable=SC2086 # several addresses
/usr/bin/python3 "$here/differential.py" "${CLUSTER_RESP%% *}" --commands "${DIFFERENTIAL_COMMANDS:-20000}" \
    --seed "${DIFFERENTIAL_SEED:-1}"
echo "redis clients: all good"
