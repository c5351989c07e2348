"""PostgreSQL under Patroni on Quoin: leaders are killed, and what was acknowledged is still there.

Everything runs on 127.0.0.1, in folders of its own. Only processes that this program has started are killed, and the
PostgreSQL that each Patroni has started, by the id in its data folder.
"""

import contextlib
import glob
import http.client
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time

import psycopg2
import yaml

from ports import free_ports

PATIENCE_S = 180
REPLICAS = 3
# PostgreSQL refuses to run as root.
USER = "postgres" if os.getuid() == 0 else None


def wait(what, condition):
    """Waits until the condition gives something, and returns it. Errors of a network count as nothing."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError, http.client.HTTPException, psycopg2.Error):
            if found := condition():
                print(f"{time.monotonic() - BEGAN:6.1f} s  {what}", flush=True)
                return found
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}"
        time.sleep(0.1)


def ask(port, path, body=None):
    """The JSON of a page, whatever its status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


class Quoin:
    """One replica."""

    def __init__(self, name, folder, cluster, ports):
        self.name, self.folder, self.port = name, folder, ports[0]
        self.arguments = [os.environ["QUOIN_BIN"], "serve", f"--name={name}", "--data-dir=data", f"--cluster={cluster}"]
        self.arguments += ["--store-reserve-bytes=0"]
        self.arguments += [f"--listen-{what}=127.0.0.1:{port}" for what, port in zip(("client", "peer", "http", "resp"), ports)]
        self.process = None

    def start(self):
        with open(os.path.join(self.folder, "out"), "ab") as out:
            self.process = subprocess.Popen(self.arguments, stdout=out, stderr=out, cwd=self.folder)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def leads(self):
        status = ask(self.port, "/v3/maintenance/status", "{}")
        return status["leader"] == status["header"]["member_id"]


class Node:
    """One PostgreSQL with its Patroni."""

    def __init__(self, name, folder, hosts):
        self.name, self.folder = name, folder
        self.port, self.rest = free_ports(2)
        binaries = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
        trusted = ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
        settings = {
            "scope": "quoin",
            "name": name,
            "restapi": {"listen": f"127.0.0.1:{self.rest}", "connect_address": f"127.0.0.1:{self.rest}"},
            "etcd3": {"hosts": hosts, "username": "patroni", "password": "ignored where authentication is off"},
            "bootstrap": {
                "dcs": {
                    "ttl": 20,
                    "loop_wait": 2,
                    "retry_timeout": 3,
                    # An acknowledged write is on both, so that it must survive.
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on"}},
                },
                "initdb": [{"encoding": "UTF8"}],
                "pg_hba": trusted,
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.port}",
                "data_dir": os.path.join(folder, "data"),
                "bin_dir": binaries,
                "pgpass": os.path.join(folder, "pgpass"),
                "pg_hba": trusted,
                "parameters": {"unix_socket_directories": folder, "shared_buffers": "16MB"},
                "authentication": {
                    "superuser": {"username": "postgres", "password": "postgres"},
                    "replication": {"username": "replicator", "password": "replicator"},
                },
            },
        }
        self.settings = os.path.join(folder, "patroni.yml")
        with open(self.settings, "w") as out:
            yaml.safe_dump(settings, out)
        self.process = None

    def start(self):
        with open(os.path.join(self.folder, "out"), "ab") as out:
            self.process = subprocess.Popen(["/usr/bin/patroni", self.settings], stdout=out, stderr=out, cwd=self.folder, user=USER)

    def kill(self):
        """Kills Patroni and then the PostgreSQL that it has started, as a machine that fails."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(os.path.join(self.folder, "data", "postmaster.pid")) as file:
            os.kill(int(file.readline()), signal.SIGKILL)

    def is_leader(self):
        status = ask(self.rest, "/patroni")
        return status["role"] in ("master", "primary") and status["state"] == "running"

    def streams(self):
        """Whether it is the standby on which acknowledged writes are."""
        members = {member["name"]: member for member in ask(self.rest, "/cluster")["members"]}
        return members[self.name]["role"] == "sync_standby" and members[self.name]["state"] in ("running", "streaming")

    @contextlib.contextmanager
    def connected(self):
        connection = psycopg2.connect(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres", connect_timeout=5)
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                yield cursor
        finally:
            connection.close()


class Rows:
    """What was written and acknowledged."""

    def __init__(self):
        self.acknowledged = []
        self.next = 0

    def write(self, node, count):
        """Writes so many rows, one by one."""
        with node.connected() as cursor:
            for _ in range(count):
                number, self.next = self.next, self.next + 1
                cursor.execute("INSERT INTO rows VALUES (%s)", (number,))
                self.acknowledged.append(number)
        return True

    def check(self, node):
        """Every acknowledged row is there."""
        with node.connected() as cursor:
            cursor.execute("SELECT number FROM rows")
            found = {row[0] for row in cursor.fetchall()}
        lost = set(self.acknowledged) - found
        assert not lost, f"{len(lost)} acknowledged rows are lost: {sorted(lost)[:10]}"
        return True


def fail_over(nodes, rows):
    """Kills the leader, and waits until the other one leads and takes writes."""
    leader = wait("a leader", lambda: next((node for node in nodes if node.process.poll() is None and node.is_leader()), None))
    other = next(node for node in nodes if node is not leader)
    wait(f"{other.name} to have all writes", other.streams)
    rows.write(leader, 500)
    leader.kill()
    print(f"{time.monotonic() - BEGAN:6.1f} s  killed {leader.name}, the leader", flush=True)
    wait(f"{other.name} to lead", other.is_leader)
    rows.check(other)
    wait(f"{other.name} to take writes", lambda: rows.write(other, 1))
    leader.start()
    wait(f"{leader.name} to follow", leader.streams)
    rows.write(other, 500)
    return other


def run(replicas, nodes):
    """All of it."""
    for replica in replicas:
        replica.start()
    wait("a leader of Quoin", lambda: [replica for replica in replicas if replica.leads()])
    for node in nodes:
        node.start()
    leader = wait("PostgreSQL to have a leader", lambda: next((node for node in nodes if node.is_leader()), None))
    with leader.connected() as cursor:
        cursor.execute("CREATE TABLE rows (number bigint PRIMARY KEY)")
    rows = Rows()
    fail_over(nodes, rows)
    killed = next(replica for replica in replicas if replica.leads())
    killed.kill()
    print(f"{time.monotonic() - BEGAN:6.1f} s  killed {killed.name}, the leader of Quoin", flush=True)
    leader = fail_over(nodes, rows)
    rows.check(leader)
    killed.start()
    wait("all replicas of Quoin", lambda: all(ask(replica.port, "/health")["health"] == "true" for replica in replicas))
    print(f"Patroni: all good, {len(rows.acknowledged)} acknowledged rows are there")


def main():
    """Makes the nodes, runs the test, and ends what was started."""
    top = tempfile.mkdtemp(prefix="patroni-")
    os.chmod(top, 0o755)

    def folder(name, user=None):
        path = os.path.join(top, name)
        os.mkdir(path, 0o700)
        if user:
            os.chown(path, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        return path

    names = [f"q{number}" for number in range(REPLICAS)]
    ports = [free_ports(4) for _ in names]
    cluster = ",".join(f"{name}=127.0.0.1:{own[1]}" for name, own in zip(names, ports))
    replicas = [Quoin(name, folder(name), cluster, own) for name, own in zip(names, ports)]
    hosts = [f"127.0.0.1:{replica.port}" for replica in replicas]
    nodes = [Node(name, folder(name, USER), hosts) for name in ("pg0", "pg1")]
    for node in nodes:
        os.chmod(node.settings, 0o644)
    good = False
    try:
        run(replicas, nodes)
        good = True
    finally:
        for process in [*nodes, *replicas]:
            if process.process:
                process.kill()
        if good:
            shutil.rmtree(top, ignore_errors=True)
        else:
            print(f"what happened is in {top}")


BEGAN = time.monotonic()

if __name__ == "__main__":
    main()
