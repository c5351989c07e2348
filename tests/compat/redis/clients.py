"""What users of redis-py do, on the three replicas of a cluster whose addresses are the arguments."""

import sys
import threading
import time

import redis

PORTS = [int(address.rsplit(":", 1)[1]) for address in sys.argv[1:]]


def client(replica=0, **options):
    return redis.Redis(host="127.0.0.1", port=PORTS[replica], decode_responses=True, **options)


def strings():
    r = client()
    assert r.ping()
    assert r.set("py:a", "1") and r.get("py:a") == "1"
    assert r.set("py:a", "2", nx=True) is None
    assert r.set("py:a", "2", xx=True, get=True) == "1"
    assert r.incr("py:n", 5) == 5 and r.decr("py:n") == 4
    assert r.incrbyfloat("py:f", 0.5) == 0.5
    assert r.append("py:s", "abc") == 3 and r.getrange("py:s", 1, -1) == "bc"
    assert r.mset({"py:x": 1, "py:y": 2}) and r.mget("py:x", "py:none", "py:y") == ["1", None, "2"]
    assert r.delete("py:x", "py:y", "py:none") == 2
    assert r.exists("py:x") == 0
    # A read on any replica sees every write that was answered before it.
    assert [client(replica).get("py:a") for replica in range(3)] == ["2"] * 3


def messages():
    listener = client(1).pubsub(ignore_subscribe_messages=True)
    listener.subscribe("py:channel")
    listener.psubscribe("py:ch*")

    def heard():
        begun = time.monotonic()
        while time.monotonic() - begun < 30:
            message = listener.get_message(timeout=1)
            if message:
                return message["type"], message["channel"], message["data"]
        raise AssertionError("no message came")

    begun = time.monotonic()
    while client(1).pubsub_numsub("py:channel") != [("py:channel", 1)] or client(1).pubsub_numpat() != 1:
        assert time.monotonic() - begun < 30, "nobody listens"
    r = client(2)
    for number in range(100):
        r.set("py:said", number)
        r.publish("py:channel", number)
        assert heard() == ("message", "py:channel", str(number))
        assert heard() == ("pmessage", "py:channel", str(number))
        # Whoever is told by a replica finds there what was written before.
        assert int(client(1).get("py:said")) >= number
    with r.pipeline() as pipe:
        pipe.set("py:said", "last").publish("py:channel", "from a transaction")
        assert pipe.execute() == [True, 0]
    assert heard()[2] == "from a transaction"


def expiry():
    r = client()
    r.set("py:ttl", "v", px=50_000)
    assert 0 < r.ttl("py:ttl") <= 50 and r.persist("py:ttl") and r.ttl("py:ttl") == -1
    r.set("py:gone", "v", px=100)
    begun = time.monotonic()
    while client(1).exists("py:gone"):
        assert time.monotonic() - begun < 30, "a key did not expire"
        time.sleep(0.02)


def pipelines_and_transactions():
    r = client()
    with r.pipeline(transaction=False) as pipe:
        for number in range(1000):
            pipe.set(f"py:p:{number:04}", number)
        for number in range(1000):
            pipe.get(f"py:p:{number:04}")
        results = pipe.execute()
    assert results[:1000] == [True] * 1000 and results[1000:] == [str(number) for number in range(1000)]
    with r.pipeline() as pipe:
        pipe.set("py:t", 1).incr("py:t").get("py:t")
        assert pipe.execute() == [True, 2, "2"]
    with r.pipeline() as pipe:
        pipe.watch("py:t")
        client(1).set("py:t", "other")
        pipe.multi()
        pipe.set("py:t", "mine")
        try:
            pipe.execute()
            raise AssertionError("EXEC succeeded although a watched key had changed")
        except redis.WatchError:
            pass
    assert r.get("py:t") == "other"
    assert len(list(r.scan_iter("py:p:*", count=100))) == 1000


def counters_on_all_replicas():
    def count(replica):
        r = client(replica)
        for _ in range(50):
            while True:
                try:
                    r.incr("py:counter")
                    break
                except redis.ResponseError as error:
                    # The code says that nothing was done.
                    assert str(error).startswith("BUSY") or "changed" in str(error), error

    threads = [threading.Thread(target=count, args=(number % 3,)) for number in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert client().get("py:counter") == "300", client().get("py:counter")


def notices():
    pubsub = client(2).pubsub()
    pubsub.psubscribe("__keyspace@0__:py:noticed:*")
    assert pubsub.get_message(timeout=10)["type"] == "psubscribe"
    client(0).set("py:noticed:1", "v")
    client(1).delete("py:noticed:1")
    messages = [pubsub.get_message(timeout=10) for _ in range(2)]
    assert [message["data"] for message in messages] == ["set", "del"], messages


LIMITER = """
local count = tonumber(redis.call('get', KEYS[1]) or '0')
if count >= tonumber(ARGV[1]) then return {0, redis.call('pttl', KEYS[1])} end
count = redis.call('incr', KEYS[1])
if count == 1 then redis.call('pexpire', KEYS[1], ARGV[2]) end
return {1, count}
"""


def scripts():
    r = client()
    assert r.eval("return {KEYS[1], ARGV[1], 3.7, false}", 1, "py:k", "a") == ["py:k", "a", 3, None]
    # Another node does not know the script, and the client sends it.
    limit = r.register_script(LIMITER)
    answers = [limit(keys=["py:limit"], args=[3, 60_000], client=client(replica))[0] for replica in [0, 1, 2, 0]]
    assert answers == [1, 1, 1, 0], answers
    try:
        r.eval("redis.call('set', KEYS[1], 1) error('no')", 1, "py:half")
        raise AssertionError("the script succeeded")
    except redis.ResponseError as error:
        assert "user_script:1: no" in str(error), error
    assert not r.exists("py:half")
    with r.pipeline() as pipe:
        pipe.set("py:t", 1)
        pipe.eval("return redis.call('incr', KEYS[1])", 1, "py:t")
        assert pipe.execute() == [True, 2]


def functions():
    r = client()
    body = "return redis.call('INCRBY', keys[1], args[1])"
    code = f"#!lua name=py\nredis.register_function('py_add', function(keys, args) {body} end)"
    assert r.function_load(code, replace=True) == "py"
    # Every replica knows it at once, for they are one store.
    assert [client(replica).fcall("py_add", 1, "py:function", 2) for replica in [1, 2, 0]] == [2, 4, 6]
    assert client(1).function_load(code.replace("INCRBY", "DECRBY"), replace=True) == "py"
    assert [client(replica).fcall("py_add", 1, "py:function", 1) for replica in [2, 0, 1]] == [5, 4, 3]
    assert client(2).function_delete("py") and client().function_list("py") == []


def a_limit_holds_for_clients_of_all_replicas():
    allowed = []

    def ask(replica):
        limit = client(replica).register_script(LIMITER)
        for _ in range(20):
            while True:
                try:
                    allowed.append(limit(keys=["py:shared"], args=[100, 600_000])[0])
                    break
                except redis.ResponseError as error:
                    assert "BUSY" in str(error) or "changed" in str(error), error

    threads = [threading.Thread(target=ask, args=(number % 3,)) for number in range(12)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert (len(allowed), sum(allowed)) == (240, 100), (len(allowed), sum(allowed))


def locks():
    held = []

    def hold(replica):
        for _ in range(5):
            # Released by a script that deletes the key if it is still this owner's.
            with client(replica).lock("py:lock", timeout=30, blocking_timeout=60):
                held.append(1)
                assert len(held) == 1
                held.pop()

    threads = [threading.Thread(target=hold, args=(number % 3,)) for number in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not held
    lock = client().lock("py:lock", timeout=30)
    assert lock.acquire(blocking=False) and lock.extend(10) and lock.owned()
    assert not client(1).lock("py:lock").acquire(blocking=False)
    lock.release()


def hashes():
    r = client()
    assert r.hset("py:h", mapping={"name": "x", "visits": 1, "lang": "de"}) == 3
    assert r.hset("py:h", "name", "y") == 0 and r.hsetnx("py:h", "name", "z") == 0
    assert client(1).hgetall("py:h") == {"name": "y", "visits": "1", "lang": "de"}
    assert r.hincrby("py:h", "visits", 4) == 5 and r.hincrbyfloat("py:h", "share", 0.5) == 0.5
    assert r.hmget("py:h", "name", "none") == ["y", None] and r.hlen("py:h") == 4
    assert sorted(r.hkeys("py:h")) == ["lang", "name", "share", "visits"] and r.hexists("py:h", "lang")
    assert r.hdel("py:h", "lang", "none") == 1 and r.type("py:h") == "hash"
    assert r.hset("py:many", mapping={f"f{number:04}": number for number in range(2500)}) == 2500
    assert len(dict(client(2).hscan_iter("py:many", count=100))) == 2500
    assert dict(r.hscan_iter("py:many", match="f000*")) == {f"f000{number}": str(number) for number in range(10)}
    assert r.hrandfield("py:many") in r.hkeys("py:many") and len(r.hrandfield("py:many", 5)) == 5
    # Debian's redis-py has no commands for fields' times to live.
    assert r.execute_command("HPEXPIRE", "py:h", 100, "FIELDS", 1, "name") == [1]
    begun = time.monotonic()
    while client(1).hexists("py:h", "name"):
        assert time.monotonic() - begun < 30, "a field did not expire"
        time.sleep(0.02)
    assert r.execute_command("HTTL", "py:h", "FIELDS", 2, "name", "visits") == [-2, -1]
    for wrong in [lambda: r.get("py:h"), lambda: r.incr("py:h"), lambda: r.hset("py:a", "f", 1)]:
        try:
            wrong()
            raise AssertionError("a command of another type succeeded")
        except redis.ResponseError as error:
            assert "wrong kind of value" in str(error), error

    def count(replica):
        for number in range(50):
            client(replica).hincrby("py:hits", "all", 1)
            client(replica).hset("py:hits", f"{replica}:{number}", 1)

    threads = [threading.Thread(target=count, args=(number % 3,)) for number in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert r.hget("py:hits", "all") == "300" and r.hlen("py:hits") == 151
    assert r.delete("py:h", "py:many", "py:hits") == 3 and r.hlen("py:many") == 0


def absent_commands():
    try:
        client().lpush("py:list", 1)
        raise AssertionError("LPUSH succeeded")
    except redis.ResponseError as error:
        assert "unknown command 'LPUSH'" in str(error), error


for test in [strings, expiry, pipelines_and_transactions, counters_on_all_replicas, notices, messages, scripts, functions,
             a_limit_holds_for_clients_of_all_replicas, locks, hashes, absent_commands]:
    test()
    print("redis-py:", test.__name__, "ok")
