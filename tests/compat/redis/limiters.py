"""Libraries that limit and lock by scripts, on the three replicas of a cluster whose addresses are the arguments."""

import sys

import redis
from limits import parse, storage, strategies
from pottery import Redlock

PORTS = [int(address.rsplit(":", 1)[1]) for address in sys.argv[1:]]


def limits():
    rate = parse("5/hour")
    limiters = []
    for port in PORTS:
        kept = storage.storage_from_string(f"redis://127.0.0.1:{port}")
        limiters.append((strategies.FixedWindowRateLimiter(kept), strategies.SlidingWindowCounterRateLimiter(kept)))
    for kind in range(2):
        # A limit counts what was asked of any replica.
        allowed = [limiters[number % 3][kind].hit(rate, "user", str(kind)) for number in range(8)]
        assert allowed == [True] * 5 + [False] * 3, (kind, allowed)


def redlock():
    # The replicas are one store: to the library, one master.
    locks = [Redlock(key="printer", masters={redis.Redis(port=port)}, auto_release_time=30) for port in PORTS]
    assert locks[0].acquire(blocking=False) and locks[0].locked()
    assert not locks[1].acquire(blocking=False)
    locks[0].extend()
    locks[0].release()
    assert locks[2].acquire(blocking=False)
    locks[2].release()


for test in [limits, redlock]:
    test()
    print("limiters:", test.__name__, "ok")
