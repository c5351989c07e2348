"""Caches and sessions of web frameworks in Python, on the three replicas of a cluster whose addresses are the arguments."""

import sys

import django
import flask
import flask_session
import redis
from django.conf import settings

PORTS = [int(address.rsplit(":", 1)[1]) for address in sys.argv[1:]]
# It writes to the first, and reads from any of the others.
CACHE = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": [f"redis://127.0.0.1:{port}" for port in PORTS]}
settings.configure(
    CACHES={"default": CACHE},
    SESSION_ENGINE="django.contrib.sessions.backends.cache",
    INSTALLED_APPS=["django.contrib.sessions"],
    SECRET_KEY="compat",
)
django.setup()

# After `setup`, which they need.
from django.contrib.sessions.backends.cache import SessionStore  # noqa: E402
from django.core.cache import cache  # noqa: E402


def django_cache():
    for number in range(50):
        cache.set("number", number)
        assert cache.get("number") == number, "a replica answered from before the write"
    assert cache.add("new", 1) and not cache.add("new", 2) and cache.get("new") == 1
    assert cache.incr("new", 5) == 6 and cache.decr("new") == 5
    cache.set_many({"a": [1], "b": {"c": None}}, timeout=60)
    assert cache.get_many(["a", "b", "absent"]) == {"a": [1], "b": {"c": None}}
    assert cache.touch("a", 1000) and not cache.touch("absent")
    assert cache.get_or_set("computed", lambda: "once") == "once" and cache.has_key("computed")
    cache.set("gone", 1, timeout=0)
    assert cache.get("gone") is None
    cache.delete_many(["a", "b"])
    assert cache.get("a") is None and cache.delete("new") and not cache.delete("new")
    cache.clear()
    assert cache.get("number") is None


def django_sessions():
    session = SessionStore()
    session["user"] = 7
    session.create()
    key = session.session_key
    again = SessionStore(key)
    assert again["user"] == 7 and again.exists(key)
    again.cycle_key()
    assert SessionStore(again.session_key)["user"] == 7 and not SessionStore().exists(key)
    again.flush()
    assert SessionStore(again.session_key).get("user") is None


def flask_sessions():
    def app(port):
        made = flask.Flask("compat")
        made.config.update(SECRET_KEY="compat", SESSION_TYPE="redis", SESSION_REDIS=redis.Redis(port=port))
        flask_session.Session(made)

        @made.route("/count")
        def count():
            flask.session["count"] = flask.session.get("count", 0) + 1
            return str(flask.session["count"])

        @made.route("/end")
        def end():
            flask.session.clear()
            return "ended"

        return made.test_client()

    # One browser, whose requests reach all of them in turn.
    clients, cookie = [app(port) for port in PORTS], None
    for number in range(1, 10):
        client = clients[number % 3]
        if cookie:
            client.set_cookie("session", cookie)
        assert client.get("/count").text == str(number)
        cookie = cookie or client.get_cookie("session").value
    assert redis.Redis(port=PORTS[0]).ttl(f"session:{cookie}") > 0
    clients[0].set_cookie("session", cookie)
    assert clients[0].get("/end").text == "ended"
    assert not redis.Redis(port=PORTS[1]).exists(f"session:{cookie}")


for test in [django_cache, django_sessions, flask_sessions]:
    test()
    print("sessions:", test.__name__, "ok")
