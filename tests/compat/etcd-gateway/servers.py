"""Servers for the comparison: each a process on free ports, with a folder of its own, ended with the context."""

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import time

from ports import free_ports

PATIENCE_S = 60


@contextlib.contextmanager
def running(arguments, folder):
    """A process, from when it starts until it is killed; its output is in the folder."""
    with open(os.path.join(folder, "out"), "ab") as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=out, cwd=folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def etcd():
    """A real etcd; its port."""
    client, peer = free_ports(2)
    folder = tempfile.mkdtemp(prefix="etcd-")
    urls = [f"http://127.0.0.1:{port}" for port in (client, peer)]
    arguments = [os.environ["ETCD_BIN"], "--name=only", "--data-dir=data", f"--initial-cluster=only={urls[1]}"]
    arguments += [f"--listen-client-urls={urls[0]}", f"--advertise-client-urls={urls[0]}"]
    arguments += [f"--listen-peer-urls={urls[1]}", f"--initial-advertise-peer-urls={urls[1]}"]
    try:
        with running(arguments, folder):
            wait_for_health(client)
            yield client
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def quoin():
    """A node; its client port, its HTTP port and its port for Redis's protocol."""
    client, peer, pages, redis = free_ports(4)
    folder = tempfile.mkdtemp(prefix="quoin-")
    arguments = [os.environ["QUOIN_BIN"], "serve", "--name=only", "--data-dir=data", "--store-reserve-bytes=0"]
    arguments += [f"--listen-{name}=127.0.0.1:{port}" for name, port in
                  (("client", client), ("peer", peer), ("http", pages), ("resp", redis))]
    try:
        with running(arguments, folder):
            wait_for_health(client)
            # A node introduces itself soon after its start.
            wait("the node's URLs", lambda: b"clientURLs" in ask(client, "POST", "/v3/cluster/member/list", "{}")[1])
            yield client, pages, redis
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_health(port):
    """Waits until the server says that it is healthy."""
    def is_healthy():
        status, body = ask(port, "GET", "/health")
        return status == 200 and json.loads(body)["health"] == "true"

    wait(f"a healthy server on port {port}", is_healthy)


def wait(what, condition):
    """Waits until the condition holds; what a server that is not there yet answers is no error."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            if condition():
                return
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}"
        time.sleep(0.05)


def ask(port, method, path, body=None, headers=None):
    """One request on a connection of its own: the status and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class Stream:
    """A call whose answers come line by line."""

    def __init__(self, port, path, body):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self.connection.request("POST", path, body)
        self.response = self.connection.getresponse()

    def line(self):
        """The next answer."""
        return json.loads(self.response.readline())

    def close(self):
        """Leaves, whatever is still to come."""
        self.response.close()
        self.connection.close()
