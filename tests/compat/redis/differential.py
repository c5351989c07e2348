#!/usr/bin/python3
"""Sends the same random commands to Quoin and to Debian's redis-server, and compares every reply.

usage: differential.py HOST:PORT [--commands N] [--seed S] [--only NAME,NAME] [--all]

The commands come in pipelines of random length, with options, wrong types, odd numbers and transactions. Replies must be the
same, errors their code (the first word); `same` says what else may differ, and why. Exits with 1 after the first difference,
and prints the commands that lead to it; with --all it goes on, and counts the differences by command.
"""
import argparse
import random
import socket
import subprocess
import sys
import tempfile
import time

# ---- the wire


class Error(str):
    """An error reply."""


class Wire:
    """One connection: requests go out together, replies come back in order."""

    def __init__(self, host, port):
        self.socket = socket.create_connection((host, port))
        self.file = self.socket.makefile("rb")

    def ask(self, commands):
        out = bytearray()
        for words in commands:
            out += b"*%d\r\n" % len(words)
            for word in words:
                out += b"$%d\r\n%s\r\n" % (len(word), word)
        self.socket.sendall(out)
        return [self.read() for _ in commands]

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return "+" + rest.decode()
        if kind == b"-":
            return Error(rest.decode("utf-8", "replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            if rest == b"-1":
                return None
            text = self.file.read(int(rest) + 2)
            return text[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.read() for _ in range(int(rest))]
        if kind == b"_":
            return None
        if kind == b"%":
            return {"map": [self.read() for _ in range(2 * int(rest))]}
        raise ValueError(f"a reply begins with {line!r}")


# ---- what is asked

# Quoin refuses these within MULTI.
NOT_QUEUED = {"keys", "scan", "dbsize", "hscan"}

KEYS = [b"a", b"b", b"c", b"d", b"e", b"key with blanks", b"\x00\xff"]
FIELDS = [b"f", b"g", b"h", b"", b"field with blanks", b"\xff"]
INTEGERS = [b"0", b"1", b"-1", b"2", b"5", b"-5", b"10", b"100", b"-10", b"9223372036854775807", b"-9223372036854775808",
            b"9223372036854775806", b"4611686018427387904"]
ODD = [b"", b"abc", b" 1", b"1 ", b"+5", b"007", b"-0", b"1.0", b"1e3", b"0x1g", b"9223372036854775808", b"--1", b"1\x00",
       b"-", b"1,5", b"NaN", b"inf", b"-Infinity", b"18446744073709551615"]
FLOATS = [b"0.1", b"1.5", b"-3.25", b"1e2", b"5.0e3", b"0.0000001", b"1e17", b"123456789.123", b"-0.1", b"3.0", b"1e-5", b".5", b"5.",
          b"10000000000000000000", b"0.3333333333333333"]
TEXTS = [b"hello", b"x" * 50, b"\x00\x01\xfe", "mötley".encode(), b"1234567890"]
EXPIRY_ODD = [b"0", b"-1", b"-100", b"9223372036854775807", b"9223372036854775", b"-9223372036854775808", b"abc", b"1.5", b"", b"10 "]
PATTERNS = [b"*", b"a*", b"?", b"[a-c]", b"[^a]", b"key*", b"k\\ey*", b"[", b"[b-", b"a[", b"*b*", b"", b"\\", b"[a\\-c]", b"**", b"[]a]"]


class Asker:
    """Makes commands. Remembers whether a transaction is open."""

    def __init__(self, random, only):
        self.random = random
        self.multi = False
        self.next = None
        names = [name[4:] for name in dir(self) if name.startswith("ask_")]
        self.names = [name for name in names if not only or name in only]

    def pick(self, pool):
        return self.random.choice(pool)

    def chance(self, share):
        return self.random.random() < share

    def key(self):
        return self.pick(KEYS)

    def integer(self):
        return self.pick(ODD) if self.chance(0.15) else self.pick(INTEGERS)

    def float(self):
        return self.pick(ODD + INTEGERS) if self.chance(0.2) else self.pick(FLOATS)

    def value(self):
        return self.pick([self.integer, self.float, lambda: self.pick(TEXTS), lambda: self.pick(TEXTS)])()

    def expiry_of(self, option):
        if self.chance(0.1):
            return self.pick(EXPIRY_ODD)
        # Never the same twice: which of two equal times is later depends on when the commands came.
        at = {b"EX": 0, b"PX": 0, b"EXAT": 9_000_000_000, b"PXAT": 9_000_000_000_000}[option]
        return str(at + self.random.randrange(10**6, 10**9)).encode()

    def case(self, word):
        return word.lower() if self.chance(0.3) else word

    def command(self):
        if self.multi and self.chance(0.15):
            self.multi = False
            return [self.pick([b"EXEC", b"EXEC", b"EXEC", b"DISCARD"])]
        if self.next:
            words, self.next = self.next, None
            return words
        name = self.pick(self.names)
        while self.multi and name in NOT_QUEUED:
            name = self.pick(self.names)
        words = [name.encode().upper()] + list(getattr(self, "ask_" + name)())
        if self.chance(0.01) and name not in ("watch", "object"):
            words.append(self.pick(ODD + TEXTS + [b"NX", b"GET"]))
        elif self.chance(0.01) and len(words) > 1 and name != "object":
            words.pop(self.random.randrange(1, len(words)))
        if words == [b"MULTI"]:
            self.multi = True
        elif name == "exec" or words == [b"DISCARD"]:
            self.multi = False
        elif name == "watch" and len(words) == 2 and not self.multi:
            # Of one that is absent Quoin does not notice that it came and went.
            self.next = words
            return [b"SET", words[1], self.value()]
        return [self.case(words[0])] + words[1:]

    # Each returns the arguments of one command.

    def ask_get(self):
        return [self.key()]

    ask_getdel = ask_strlen = ask_incr = ask_decr = ask_type = ask_get
    ask_ttl = ask_pttl = ask_expiretime = ask_pexpiretime = ask_persist = ask_watch = ask_get

    def ask_set(self):
        words = [self.key(), self.value()]
        if self.chance(0.5):
            options = self.random.sample([b"NX", b"XX", b"GET", b"KEEPTTL", b"EX", b"PX", b"EXAT", b"PXAT"], self.pick([1, 1, 1, 2, 2, 3]))
            for option in options:
                words.append(self.case(option))
                if option in (b"EX", b"PX", b"EXAT", b"PXAT"):
                    words.append(self.expiry_of(option))
        return words

    def ask_setex(self):
        return [self.key(), self.expiry_of(b"EX"), self.value()]

    def ask_psetex(self):
        return [self.key(), self.expiry_of(b"PX"), self.value()]

    def ask_setnx(self):
        return [self.key(), self.value()]

    def ask_getset(self):
        return [self.key(), self.value()]

    def ask_getex(self):
        option = self.pick([None, b"EX", b"PX", b"EXAT", b"PXAT", b"PERSIST", b"KEEPTTL"])
        words = [self.key()]
        if option:
            words.append(self.case(option))
            if option not in (b"PERSIST", b"KEEPTTL"):
                words.append(self.expiry_of(option))
        return words

    def ask_mget(self):
        return [self.key() for _ in range(self.pick([1, 2, 5]))]

    ask_del = ask_unlink = ask_exists = ask_touch = ask_mget

    def ask_mset(self):
        return [word for _ in range(self.pick([1, 2, 3])) for word in (self.key(), self.value())]

    def ask_msetnx(self):
        return self.ask_mset()

    def ask_append(self):
        return [self.key(), self.value()]

    def ask_getrange(self):
        return [self.key(), self.integer(), self.integer()]

    def ask_substr(self):
        return self.ask_getrange()

    def ask_setrange(self):
        return [self.key(), self.pick([b"0", b"1", b"5", b"30", b"-1", b"abc", b"600000000"]), self.value()]

    def ask_incrby(self):
        return [self.key(), self.integer()]

    def ask_decrby(self):
        return [self.key(), self.integer()]

    def ask_incrbyfloat(self):
        return [self.key(), self.float()]

    def ask_rename(self):
        return [self.key(), self.key()]

    def ask_renamenx(self):
        return [self.key(), self.key()]

    def ask_copy(self):
        words = [self.key(), self.key()]
        if self.chance(0.3):
            words += [self.case(b"REPLACE")]
        if self.chance(0.2):
            words += [b"DB", self.pick([b"0", b"0", b"abc"])]
        return words

    def expire(self, option):
        words = [self.key(), self.expiry_of(option)]
        if self.chance(0.4):
            words += self.random.sample([b"NX", b"XX", b"GT", b"LT", b"YY"], self.pick([1, 1, 1, 2]))
        return words

    def ask_expire(self):
        return self.expire(b"EX")

    def ask_pexpire(self):
        return self.expire(b"PX")

    def ask_expireat(self):
        return self.expire(b"EXAT")

    def ask_pexpireat(self):
        return self.expire(b"PXAT")

    def ask_eval(self):
        return [self.script(), b"2", self.key(), self.key(), self.value(), self.value()]

    def script(self):
        """Statements of random commands, and a return of some of what they gave."""
        calls = [
            "redis.%s('get', KEYS[1])", "redis.%s('set', KEYS[2], ARGV[1])", "redis.%s('incr', KEYS[1])",
            "redis.%s('incrby', KEYS[2], %d)" , "redis.%s('append', KEYS[1], ARGV[2])", "redis.%s('strlen', KEYS[2])",
            "redis.%s('del', KEYS[1], KEYS[2])", "redis.%s('mget', KEYS[1], 'none', KEYS[2])", "redis.%s('exists', KEYS[1])",
            "redis.%s('set', KEYS[1], %d, 'nx', 'get')", "redis.%s('getrange', KEYS[2], 0, %d)", "redis.%s('type', KEYS[1])",
            "redis.%s('persist', KEYS[2])", "redis.%s('nope', 1)", "redis.%s('get')", "redis.%s('set', KEYS[1], %d / 8)",
            "redis.%s('hset', KEYS[1], 'f', ARGV[1], 'g', %d)", "redis.%s('hget', KEYS[1], 'f')", "redis.%s('hdel', KEYS[2], 'f', 'g')",
            "redis.%s('hincrby', KEYS[1], 'g', %d)", "redis.%s('hmget', KEYS[2], 'f', 'none')", "redis.%s('hlen', KEYS[1])",
            "redis.%s('set', KEYS[2], {})", "redis.%s('rename', KEYS[1], KEYS[2])", "redis.%s('ping')", "redis.%s('echo', ARGV[1])",
        ]
        values = ["nil", "true", "false", "%d", "%d / 3", "-%d / 7", "'text'", "{1, 2, nil, 4}", "{a = 1, 5}", "{ok = 'FINE'}",
                  "{err = 'MINE said'}", "{{}, {{%d}}}", "1e300", "redis.error_reply('OWN x')", "redis.status_reply('S')", "KEYS", "ARGV",
                  "#ARGV[1]", "cjson.encode({%d, 'x/\\n', true, {a = %d / 4}})", "cjson.decode('[1, {\"a\": [2]}, null]')[2].a",
                  "tostring(%d / 3)", "string.format('%%5.2f|%%s|%%q', %d, ARGV[2], 'q')", "('a,b,c'):find(',', 3)",
                  "{('key=value'):match('(%%w+)=(%%w+)')}", "{ARGV[1]:gsub('%%w', '<%%0>')}", "{ARGV[2]:gsub('.', {x = 'y', h = false})}",
                  "bit.bxor(%d, 255)", "bit.tohex(%d)", "{unpack({1, 2, 3}, 2)}", "select('#', unpack(ARGV))", "{tonumber(ARGV[1]) or 'none'}",
                  "table.concat({1, 2, 3}, '-')", "{pcall(error, 'x')}", "type(cjson.null)", "math.floor(-%d / 7)", "redis.sha1hex(ARGV[1])"]

        def filled(text, *words):
            numbers = text.replace("%%", "").count("%d")
            return text % (words + tuple(self.random.randrange(1000) for _ in range(numbers)))

        lines = []
        for at in range(self.pick([1, 2, 3])):
            # An error that a script does not catch undoes its writes here, and not in Redis: it comes first or not at all.
            call = filled(self.pick(calls), "call" if at == 0 and self.chance(0.5) else "pcall")
            lines.append("local v%d = %s" % (at, call))
        results = ["v%d" % self.random.randrange(len(lines)), filled(self.pick(values)), filled(self.pick(values))]
        self.random.shuffle(results)
        lines.append("return " + self.pick([results[0], "{%s}" % ", ".join(results)]))
        return "\n".join(lines).encode()

    def field(self):
        return self.pick(FIELDS)

    def ask_hset(self):
        return [self.key()] + [word for _ in range(self.pick([1, 1, 2, 4])) for word in (self.field(), self.value())]

    ask_hmset = ask_hset

    def ask_hsetnx(self):
        return [self.key(), self.field(), self.value()]

    def ask_hget(self):
        return [self.key(), self.field()]

    ask_hexists = ask_hstrlen = ask_hget

    def ask_hmget(self):
        return [self.key()] + [self.field() for _ in range(self.pick([1, 2, 4]))]

    ask_hdel = ask_hmget

    def ask_hgetall(self):
        return [self.key()]

    ask_hkeys = ask_hvals = ask_hlen = ask_hgetall

    def ask_hincrby(self):
        return [self.key(), self.field(), self.integer()]

    def ask_hincrbyfloat(self):
        return [self.key(), self.field(), self.float()]

    def ask_hrandfield(self):
        words = [self.key()]
        if self.chance(0.7):
            words.append(self.pick([b"0", b"1", b"2", b"100", b"-3", b"abc", b"-9223372036854775808"]))
            if self.chance(0.4):
                words.append(self.case(b"WITHVALUES"))
        return words

    def ask_hscan(self):
        words = [self.key(), b"0", b"COUNT", b"1000"]
        if self.chance(0.5):
            words += [b"MATCH", self.pick(PATTERNS + [b"f*", b"?"])]
        return words

    def ask_multi(self):
        return []

    ask_exec = ask_discard = ask_unwatch = ask_dbsize = ask_time = ask_multi

    def ask_keys(self):
        return [self.pick(PATTERNS)]

    def ask_scan(self):
        words = [b"0", b"COUNT", b"1000"]
        if self.chance(0.5):
            words += [b"MATCH", self.pick(PATTERNS)]
        if self.chance(0.3):
            words += [b"TYPE", self.pick([b"string", b"hash", b"list"])]
        return words

    def ask_ping(self):
        return self.pick([[], [self.pick(TEXTS)]])

    def ask_echo(self):
        return [self.pick(TEXTS)]

    def ask_select(self):
        return [self.pick([b"0", b"0", b"abc", b"-1"])]

    def ask_auth(self):
        return self.pick([[b"secret"], [b"default", b"secret"], [b"nobody", b"secret"]])

    def ask_object(self):
        return [self.pick([b"ENCODING", b"encoding", b"REFCOUNT"]), self.key()]


# ---- what is the same

TIMES = {b"TTL": 2, b"PTTL": 2000, b"EXPIRETIME": 2, b"PEXPIRETIME": 2000}


def near(ours, theirs):
    """Whether two floating-point numbers are the same but for their last digits."""
    try:
        return abs(float(ours) - float(theirs)) <= 1e-15 * abs(float(theirs)) + 1e-16
    except (TypeError, ValueError):
        return False


def pairs(flat):
    return sorted(zip(flat[::2], flat[1::2]))


def same(words, ours, theirs):
    name = words[0].upper()
    if isinstance(ours, Error) and name in (b"INCRBYFLOAT", b"HINCRBYFLOAT") and "21 digits" in ours:
        # Redis has numbers of any size.
        return True
    if isinstance(theirs, Error) or isinstance(ours, Error):
        if not (isinstance(theirs, Error) and isinstance(ours, Error)):
            return False
        return ours.split(" ")[0] == theirs.split(" ")[0]
    if name in (b"INCRBYFLOAT", b"HINCRBYFLOAT") and near(ours, theirs):
        return True
    if name == b"OBJECT" and ours is not None and theirs is not None:
        # Redis's answers depend on how a value came to be.
        return isinstance(ours, type(theirs))
    if name == b"TIME" and isinstance(ours, list) and isinstance(theirs, list):
        return abs(int(ours[0]) - int(theirs[0])) <= 2
    if name in TIMES and isinstance(ours, int) and isinstance(theirs, int) and theirs > 0:
        return abs(ours - theirs) <= TIMES[name]
    if name == b"KEYS" and isinstance(ours, list) and isinstance(theirs, list):
        return sorted(ours) == sorted(theirs)
    if name in (b"HKEYS", b"HVALS") and isinstance(ours, list) and isinstance(theirs, list):
        # Ours come in the order of the fields' names.
        return sorted(ours) == sorted(theirs)
    if name == b"HGETALL" and isinstance(ours, list) and isinstance(theirs, list):
        return pairs(ours) == pairs(theirs)
    if name == b"HSCAN" and isinstance(ours, list) and isinstance(theirs, list):
        return pairs(ours[1]) == pairs(theirs[1])
    if name == b"HRANDFIELD" and ours is not None and theirs is not None:
        # They are random: as many, of the same type.
        return type(ours) is type(theirs) and (not isinstance(ours, list) or len(ours) == len(theirs))
    if name == b"SCAN" and isinstance(ours, list) and isinstance(theirs, list):
        return sorted(ours[1]) == sorted(theirs[1])
    return ours == theirs


class Both:
    """The two servers, and what was asked since their keys were last the same for sure."""

    def __init__(self, ours, theirs):
        self.wires = [ours, theirs]
        self.history = []
        self.queued = []
        self.compared = 0
        # The two hold values that differ in their last digits: what is asked of them later need not be the same.
        self.apart = False

    def start_over(self):
        """Makes both empty, outside of a transaction."""
        for wire in self.wires:
            wire.ask([[b"DISCARD"], [b"UNWATCH"], [b"FLUSHALL"]])
        self.history, self.queued, self.apart = [], [], False

    def ask(self, commands):
        ours, theirs = (wire.ask(commands) for wire in self.wires)
        for words, our, their in zip(commands, ours, theirs):
            self.history.append((words, our, their))
            self.compared += 1
            if not self.apart and not self.same(words, our, their):
                return (words, our, their)
        return None

    def same(self, words, our, their):
        """Compares a reply; those of EXEC each as its command's."""
        if words[0].upper() == b"EXEC":
            queued, self.queued = self.queued, []
            if isinstance(our, list) and isinstance(their, list) and len(our) == len(their) == len(queued):
                for words, ours, theirs in zip(queued, our, their):
                    self.note(words, ours, theirs)
                    if not self.apart and not same(words, ours, theirs):
                        return False
                return True
        elif words[0].upper() == b"DISCARD":
            self.queued = []
        elif their == "+QUEUED":
            self.queued.append(words)
        self.note(words, our, their)
        return same(words, our, their)

    def note(self, words, our, their):
        if words[0].upper() in (b"INCRBYFLOAT", b"HINCRBYFLOAT") and our != their and same(words, our, their):
            self.apart = not (isinstance(our, Error) and isinstance(their, Error))


def redis_server(folder):
    """Starts redis-server on a free port of the loopback; returns the process and its port."""
    probe = socket.create_server(("127.0.0.1", 0))
    port = probe.getsockname()[1]
    probe.close()
    process = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
        stdout=subprocess.DEVNULL)
    for _ in range(100):
        try:
            Wire("127.0.0.1", port)
            return process, port
        except OSError:
            time.sleep(0.05)
    raise SystemExit("redis-server does not start")


def shown(reply):
    return repr(reply) if not isinstance(reply, Error) else f"-{reply}"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("address")
    arguments.add_argument("--commands", type=int, default=100_000)
    arguments.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments.add_argument("--only", default="")
    arguments.add_argument("--all", action="store_true", help="go on after a difference, and count them by command")
    arguments = arguments.parse_args()
    host, port = arguments.address.rsplit(":", 1)
    only = set(arguments.only.split(",")) - {""}
    differences = {}
    with tempfile.TemporaryDirectory() as folder:
        process, their_port = redis_server(folder)
        try:
            both = Both(Wire(host, int(port)), Wire("127.0.0.1", their_port))
            both.start_over()
            chooser = random.Random(arguments.seed)
            asker = Asker(chooser, only)
            while both.compared < arguments.commands:
                if both.apart or len(both.history) > 400 and not asker.multi:
                    asker.multi = False
                    both.start_over()
                difference = both.ask([asker.command() for _ in range(chooser.choice([1, 3, 10, 40]))])
                if difference is None:
                    continue
                words, our, their = difference
                if not arguments.all:
                    for line, mine, other in both.history[-400:]:
                        print(b" ".join(repr(word).encode()[1:] for word in line).decode(), "->", shown(mine), "|", shown(other))
                    print(f"seed {arguments.seed}: {words}: Quoin says {shown(our)}, Redis {shown(their)}")
                    return 1
                found = differences.setdefault(words[0].upper(), [])
                found.append((words, our, their))
                asker.multi = False
                both.start_over()
        finally:
            process.terminate()
            process.wait()
    for name, found in sorted(differences.items()):
        print(f"{name.decode()}: {len(found)}")
        for words, our, their in found[:12]:
            print("   ", words, "Quoin:", shown(our)[:200], "Redis:", shown(their)[:200])
    print(f"differential: seed {arguments.seed}, {both.compared} replies compared, {sum(map(len, differences.values()))} differ")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
