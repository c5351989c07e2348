"""What a cluster of Kubernetes asks of its store, and what the store must have told: see run.sh."""

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from stores import PATIENCE_S, ApiServer, Client, Store

OBJECTS = int(os.environ.get("OBJECTS", "5000"))
NAMESPACES = 10
RESOURCES = 200
WRITERS = 16
PAGE = 500
CONFIG_MAPS = "/api/v1/configmaps"
# Of an object, as large as many are.
TEXT = "x" * 1000
WIDGETS = "/apis/compat.example.com/v1/widgets"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.compat.example.com"},
    "spec": {
        "group": "compat.example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


class Watch(threading.Thread):
    """Follows a kind of objects, and goes on where it was whenever the stream ends."""

    def __init__(self, port, path):
        super().__init__(daemon=True)
        self.port, self.path = port, path
        self.events, self.bookmarks, self.streams, self.problem = [], 0, 0, None
        self.revision, self.deadline, self.wanted = "", time.monotonic() + 2 * PATIENCE_S, None
        self.synced = threading.Event()
        self.start()

    def run(self):
        try:
            while not self.is_done() and time.monotonic() < self.deadline:
                self.follow()
        except Exception as error:  # Told by `finish`, on the thread that asks.
            self.problem = error
            self.synced.set()

    def follow(self):
        """One stream. It says how far it is before it ends, and a first one what there was before."""
        client = Client(self.port)
        query = f"watch=true&allowWatchBookmarks=true&timeoutSeconds=5&resourceVersion={self.revision}"
        if not self.revision:
            query += "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        try:
            response = client.open("GET", f"{self.path}?{query}")
            if response.status in (429, 500, 503, 504):
                time.sleep(0.2)
                return
            assert response.status == 200, response.read()
            self.streams += 1
            while line := response.readline():
                self.take(json.loads(line))
        except OSError:
            time.sleep(0.2)
        finally:
            client.close()

    def take(self, event):
        kind, metadata = event["type"], event["object"].get("metadata", {})
        assert kind != "ERROR", event
        self.revision = metadata["resourceVersion"]
        if kind == "BOOKMARK":
            self.bookmarks += 1
            self.synced.set()
        else:
            self.events.append((kind, f"{metadata.get('namespace', '')}/{metadata['name']}", int(self.revision)))

    def is_done(self):
        return self.problem is not None or (self.wanted is not None and len(self.events) >= self.wanted)

    def finish(self, wanted):
        """Waits for so many events; all that came."""
        self.wanted = wanted
        self.join(2 * PATIENCE_S)
        assert self.problem is None, self.problem
        assert len(self.events) == wanted, f"{len(self.events)} events of {wanted} after {self.streams} streams of {self.path}"
        revisions = [revision for _, _, revision in self.events]
        assert len(set(revisions)) == wanted, "an event came twice"
        return self.events


class Run:
    """A kube-apiserver on one kind of store."""

    def __init__(self, kind, folder):
        self.kind, self.figures = kind, {}
        self.store = Store(kind, folder)
        self.server = ApiServer(folder, self.store.clients)
        self.local = threading.local()
        self.pool = ThreadPoolExecutor(WRITERS)
        self.retried = 0

    def client(self):
        if not hasattr(self.local, "client"):
            self.local.client = Client(self.server.port)
        return self.local.client

    def ask(self, method, path, body=None, kind="application/json", done=()):
        """What an answer holds. Asks again while the store has no leader; `done` is the status if the first try was done."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                status, answer = self.client().ask(method, path, body, kind)
            except OSError:
                self.client().close()
                status, answer = 503, "no connection"
            if status < 300 or (status in done and deadline is not None):
                return answer
            assert status in (429, 500, 503, 504) and time.monotonic() < deadline, f"{method} {path}: {status} {answer}"
            self.retried += 1
            time.sleep(0.1)

    def timed(self, what, run):
        """Runs it, and notes its time and the processor time of the store meanwhile."""
        used, began = self.used(), time.monotonic()
        result = run()
        self.figures[what] = (time.monotonic() - began, self.used() - used)
        print(f"{self.kind:6} {what:42} {self.figures[what][0]:8.2f} s, processor {self.figures[what][1]:7.2f} s", flush=True)
        return result

    def used(self):
        return sum(member.processor_s() for member in self.store.members)

    def in_parallel(self, run, items):
        return list(self.pool.map(run, items))

    def create(self, number, plural="configmaps"):
        """Creates an object. After an unknown outcome it may be there already."""
        body = {"metadata": {"name": f"o{number}", "labels": {"part": str(number % 7)}}}
        body |= {"data": {"text": TEXT}} if plural == "configmaps" else {"apiVersion": "compat.example.com/v1", "kind": "Widget", "spec": {"size": number}}
        place = f"/api/v1/namespaces/{space(number)}/configmaps" if plural == "configmaps" else f"/apis/compat.example.com/v1/namespaces/{space(number)}/{plural}"
        self.ask("POST", place, body, done=(409,))

    def replace(self, number):
        """Replaces an object, once with an old version, which must be refused."""
        path = f"/api/v1/namespaces/{space(number)}/configmaps/o{number}"
        found = self.ask("GET", path)
        found["data"] = {"text": "new"}
        self.ask("PUT", path, found, done=(409,))
        status, answer = self.client().ask("PUT", path, found)
        assert status == 409, f"a write over an old version: {status} {answer}"

    def delete(self, number):
        self.ask("DELETE", f"/api/v1/namespaces/{space(number)}/configmaps/o{number}", done=(404,))

    def listed(self, query=""):
        """All config maps of the namespaces of this run, page by page if the query says so."""
        names, onward = [], ""
        while True:
            page = self.ask("GET", f"{CONFIG_MAPS}?{query}&continue={onward}")
            names += [item["metadata"]["name"] for item in page["items"] if item["metadata"]["namespace"].startswith("compat-")]
            onward = page["metadata"].get("continue", "")
            if not onward:
                return names

    def all(self):
        self.timed("kube-apiserver starts", self.server.start)
        self.in_parallel(lambda at: self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": space(at)}}, done=(409,)), range(NAMESPACES))
        self.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION, done=(409,))
        while self.client().ask("GET", WIDGETS)[0] != 200:
            time.sleep(0.1)
        maps, widgets = (Watch(self.server.port, path) for path in (CONFIG_MAPS, WIDGETS))
        for watch in (maps, widgets):
            assert watch.synced.wait(PATIENCE_S) and watch.problem is None, watch.problem
        before = len(maps.events)
        self.timed(f"{RESOURCES} custom resources are written", lambda: self.in_parallel(lambda at: self.create(at, "widgets"), range(RESOURCES)))
        half = OBJECTS // 2
        self.timed(f"{half} objects are written", lambda: self.in_parallel(self.create, range(half)))
        self.timed(f"{OBJECTS - half} more, the leader is killed", lambda: self.with_a_kill(range(half, OBJECTS)))
        self.timed(f"{OBJECTS} objects are listed, newest", lambda: self.check(self.listed(), range(OBJECTS)))
        self.timed(f"in pages of {PAGE}", lambda: self.check(self.listed(f"limit={PAGE}"), range(OBJECTS)))
        self.timed("from the cache", lambda: self.check(self.listed("resourceVersion=0"), range(OBJECTS)))
        tenth = OBJECTS // 10
        self.timed(f"{tenth} objects are replaced", lambda: self.in_parallel(self.replace, range(tenth)))
        self.timed(f"{tenth} objects are deleted", lambda: self.in_parallel(self.delete, range(tenth)))
        told = maps.finish(before + OBJECTS + 2 * tenth)[before:]
        for kind, count in (("ADDED", OBJECTS), ("MODIFIED", tenth), ("DELETED", tenth)):
            names = [name for how, name, _ in told if how == kind]
            assert sorted(names) == sorted(f"{space(at)}/o{at}" for at in range(count)), f"{len(names)} {kind}"
        widgets.finish(RESOURCES)
        assert maps.bookmarks > 1, f"{maps.bookmarks} bookmarks in {maps.streams} streams"
        print(f"{self.kind:6} the watch told {len(told)} changes once each, in {maps.streams} streams with {maps.bookmarks} bookmarks")
        self.server.kill()
        self.timed("kube-apiserver starts again, reads all", self.again)
        self.requests()

    def again(self):
        self.server.start()
        self.local = threading.local()
        self.check(self.listed(), range(OBJECTS // 10, OBJECTS))

    def check(self, names, wanted):
        assert sorted(names) == sorted(f"o{number}" for number in wanted), f"{len(names)} objects of {len(wanted)}"

    def with_a_kill(self, numbers):
        """Creates objects; at half of them the store's leader is killed, and starts again at the end."""
        middle = numbers[len(numbers) // 2]
        killed = []

        def create(number):
            if number == middle:
                leader = self.store.leader()
                leader.kill()
                killed.append(leader)
            self.create(number)

        self.in_parallel(create, numbers)
        killed[0].start()

    def requests(self):
        """How kube-apiserver has asked the store."""
        text, counts = self.client().ask("GET", "/metrics")[1], {}
        for line in text.splitlines():
            if line.startswith("etcd_request_duration_seconds_count{"):
                operation = line.partition('operation="')[2].partition('"')[0]
                counts[operation] = counts.get(operation, 0) + int(float(line.rpartition(" ")[2]))
        print(f"{self.kind:6} requests of kube-apiserver since then: {counts}")

    def end(self):
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in (self.server, *self.store.members):
            process.kill()


def space(number):
    return f"compat-{number % NAMESPACES}"


def run(kind):
    """All of it, on a kind of store; its figures."""
    folder = tempfile.mkdtemp(prefix=f"kubernetes-{kind}-")
    running = Run(kind, folder)
    try:
        running.store.start()
        running.all()
        memory = max(member.memory_bytes() for member in running.store.members)
        print(f"{kind:6} processor time in all {running.used():.1f} s, memory of a member at most {memory >> 20} MiB, {running.retried} requests tried again")
    except BaseException:
        print(f"what the servers said is in {folder}", flush=True)
        raise
    finally:
        running.end()
    shutil.rmtree(folder)
    return running.figures


def main(kinds):
    """Runs all kinds, and shows them side by side."""
    figures = {kind: run(kind) for kind in kinds}
    print("\n| |" + "".join(f" {kind}, s | processor, s |" for kind in kinds))
    print("|---|" + "---:|---:|" * len(kinds))
    for what in figures[kinds[0]]:
        print(f"| {what} |" + "".join(f" {figures[kind][what][0]:.2f} | {figures[kind][what][1]:.2f} |" for kind in kinds))
    print("kubernetes: all good")


main(sys.argv[1:])
