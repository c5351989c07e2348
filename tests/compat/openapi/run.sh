#!/usr/bin/env bash
# Asks the HTTP interface everything that its OpenAPI document allows, and much that it does not: no answer may be a
# 500, and the node must survive. Needs Python 3 with venv; schemathesis is installed into a folder of its own.
# usage: tests/compat/openapi/run.sh        QUOIN_BIN and MAX_EXAMPLES (50) from the environment
set -euo pipefail
cd "$(dirname "$0")/../../.."
export QUOIN_BIN=${QUOIN_BIN:-$PWD/target/release/quoin}
venv=$PWD/target/schemathesis
[ -x "$venv/bin/schemathesis" ] || { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet schemathesis==4.32.5; }
# The event streams are left out: they do not end.
# shellcheck disable=SC2016 # the inner shell expands it
cargo run --quiet -p quoin-testkit --bin with-cluster -- dev sh -c '"$0" run "http://$CLUSTER_HTTP/v1/openapi.json" "$@"' \
    "$venv/bin/schemathesis" --checks not_a_server_error --exclude-path-regex 'events$' --phases examples,coverage,fuzzing \
    --max-examples "${MAX_EXAMPLES:-50}" --seed 1 --warnings off
