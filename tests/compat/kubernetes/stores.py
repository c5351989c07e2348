"""What is compared: three members of a store, and a kube-apiserver on them. All on 127.0.0.1, in folders of their own."""

import contextlib
import http.client
import json
import os
import ssl
import subprocess
import time

from ports import free_ports

PATIENCE_S = 180
MEMBERS = 3
TOKEN = "compat"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def wait(what, condition):
    """Waits until the condition gives something, and returns it. Errors of a network count as nothing."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError, http.client.HTTPException):
            if found := condition():
                return found
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}"
        time.sleep(0.1)


class Process:
    """A server, its output in a file, and what it has used: of all its starts."""

    def __init__(self, name, folder, arguments):
        self.name, self.folder, self.arguments = name, folder, arguments
        self.process, self.used_s, self.peak_bytes = None, 0.0, 0
        os.makedirs(folder)

    def start(self):
        with open(os.path.join(self.folder, "out"), "ab") as out:
            self.process = subprocess.Popen(self.arguments, stdout=out, stderr=out, cwd=self.folder)

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        if self.runs():
            self.used_s, self.peak_bytes = self.processor_s(), self.memory_bytes()
            self.process.kill()
        if self.process is not None:
            self.process.wait()

    def processor_s(self):
        """Seconds of processor time."""
        if not self.runs():
            return self.used_s
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return self.used_s + (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def memory_bytes(self):
        """The most resident memory so far."""
        if not self.runs():
            return self.peak_bytes
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            peak = next(line for line in status if line.startswith("VmHWM:"))
        return max(self.peak_bytes, int(peak.split()[1]) * 1024)


class Store:
    """Three members of Quoin or of etcd."""

    def __init__(self, kind, folder):
        self.kind = kind
        self.ports = free_ports(MEMBERS * 4)
        self.clients = self.ports[:MEMBERS]
        describe = self.quoin if kind == "quoin" else self.etcd
        self.members = [Process(f"n{at}", os.path.join(folder, f"{kind}{at}"), describe(at)) for at in range(MEMBERS)]

    def of(self, at):
        """The ports of a member."""
        return self.ports[at::MEMBERS]

    def quoin(self, at):
        cluster = ",".join(f"n{other}=127.0.0.1:{self.of(other)[1]}" for other in range(MEMBERS))
        arguments = [os.environ["QUOIN_BIN"], "serve", f"--name=n{at}", "--data-dir=data", f"--cluster={cluster}"]
        listens = zip(("client", "peer", "http", "resp"), self.of(at))
        return arguments + ["--store-reserve-bytes=0"] + [f"--listen-{what}=127.0.0.1:{port}" for what, port in listens]

    def etcd(self, at):
        client, peer = (f"http://127.0.0.1:{port}" for port in self.of(at)[:2])
        cluster = ",".join(f"n{other}=http://127.0.0.1:{self.of(other)[1]}" for other in range(MEMBERS))
        arguments = [os.path.join(os.environ["KUBERNETES_BIN"], "etcd"), f"--name=n{at}", "--data-dir=data"]
        arguments += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        arguments += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        return arguments + [f"--initial-cluster={cluster}", "--log-level=error"]

    def start(self):
        for member in self.members:
            member.start()
        wait(f"a leader of {self.kind}", self.leader)

    def leader(self):
        """The member that leads; nobody while those that run do not agree."""
        for at, member in enumerate(self.members):
            if member.runs():
                connection = http.client.HTTPConnection("127.0.0.1", self.clients[at], timeout=5)
                with contextlib.closing(connection):
                    connection.request("POST", "/v3/maintenance/status", "{}")
                    status = json.loads(connection.getresponse().read())
                if status["leader"] == status["header"]["member_id"]:
                    return member
        return None


class ApiServer(Process):
    """A kube-apiserver that knows one user."""

    def __init__(self, folder, clients):
        place = os.path.join(folder, "apiserver")
        (self.port,) = free_ports(1)
        arguments = [os.path.join(os.environ["KUBERNETES_BIN"], "kube-apiserver"), f"--secure-port={self.port}"]
        arguments += ["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"]
        arguments += [f"--etcd-servers={','.join(f'http://127.0.0.1:{port}' for port in clients)}"]
        arguments += ["--authorization-mode=AlwaysAllow", "--token-auth-file=tokens", "--cert-dir=certificates"]
        arguments += ["--service-account-issuer=https://compat", "--service-account-key-file=key"]
        arguments += ["--service-account-signing-key-file=key", "--service-cluster-ip-range=10.0.0.0/24"]
        arguments += ["--disable-admission-plugins=ServiceAccount", "--max-requests-inflight=1000"]
        super().__init__("kube-apiserver", place, arguments)
        subprocess.run(["openssl", "genrsa", "-out", os.path.join(place, "key"), "2048"], check=True, capture_output=True)
        with open(os.path.join(place, "tokens"), "w", encoding="utf-8") as tokens:
            tokens.write(f'{TOKEN},compat,compat,"system:masters"\n')

    def start(self):
        super().start()
        wait("a ready kube-apiserver", lambda: not self.runs() or Client(self.port).ask("GET", "/readyz")[0] == 200)
        assert self.runs(), f"kube-apiserver has ended: see {self.folder}/out"


class Client:
    """One connection to a kube-apiserver."""

    def __init__(self, port):
        context = ssl.create_default_context()
        # Its certificate is its own, and this is this machine.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)

    def open(self, method, path, body=None, kind="application/json"):
        """The response, of which nothing is read yet."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        return self.connection.getresponse()

    def ask(self, method, path, body=None, kind="application/json"):
        """The status and what was answered."""
        response = self.open(method, path, body, kind)
        text = response.read()
        return response.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    def close(self):
        self.connection.close()
