#!/usr/bin/env bash
# Measures the ledger's transfer in PostgreSQL 15: one SQL function under pgbench, synchronous_commit on, one
# server, no replica. All data is in a temporary folder, and the server listens on 127.0.0.1 only.
# usage: bench/peers/postgres/run.sh
# Takes SECONDS_PER_CASE (10) and CLIENTS (100) from the environment. Needs Debian's postgresql-15.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../lib.sh"
bin=${PG_BIN:-/usr/lib/postgresql/15/bin}
[ -x "$bin/initdb" ] || { echo "no PostgreSQL 15 in $bin: apt-get install postgresql-15, or set PG_BIN" >&2; exit 1; }
seconds=${SECONDS_PER_CASE:-10} clients=${CLIENTS:-100} port=$(free_ports 1)
folder=$(mktemp -d)
# PostgreSQL does not run as root.
as_user() { if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi; }
[ "$(id -u)" != 0 ] || chown postgres "$folder"
chmod 755 "$folder"
trap 'as_user "$bin/pg_ctl" -D "$folder/data" -m fast stop >/dev/null 2>&1 || true; rm -rf "$folder"' EXIT
cd "$folder"
as_user "$bin/initdb" -D "$folder/data" -U bench --auth=trust >/dev/null
as_user tee -a "$folder/data/postgresql.conf" >/dev/null <<CONF
listen_addresses = '127.0.0.1'
port = $port
unix_socket_directories = '$folder'
max_connections = 300
shared_buffers = 1GB
synchronous_commit = on
wal_level = replica
max_wal_size = 4GB
CONF
as_user "$bin/pg_ctl" -D "$folder/data" -w -l "$folder/log" start >/dev/null
sql() { "$bin/psql" -qX -h 127.0.0.1 -p "$port" -U bench -d postgres -v ON_ERROR_STOP=1 "$@"; }
sql -f "$here/schema.sql"
sql -c 'vacuum analyze'
for case in transfer hot; do
    echo "== $case, $clients clients"
    "$bin/pgbench" -h 127.0.0.1 -p "$port" -U bench -n -M extended -c "$clients" -j 2 -T "$seconds" \
        -f "$here/$case.sql" postgres 2>"$folder/pgbench.err" | grep -E 'tps|latency average|actually' || { head -3 "$folder/pgbench.err" >&2; exit 1; }
done
sql -At -c "select 'sum over all accounts (must be 0)', sum(debits) - (sum(credits) - 10000 * 1000000000000::bigint) from accounts"
