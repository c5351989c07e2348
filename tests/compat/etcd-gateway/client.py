"""etcd3gw on Quoin: keys, transactions, leases, locks and watches, as its users use them."""

import etcd3gw

from servers import quoin


def keys(client):
    """Keys and transactions."""
    assert client.put("k", "v1")
    assert client.get("k") == [b"v1"]
    value, meta = client.get("k", metadata=True)[0]
    assert (value, meta["version"]) == (b"v1", "1"), meta
    assert client.create("new", "1") and not client.create("new", "2")
    assert client.replace("k", "v1", "v2") and not client.replace("k", "v1", "v3")
    for number in range(3):
        client.put(f"p/{number}", str(number))
    assert [value for value, _ in client.get_prefix("p/")] == [b"0", b"1", b"2"]
    assert [value for value, _ in client.get_prefix("p/", sort_order="descend", sort_target="mod")] == [b"2", b"1", b"0"]
    assert len(client.get_all()) == 5
    assert client.delete("new") and not client.delete("new")
    assert client.delete_prefix("p/")
    assert client.get("p/0") == []
    client.put(b"\x00\xff", b"\xfe" * 1000)
    assert client.get(b"\x00\xff") == [b"\xfe" * 1000]


def leases(client):
    """Leases and locks."""
    lease = client.lease(ttl=60)
    client.put("leased", "v", lease=lease)
    assert 0 < lease.ttl() <= 60 and lease.refresh() == 60
    assert lease.keys() == [b"leased"]
    assert lease.revoke() and client.get("leased") == []
    with client.lock("lock", ttl=60) as held:
        assert held.is_acquired() and held.refresh() == 60
        assert not client.lock("lock", ttl=60).acquire()
    assert client.lock("lock", ttl=60).acquire()


def watches(client, other):
    """Watches, which etcd3gw reads chunk by chunk: each has one answer."""
    events, cancel = client.watch_prefix("w/")
    for number in range(50):
        other.put(f"w/{number}", str(number))
    other.delete("w/0")
    seen = [next(events) for _ in range(51)]
    cancel()
    assert [event["kv"]["value"] for event in seen[:50]] == [str(number).encode() for number in range(50)]
    assert (seen[50]["type"], seen[50]["kv"]["key"]) == ("DELETE", b"w/0")
    revision = int(seen[10]["kv"]["mod_revision"])
    again = client.watch_once("w/10", start_revision=revision)
    assert int(again["kv"]["mod_revision"]) == revision


def main():
    """Runs all of it."""
    with quoin() as (port, _, _):
        client, other = etcd3gw.client(port=port, timeout=60), etcd3gw.client(port=port, timeout=60)
        assert client.api_path == "/v3/"
        assert client.status()["version"] and len(client.members()) == 1
        keys(client)
        leases(client)
        watches(client, other)
    print("etcd3gw: all good")


if __name__ == "__main__":
    main()
