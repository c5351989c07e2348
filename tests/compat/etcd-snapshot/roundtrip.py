"""Keys, leases and history go from a real etcd to Quoin and from Quoin to a real etcd in etcd's own snapshot files.

Both are asked the same afterwards: all keys at every revision, the changes that a watch tells, and leases with their keys.
"""

import json
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode

from ports import free_ports

QUOIN, ETCD, ETCDCTL, ETCDUTL = (os.environ[name] for name in ("QUOIN_BIN", "ETCD_BIN", "ETCDCTL_BIN", "ETCDUTL_BIN"))
ALL = {"key": b64encode(b"\0").decode(), "range_end": b64encode(b"\0").decode()}
KEYS = 3000


def b64(text):
    """Text as the gateway's JSON has bytes."""
    return b64encode(text.encode()).decode()


def run(*command, fails=False):
    """What a command says; it must succeed, or must not."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env={**os.environ, "ETCDCTL_API": "3"})
    said = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, f"{command}: {said}"
    return said


class Server:
    """A server of one member, and its client port."""

    def __init__(self, folder):
        self.folder, self.process = folder, None
        self.client, self.peer, *self.others = free_ports(4)

    def __enter__(self):
        log = open(f"{self.folder}.log", "a", encoding="utf-8")
        self.process = subprocess.Popen(self.command(), stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.ask("/v3/kv/range", {"key": b64("k")})
                return self
            except (OSError, urllib.error.HTTPError) as error:
                assert self.process.poll() is None, open(f"{self.folder}.log", encoding="utf-8").read()
                assert time.monotonic() < deadline, error
                time.sleep(0.05)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def ask(self, path, body):
        """The answer of the JSON gateway."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.client}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def save(self, file):
        """A snapshot, taken by etcdctl."""
        run(ETCDCTL, "--endpoints", f"127.0.0.1:{self.client}", "snapshot", "save", file)

    def revision(self):
        return int(self.ask("/v3/kv/range", {"key": b64("none")})["header"]["revision"])

    def content(self, compacted):
        """Everything that can be asked of keys and leases."""
        newest = self.revision()
        keys = {at: self.ask("/v3/kv/range", {**ALL, "revision": at}).get("kvs", [])
                for at in range(max(compacted, 1), newest + 1, 1 + (newest - compacted) // 60)}
        keys[newest] = self.ask("/v3/kv/range", ALL).get("kvs", [])
        ids = sorted(lease["ID"] for lease in self.ask("/v3/lease/leases", {}).get("leases", []))
        leases = {}
        for lease in ids:
            found = self.ask("/v3/lease/timetolive", {"ID": lease, "keys": True})
            assert int(found["TTL"]) > 0, found
            leases[lease] = (found["grantedTTL"], sorted(found.get("keys", [])))
        return newest, keys, leases, self.changes(compacted + 1, newest)

    def changes(self, first, last):
        """What a watch tells of these revisions."""
        create = {"create_request": {**ALL, "start_revision": first}}
        request = urllib.request.Request(f"http://127.0.0.1:{self.client}/v3/watch", json.dumps(create).encode())
        events = []
        with urllib.request.urlopen(request, timeout=60) as answer:
            for line in answer:
                result = json.loads(line)["result"]
                assert "compact_revision" not in result, result
                events += result.get("events", [])
                if events and int(events[-1]["kv"]["mod_revision"]) >= last:
                    return events


class Etcd(Server):
    def command(self):
        return [ETCD, "--name", "e", "--data-dir", self.folder, "--listen-client-urls", f"http://127.0.0.1:{self.client}",
                "--advertise-client-urls", f"http://127.0.0.1:{self.client}", "--listen-peer-urls", f"http://127.0.0.1:{self.peer}",
                *self.founding()]

    def founding(self):
        url = f"http://127.0.0.1:{self.peer}"
        return ["--initial-advertise-peer-urls", url, "--initial-cluster", f"e={url}"]

    def restore(self, file, *flags):
        """A data folder from a snapshot file."""
        return run(ETCDUTL, "snapshot", "restore", file, "--name", "e", "--data-dir", self.folder, *self.founding(), *flags)


class Quoin(Server):
    def settings(self):
        return ["--name", "q", "--data-dir", self.folder, "--cluster", f"q=127.0.0.1:{self.peer}", "--cluster-token", "test",
                "--listen-client", f"127.0.0.1:{self.client}", "--listen-peer", f"127.0.0.1:{self.peer}",
                "--listen-http", f"127.0.0.1:{self.others[0]}", "--listen-resp", f"127.0.0.1:{self.others[1]}"]

    def command(self):
        return [QUOIN, "serve", *self.settings()]

    def restore(self, file, *flags, fails=False):
        """A data folder from a snapshot file."""
        return run(QUOIN, "snapshot", "restore", file, *self.settings(), *flags, fails=fails)


def fill(server):
    """Puts, transactions, deletions, leases, long values. Returns what was compacted in the middle of it."""
    for lease in (7, 8, 9):
        server.ask("/v3/lease/grant", {"ID": lease, "TTL": 3600 + lease})
    for number in range(0, KEYS, 100):
        puts = [{"request_put": {"key": b64(f"k/{each:05}"), "value": b64("v" * (each % 40)), "lease": (0, 7, 8, 9)[each % 4]}}
                for each in range(number, number + 100)]
        server.ask("/v3/kv/txn", {"success": puts})
    server.ask("/v3/kv/put", {"key": b64("long"), "value": b64("x" * 1_000_000)})
    server.ask("/v3/lease/revoke", {"ID": 9})
    server.ask("/v3/kv/deleterange", {"key": b64("k/01"), "range_end": b64("k/015")})
    server.ask("/v3/kv/put", {"key": b64("k/01000"), "value": b64("again"), "lease": 8})
    compacted = server.revision() - 2
    server.ask("/v3/kv/compaction", {"revision": compacted, "physical": True})
    for number in range(200):
        server.ask("/v3/kv/put", {"key": b64(f"k/{number % 7:05}"), "value": b64(f"{number}")})
        if number % 10 == 3:
            server.ask("/v3/kv/deleterange", {"key": b64(f"k/{number % 7:05}"), "range_end": b64(f"k/{number % 7 + 2:05}")})
    return compacted


def same(before, after):
    for name, one, other in zip(("revision", "keys", "leases", "changes"), before, after):
        assert one == other, f"{name} differ: {str(one)[:2000]}\n{str(other)[:2000]}"


def from_etcd(folder):
    """A real etcd's snapshot becomes a Quoin cluster."""
    file = f"{folder}/etcd.db"
    with Etcd(f"{folder}/etcd") as etcd:
        compacted = fill(etcd)
        etcd.save(file)
        before = etcd.content(compacted)
    quoin = Quoin(f"{folder}/quoin")
    print(quoin.restore(file))
    with quoin:
        same(before, quoin.content(compacted))
        put = quoin.ask("/v3/kv/put", {"key": b64("new")})
        assert int(put["header"]["revision"]) == before[0] + 1, put
    raised = Quoin(f"{folder}/raised")
    raised.restore(file, "--bump-revision", 1000, "--mark-compacted")
    with raised:
        assert raised.revision() == before[0] + 1000
        assert raised.ask("/v3/kv/range", ALL)["kvs"] == before[1][before[0]]
    # The file of a stopped member, without a checksum.
    plain = f"{folder}/etcd/member/snap/db"
    bare = Quoin(f"{folder}/bare")
    assert "--skip-hash-check" in bare.restore(plain, fails=True)
    bare.restore(plain, "--skip-hash-check")
    with bare:
        same(before, bare.content(compacted))
    damaged = bytearray(open(file, "rb").read())
    damaged[len(damaged) // 2] ^= 1
    open(f"{folder}/damaged.db", "wb").write(damaged)
    assert "checksum" in Quoin(f"{folder}/damaged").restore(f"{folder}/damaged.db", fails=True)


def from_etcd_with_users(folder):
    """Users are not taken over, and that is said."""
    file = f"{folder}/users.db"
    with Etcd(f"{folder}/users") as etcd:
        for path, body in (("user/add", {"name": "root", "password": "p"}), ("role/add", {"name": "root"}),
                           ("user/grant", {"user": "root", "role": "root"})):
            etcd.ask(f"/v3/auth/{path}", body)
        etcd.save(file)
        etcd.ask("/v3/auth/enable", {})
        enabled = f"{folder}/enabled.db"
        run(ETCDCTL, "--endpoints", f"127.0.0.1:{etcd.client}", "--user", "root:p", "snapshot", "save", enabled)
    said = Quoin(f"{folder}/of-users").restore(file)
    assert "not taken over" in said and "users=1" in said, said
    said = Quoin(f"{folder}/enabled").restore(enabled, fails=True)
    assert "authentication is enabled" in said and "--skip-auth" in said, said
    Quoin(f"{folder}/enabled").restore(enabled, "--skip-auth")


def to_etcd(folder):
    """Quoin's snapshot, taken by etcdctl, is checked by etcdutl and becomes a real etcd; and Quoin takes it back."""
    file = f"{folder}/quoin.db"
    with Quoin(f"{folder}/source") as quoin:
        compacted = fill(quoin)
        quoin.save(file)
        before = quoin.content(compacted)
    status = json.loads(run(ETCDUTL, "snapshot", "status", file, "-w", "json").splitlines()[-1])
    assert status["revision"] == before[0], status
    etcd = Etcd(f"{folder}/restored")
    etcd.restore(file)
    with etcd:
        same(before, etcd.content(compacted))
        put = etcd.ask("/v3/kv/put", {"key": b64("new"), "lease": 7})
        assert int(put["header"]["revision"]) == before[0] + 1, put
        etcd.ask("/v3/lease/revoke", {"ID": 7})
        etcd.ask("/v3/kv/compaction", {"revision": etcd.revision(), "physical": True})
        etcd.ask("/v3/maintenance/defragment", {})
        again = f"{folder}/again.db"
        etcd.save(again)
        after = etcd.ask("/v3/kv/range", ALL)["kvs"]
    # Started anew it reads its file once more.
    with etcd:
        assert etcd.ask("/v3/kv/range", ALL)["kvs"] == after
    for source, expected in ((file, before[1][before[0]]), (again, after)):
        back = Quoin(f"{source}.back")
        back.restore(source)
        with back:
            assert back.ask("/v3/kv/range", ALL)["kvs"] == expected


def of_other_faces(folder):
    """Revisions that other faces took are not given again by etcd."""
    file = f"{folder}/others.db"
    with Quoin(f"{folder}/others") as quoin:
        empty = f"{folder}/empty.db"
        quoin.save(empty)
        quoin.ask("/v3/kv/put", {"key": b64("k"), "value": b64("v")})
        run("curl", "-sf", "-X", "POST", f"http://127.0.0.1:{quoin.others[0]}/v1/accounts", "-H", "content-type: application/json",
            "-d", '{"currency": "EUR", "number": "carol"}')
        newest = quoin.revision()
        quoin.save(file)
        log = open(f"{folder}/others.log", encoding="utf-8").read()
        assert "the ledger" in log, log
    for source, revision in ((file, newest), (empty, 1)):
        etcd = Etcd(f"{source}.etcd")
        etcd.restore(source)
        with etcd:
            assert etcd.revision() == revision, (source, etcd.revision(), revision)


for test in (from_etcd, to_etcd, from_etcd_with_users, of_other_faces):
    with tempfile.TemporaryDirectory() as place:
        test(place)
        print(f"{test.__name__}: good")
