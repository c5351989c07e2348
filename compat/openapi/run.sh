#!/usr/bin/env bash
# Asks the ledger's HTTP interface everything that its OpenAPI document allows, and much that it does not: no answer may
# be a 500. Needs Python 3 with venv; schemathesis is installed into a folder of its own.
# usage: compat/openapi/run.sh        QUOIN_BIN and MAX_EXAMPLES (50) from the environment
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
quoin=${QUOIN_BIN:-$here/target/release/quoin}
venv=$here/target/schemathesis
[ -x "$venv/bin/schemathesis" ] || { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet schemathesis==4.32.5; }
folder=$(mktemp -d)
node=
trap '[ -z "$node" ] || { kill "$node" 2>/dev/null || true; wait "$node" 2>/dev/null || true; }; rm -rf "$folder"' EXIT
port=$(python3 - <<'PY'
import socket
def free(port):
    with socket.socket() as s:
        try: s.bind(("127.0.0.1", port)); return True
        except OSError: return False
print(next(base for base in range(25000, 32000, 10) if all(free(base + offset) for offset in range(4))))
PY
)
"$quoin" dev --data-dir "$folder/data" --listen-client "127.0.0.1:$port" --listen-peer "127.0.0.1:$((port + 1))" \
    --listen-http "127.0.0.1:$((port + 2))" --listen-resp "127.0.0.1:$((port + 3))" >"$folder/log" 2>&1 &
node=$!
url=http://127.0.0.1:$((port + 2))
for _ in $(seq 300); do curl -fs "$url/readyz" >/dev/null && break; sleep 0.1; done
# The event stream does not end, so it is not asked; the other pages are.
"$venv/bin/schemathesis" run "$url/v1/openapi.json" --checks not_a_server_error --exclude-path /v1/events \
    --phases examples,coverage,fuzzing --max-examples "${MAX_EXAMPLES:-50}" --seed 1 --warnings off
kill -0 "$node" || { echo "the node has died:"; tail -20 "$folder/log"; exit 1; }
curl -fs "$url/livez"
