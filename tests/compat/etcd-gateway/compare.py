"""The same requests to etcd and to Quoin over HTTP/1. Status and body must be equal, field by field.

Quoin's answers may have more fields where etcd's versions differ: errors have those of all of them.
"""

import base64
import json
import sys

from servers import Stream, ask, etcd, quoin

# What identifies or measures a server: both must have it, of the same type, whatever its value.
OWN = {"cluster_id", "member_id", "raft_term", "ID", "memberID", "dbSize", "dbSizeInUse", "dbSizeQuota", "leader", "raftIndex",
       "raftTerm", "raftAppliedIndex", "hash", "version", "storageVersion", "name", "peerURLs", "clientURLs", "remaining_bytes",
       "blob", "authRevision"}
# Fields that only newer versions of etcd have, or that Quoin has besides: a header where etcd's is empty, and why a watch ended.
MORE = {"error", "code", "message", "details", "storageVersion", "dbSizeQuota", "downgradeInfo", "reason", "storage",
        "hash_revision", "remaining_bytes", "header", "revision", "cancel_reason"}
# Paths that etcd answers with Unknown (500) whatever is wrong. Quoin says what: the text is the same.
UNKNOWN = ("/v3/lock/lock", "/v3/lock/unlock", "/v3/election/campaign")


def b64(text):
    """Text as the gateway's JSON has bytes."""
    return base64.b64encode(text.encode()).decode()


def op(kind, **fields):
    """A step of a transaction."""
    return {f"request_{kind}": fields}


def key(name, **fields):
    """A request that names a key."""
    return {"key": b64(name), **fields}


GUARD = {"result": "EQUAL", "target": "VALUE", "key": b64("a"), "value": b64("1")}
EMPTY_RANGE = {"key": b64("none/"), "range_end": b64("none0")}

# In this order: later ones see what earlier ones wrote.
STEPS = [
    ("/v3/kv/range", key("a")),
    ("/v3/kv/put", key("a", value=b64("1"))),
    ("/v3/kv/put", key("a", value=b64("1"), prev_kv=True)),
    ("/v3/kv/put", key("b", value=b64("x" * 1000))),
    ("/v3/kv/put", key("c")),
    ("/v3/kv/range", key("a")),
    ("/v3/kv/range", key("a", range_end=b64("z"))),
    ("/v3/kv/range", key("a", range_end=b64("z"), limit=1)),
    ("/v3/kv/range", key("a", rangeEnd=b64("z"), limit="2", keysOnly=True)),
    ("/v3/kv/range", key("a", range_end=b64("z"), count_only=True)),
    ("/v3/kv/range", key("a", range_end=b64("z"), sort_order="DESCEND", sort_target="MOD", limit=2)),
    ("/v3/kv/range", key("a", range_end="AA==", sort_order=1, sort_target=4)),
    ("/v3/kv/range", key("a", revision=2)),
    ("/v3/kv/range", key("a", revision=99)),
    ("/v3/kv/range", key("a", revision=-1)),
    ("/v3/kv/range", key("a", serializable=True, unknown={"x": [1]})),
    ("/v3/kv/range", {}),
    ("/v3/kv/put", {}),
    ("/v3/kv/put", key("a", value=b64("2"), lease=77)),
    ("/v3/kv/put", key("none", ignore_value=True)),
    ("/v3/kv/txn", {"compare": [GUARD], "success": [op("put", **key("a", value=b64("2"))), op("range", **key("a"))],
                    "failure": [op("range", **key("a"))]}),
    ("/v3/kv/txn", {"compare": [GUARD], "success": [], "failure": [op("delete_range", **key("c", prev_kv=True))]}),
    ("/v3/kv/txn", {"compare": [{"target": "CREATE", "key": b64("new"), "create_revision": "0"}],
                    "success": [op("txn", success=[op("put", **key("new"))])]}),
    ("/v3/kv/txn", {"compare": [{"target": "VERSION", "result": "GREATER", "key": b64("new"), "version": 0}]}),
    ("/v3/kv/txn", {"compare": [{"target": "VERSION", "result": "GREATER", "version": "0", **EMPTY_RANGE}],
                    "success": [op("put", **key("lost"))]}),
    ("/v3/kv/txn", {"compare": [{"target": "VALUE", "value": b64("x"), **EMPTY_RANGE}], "success": [op("put", **key("lost"))]}),
    ("/v3/kv/txn", {"compare": [{"target": "CREATE", "create_revision": 5, **EMPTY_RANGE}]}),
    ("/v3/kv/txn", {"compare": [{"target": "MOD", "mod_revision": 0, **EMPTY_RANGE}]}),
    ("/v3/kv/txn", {"success": [op("put", **key("d")), op("put", **key("d"))]}),
    ("/v3/kv/txn", {}),
    ("/v3/kv/deleterange", key("b")),
    ("/v3/kv/deleterange", key("a", range_end=b64("b"), prev_kv=True)),
    ("/v3/kv/deleterange", key("none")),
    ("/v3/kv/deleterange", {}),
    ("/v3/kv/compaction", {"revision": 3}),
    ("/v3/kv/compaction", {"revision": "3"}),
    ("/v3/kv/compaction", {"revision": 99}),
    ("/v3/kv/range", key("a", revision=2)),
    ("/v3/lease/grant", {"TTL": 600, "ID": 7}),
    ("/v3/lease/grant", {"TTL": 600, "ID": "7"}),
    ("/v3/lease/grant", {"TTL": "600"}),
    ("/v3/kv/put", key("leased", lease="7")),
    ("/v3/lease/timetolive", {"ID": "7", "keys": True}),
    ("/v3/kv/lease/timetolive", {"ID": 7}),
    ("/v3/lease/timetolive", {"ID": 8}),
    ("/v3/lease/revoke", {"ID": "7"}),
    ("/v3/kv/lease/revoke", {"ID": "7"}),
    ("/v3/kv/range", key("leased")),
    ("/v3/cluster/member/list", {}),
    ("/v3/cluster/member/remove", {"ID": "1"}),
    ("/v3/cluster/member/promote", {"ID": "1"}),
    ("/v3/maintenance/status", {}),
    ("/v3/maintenance/alarm", {}),
    ("/v3/maintenance/alarm", {"action": "ACTIVATE", "alarm": "NOSPACE", "memberID": "1"}),
    ("/v3/kv/put", key("full")),
    ("/v3/maintenance/alarm", {"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": "1"}),
    ("/v3/maintenance/hash", {}),
    ("/v3/maintenance/defragment", {}),
    ("/v3/maintenance/transfer-leadership", {"targetID": "1"}),
    ("/v3/auth/authenticate", {"name": "root", "password": "secret"}),
    ("/v3/auth/disable", {}),
    ("/v3/auth/user/list", {}),
    ("/v3/auth/role/list", {}),
    ("/v3/lock/lock", {"name": b64("lock"), "lease": "9"}),
    ("/v3/lock/unlock", {}),
    ("/v3/election/leader", {"name": b64("election")}),
    ("/v3/election/campaign", {"name": b64("election"), "value": b64("me"), "lease": "9"}),
    ("/v3/election/proclaim", {}),
    ("/v3/election/resign", {}),
]
# Bodies that are no message.
MALFORMED = ["{", '{"key": 1}', '{"key": "%"}', '{"limit": "x"}', '{"sort_order": "UP"}', "[]", '{"limit": 1.5}']


class Differences:
    """What was found."""

    def __init__(self):
        self.found = []
        self.compared = 0

    def compare(self, what, theirs, ours):
        """Compares two answers."""
        self.compared += 1
        if theirs != ours:
            self.walk(what, theirs, ours, "")

    def walk(self, what, theirs, ours, path):
        name = path.rsplit(".", 1)[-1]
        if isinstance(theirs, dict) and isinstance(ours, dict):
            for field in theirs.keys() | ours.keys():
                if field in theirs and field in ours:
                    self.walk(what, theirs[field], ours[field], f"{path}.{field}")
                elif not (field in ours and field in MORE):
                    self.add(what, f"{path}.{field}", theirs.get(field), ours.get(field))
        elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
            for place, pair in enumerate(zip(theirs, ours)):
                self.walk(what, *pair, f"{path}[{place}]")
        elif not (name.split("[")[0] in OWN and type(theirs) is type(ours)) and theirs != ours:
            self.add(what, path, theirs, ours)

    def add(self, *difference):
        self.found.append("{} {}: etcd {!r}, Quoin {!r}".format(*difference))


def post(port, path, body):
    """Status and JSON of an answer."""
    text = body if isinstance(body, str) else json.dumps(body)
    status, answer = ask(port, "POST", path, text)
    # Until 3.4 etcd said 412 where it now says 400.
    return {"status": 400 if status == 412 else status, "body": json.loads(answer)}


def calls(both, differences):
    """Calls with one answer."""
    for path, body in STEPS:
        answers = [post(port, path, body) for port in both]
        if path in UNKNOWN:
            for answer in answers:
                answer["status"], answer["body"]["code"] = answer["status"] >= 400, None
        differences.compare(f"{path} {json.dumps(body)}", *answers)
    for body in MALFORMED:
        answers = [post(port, "/v3/kv/range", body) for port in both]
        for answer in answers:
            answer["body"] = {field: answer["body"].get(field) for field in ("code",)}
        differences.compare(f"malformed {body}", *answers)
    # An empty body is an empty message, and the header says nothing of it.
    for path in ("/v3/cluster/member/list", "/v3/maintenance/status"):
        answers = [post(port, path, "") for port in both]
        differences.compare(f"{path} without a body", *answers)
    for path in ("/v3/none", "/v2/keys/a", "/none"):
        answers = [ask(port, "POST", path, "{}")[0] for port in both]
        differences.compare(path, *answers)
    large = json.dumps(key("large", value=b64("x" * (4 << 20))))
    answers = [post(port, "/v3/kv/put", large) for port in both]
    differences.compare("too large", *[answer["status"] >= 400 for answer in answers])


def streams(both, differences):
    """Calls with many answers."""
    def compare(what, opened):
        differences.compare(what, *[stream.line() for stream in opened])

    def each(path, body):
        return [Stream(port, path, json.dumps(body)) for port in both]

    watches = each("/v3/watch", {"create_request": key("w", range_end=b64("x"), prev_kv=True)})
    compare("watch: created", watches)
    for path, body in [
        ("/v3/kv/put", key("w1", value=b64("1"))),
        ("/v3/kv/put", key("w1", value=b64("2"))),
        ("/v3/kv/put", key("v", value=b64("not watched"))),
        ("/v3/kv/txn", {"success": [op("put", **key("w2")), op("put", **key("w3"))]}),
        ("/v3/kv/deleterange", key("w1", range_end=b64("w9"))),
    ]:
        revisions = [post(port, path, body)["body"]["header"]["revision"] for port in both]
        differences.compare("revisions", *revisions)
        if body.get("key") != b64("v"):
            compare(f"watch: {json.dumps(body)}", watches)
    for watch in watches:
        watch.close()
    history = each("/v3/watch", {"create_request": key("w", range_end=b64("x"), start_revision="4", filters=["NODELETE"],
                                                       watch_id=5)})
    for what in ("created", "history"):
        compare(f"watch from a revision: {what}", history)
    for watch in history:
        watch.close()
    compacted = each("/v3/watch", {"create_request": key("a", start_revision=1)})
    for what in ("created", "canceled"):
        compare(f"watch of what is compacted: {what}", compacted)
    for watch in compacted:
        watch.close()
    for port in both:
        post(port, "/v3/lease/grant", {"TTL": 600, "ID": 21})
    for body in ({"ID": "21"}, {"ID": 22}):
        kept = each("/v3/lease/keepalive", body)
        compare(f"keep alive {body}", kept)
        for stream in kept:
            differences.compare("keep alive ends", stream.response.read(), b"")
    for port in both:
        post(port, "/v3/kv/put", key("election/1", value=b64("leader")))
    observed = each("/v3/election/observe", {"name": b64("election")})
    compare("observe", observed)
    for stream in observed:
        stream.close()
    snapshots = each("/v3/maintenance/snapshot", {})
    for name, stream in zip(("etcd", "Quoin"), snapshots):
        pieces = [json.loads(line)["result"] for line in stream.response]
        differences.compare(f"{name}'s snapshot", all(base64.b64decode(piece["blob"]) for piece in pieces), True)


def pages(both, differences):
    """What probes and dashboards ask for."""
    differences.compare("/health", *[json.loads(ask(port, "GET", "/health")[1]) for port in both])
    for path in ("/health", "/version", "/metrics"):
        differences.compare(path, *[ask(port, "GET", path)[0] for port in both])
        differences.compare(f"POST {path}", 405, ask(both[1], "POST", path, "")[0])
    for path in ("/livez", "/readyz"):
        differences.compare(path, 200, ask(both[1], "GET", path)[0])
    versions = [sorted(json.loads(ask(port, "GET", "/version")[1])) for port in both]
    differences.compare("/version", sorted(versions[0]), [name for name in versions[1] if name in versions[0]])
    names = [{line.split("{")[0].split(" ")[0] for line in ask(port, "GET", "/metrics")[1].decode().splitlines()} for port in both]
    wanted = {name for name in names[0] if name.startswith((
        "etcd_server_has_leader", "etcd_server_is_leader", "etcd_server_leader_changes", "etcd_server_proposals",
        "etcd_mvcc_db_total_size", "etcd_disk_wal_fsync", "etcd_disk_backend_commit_duration", "etcd_server_quota"))}
    differences.compare("etcd's metrics", sorted(wanted), sorted(wanted & names[1]))
    assert len(wanted) > 10, wanted


def wrong_ports(pages_port, redis_port, client_port, differences):
    """A client on another port is told where it is."""
    import socket

    def said(port, sent):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as stream:
            stream.sendall(sent)
            answer = b""
            while piece := stream.recv(4096):
                answer += piece
            return answer

    request = b"POST /v3/kv/range HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    for port, sent, begins, text in [
        (redis_port, request, b"HTTP/1.1 400 ", b"Quoin's port for Redis's protocol"),
        (redis_port, preface, b"\0\0\0\4", b"Quoin's port for Redis's protocol"),
        (client_port, b"*1\r\n$4\r\nPING\r\n", b"-ERR ", b"Quoin's client port"),
        (pages_port, b"PING\r\n", b"-ERR ", b"Quoin's HTTP port"),
        (pages_port, preface, b"\0\0\0\4", b"Quoin's HTTP port"),
    ]:
        answer = said(port, sent)
        differences.compare(f"wrong port: {sent!r} got {answer!r}", (True, True), (answer.startswith(begins), text in answer))


def main():
    """Compares everything."""
    differences = Differences()
    with etcd() as theirs, quoin() as (ours, pages_port, redis_port):
        calls((theirs, ours), differences)
        streams((theirs, ours), differences)
        pages((theirs, ours), differences)
        wrong_ports(pages_port, redis_port, ours, differences)
    for difference in differences.found:
        print(difference)
    print(f"{differences.compared} answers compared, {len(differences.found)} differences")
    assert differences.compared > 90
    sys.exit(1 if differences.found else 0)


if __name__ == "__main__":
    main()
