"""The console's server, for real: who may see and change what, what is refused, what bounds it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.addresses import host_of, is_own_host
from appliance.catalog import FILE_NAME as CATALOG_FILE
from appliance.client import Producer
from appliance.client.cluster_client import Cluster
from appliance.config import load
from appliance.console import page_files
from appliance.console.application import LOGIN_BYTES_MAX
from appliance.console.console_process import make_console
from appliance.console.console_sessions import (
    ATTEMPTS_S,
    FAILURES_MAX,
    FAILURES_OF_ADDRESS_MAX,
    SESSIONS_MAX,
    Attempts,
    Sessions,
)
from appliance.console.live_events import STREAMS_OF_ONE_MAX
from appliance.console.observer import Poller
from appliance.console.web_server import CONNECTIONS_MAX
from appliance.errors import BadValue
from appliance.security import security_file
from appliance.security.audit_log import Audit
from appliance.security.scram import encode_verifier, make_verifier
from appliance.security.security_state import SecurityState

from ..support.server import Server, wait_for

Ask = Callable[..., tuple[int, Any]]
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An appliance with access rules: everybody reads ``open``, alice writes it, nobody else anything."""
    rights = {"security.authorizer": "acl", "security.super_users": "User:root"}
    page = {"console.listen": "127.0.0.1:0", "console.hosts": "logs.example.net", "console.anonymous": True}
    settings = {**page, **rights, "console.masks": "masked*: card", "console.decode": "masked-packed: msgpack"}
    with Server(tmp_path_factory.mktemp("console") / "data", **settings) as server:
        local = server.state["listeners"]["local"]
        with contextlib.closing(Cluster(local)) as cluster:
            for name in ("open", "secret", "masked", "masked-packed"):
                cluster.admin("create_topic", {"name": name})
            for user, password in (("alice", b"right"), ("bob", b"other")):
                verifier = encode_verifier(make_verifier("SCRAM-SHA-256", password, 4096))
                cluster.admin("put_user", {"name": user, "verifiers": {"SCRAM-SHA-256": verifier}, "new": True})
            rules = [("User:*", "Read"), ("User:*", "Describe"), ("User:alice", "Write")]
            acls = [{"resource": "Topic", "name": "open", "principal": who, "operation": what} for who, what in rules]
            masked = {"resource": "Topic", "name": "masked", "pattern": "Prefixed"}
            acls.append({**masked, "principal": "User:bob", "operation": "Read"})
            cluster.admin("add_acls", {"acls": acls})
        with Producer(local) as producer:
            producer.send("open", b"hello", key=b"k").result()
            producer.send("secret", b"hidden").result()
        yield server


@pytest.fixture
def ask(server: Server) -> Ask:
    return asker(server)


def asker(server: Server) -> Ask:
    """Makes requests, with a cookie as a browser has it."""
    cookie = ""

    def ask(path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        nonlocal cookie
        connection = http.client.HTTPConnection(server.state["listeners"]["console"], timeout=60)
        given = {name.replace("_", "-"): value for name, value in headers.items()} | (
            {"cookie": cookie} if cookie else {}
        )
        if body is None:
            connection.request("GET", path, headers=given)
        else:
            connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), JSON | given)
        with contextlib.closing(connection):
            answer = connection.getresponse()
            if found := answer.getheader("set-cookie"):
                assert "HttpOnly" in found and "SameSite=strict" in found
                cookie = found.partition(";")[0]
            text = answer.read()
            assert "default-src 'none'" in (answer.getheader("content-security-policy") or "")
            return answer.status, json.loads(text) if (answer.getheader("content-type") or "").endswith(
                "json"
            ) else text

    return ask


def log_in(ask: Ask, user: str, password: str) -> dict[str, str]:
    """Log in; returns the header that changes need."""
    assert ask("/api/login", {"user": user, "password": password})[0] == 200
    return {"x_csrf_token": ask("/api/session")[1]["csrf"]}


def first_event(server: Server) -> dict[str, Any]:
    connection = http.client.HTTPConnection(server.state["listeners"]["console"], timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/api/events?topic=secret")
        line = connection.getresponse().readline()
    event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    return event


def test_somebody_unknown_sees_what_everybody_may_see(server: Server, ask: Ask) -> None:
    status, found = ask("/api/messages?topics=open")
    assert status == 200 and found["messages"][0]["value"] == {"text": "hello", "bytes": 5}
    assert ask("/api/messages?topics=secret")[0] == 403
    everything = ask("/api/messages?topics=*")[1]["messages"]
    assert {message["topic"] for message in everything} == {"open"}, "a pattern stands for what may be read"
    for topics in (
        "open,secret",
        "*&cursor=n,secret:0-99",
        "secret&cursor=n,secret:0-99",
        "*&cursor=o,open:0-0,secret:0-0",
    ):
        assert ask(f"/api/messages?topics={topics}")[0] == ask(f"/api/download?topics={topics}")[0] == 403, topics
    assert ask("/api/messages?topics=s*")[0] == 400, "no topic that may be read"
    assert ask("/api/history?topic=open")[1].keys() == {"at_ms", "bytes_per_s", "messages_per_s"}
    assert ask("/api/history?topic=secret")[0] == ask("/api/history?group=reports")[0] == 403
    seen = first_event(server)["set"]
    assert list(seen["topics"]) == ["open"]
    assert seen.keys() == {"topics"}, "no partitions of a topic that may not be seen, no state, no alerts"


def test_a_change_needs_login_right_and_token(server: Server, ask: Ask) -> None:
    wanted = {"topic": "open", "value": "from the console"}
    assert ask("/api/produce", wanted) == (401, {"error": "the console is read-only until you log in"})
    token = log_in(ask, "alice", "right")
    assert ask("/api/produce", wanted)[0] == 401, "a login without the token of the page"
    assert ask("/api/produce", wanted, x_csrf_token="wrong")[0] == 401
    status, sent = ask("/api/produce", wanted, **token)
    assert status == 200
    found = ask(f"/api/message?topic=open&partition=0&offset={sent['offset']}")[1]
    assert found["value"]["text"] == "from the console"
    assert ask("/api/produce", {"topic": "secret", "value": "x"}, **token)[0] == 403
    assert ask("/api/produce", {"topic": "mistyped", "value": "x"}, **token)[0] in (403, 404)
    wait_for(lambda: "changed: who=User:alice" in server.log(), "a line of the audit log")
    assert ask("/api/logout", {}, **token)[0] == 200
    assert ask("/api/produce", wanted, **token)[0] == 401
    other = asker(server)
    as_bob = log_in(other, "bob", "other")
    assert other("/api/produce", wanted, **as_bob)[0] == 403
    moved = {"group": "g", "confirm": "g", "topic": "open", "to": "latest"}
    assert other("/api/offsets", moved, **as_bob)[0] == 403
    for what in ('"produce open"', '"move offsets g"'):
        wait_for(lambda what=what: f"what={what}" in server.log(), "what was refused in the audit log")  # type: ignore[misc]


def test_a_file_is_for_who_may_read_and_has_nothing_that_is_masked(server: Server, ask: Ask) -> None:
    with Producer(server.state["listeners"]["local"]) as producer:
        producer.send("masked", b'{"card": "4111", "id": 7}').result()
        producer.send("masked-packed", msgspec.msgpack.encode({"card": "4111", "id": 7})).result()
    assert ask("/api/download?topics=masked")[0] == 403
    log_in(ask, "bob", "other")
    assert ask("/api/download?topics=secret")[0] == 403
    for wrong in ("topic=masked&format=xml", "topic=masked&follow=true&order=oldest", "topic=../x"):
        assert ask(f"/api/download?{wrong}")[0] == 400
    status, text = ask("/api/download?topics=masked&format=csv")
    assert status == 200 and text.splitlines()[0] == b"topic,partition,offset,timestamp,key,value,headers"
    status, text = ask("/api/download?topics=masked&order=oldest")
    row = json.loads(text)
    assert status == 200 and row["value"] == '{"card":"***","id":7}'
    assert ask("/api/messages?topics=masked")[1]["messages"][0]["value"]["text"] == '{"card":"***","id":7}'
    one = f"/api/message?topic=masked&partition=0&offset={row['offset']}"
    assert ask(one)[1]["value"]["text"] == '{"card":"***","id":7}'
    assert ask("/api/messages?topics=masked&text=4111")[1]["messages"] == []
    (packed,) = ask("/api/messages?topics=masked-packed&field=id%3D7")[1]["messages"]
    assert packed["value"]["text"] == '{"card":"***","id":7}', "decoded, then masked, then searched"
    line = "what=console topic=masked download=csv masked=card"
    wait_for(lambda: line in server.log(), "the audit log to have the file, and what was masked")


def test_who_reads_what_is_in_the_audit_log(server: Server, ask: Ask) -> None:
    log_in(ask, "bob", "other")
    for _ in range(5):
        assert ask("/api/messages?topics=open")[0] == 200
    assert ask("/api/messages?topics=secret")[0] == 403
    wait_for(lambda: "read: who=User:bob from=127.0.0.1:" in server.log(), "a line")
    refused = "refused: reason=denied who=User:bob from=127.0.0.1:"
    wait_for(lambda: any(refused in line and '"read secret"' in line for line in server.log().splitlines()), "it, too")
    lines = [
        line
        for line in server.log().splitlines()
        if "who=User:bob" in line and "topic=open" in line and "again=" not in line
    ]
    assert len(lines) == 1 and lines[0].endswith("what=console topic=open")


def test_a_wrong_password_and_an_unknown_user_get_one_answer(server: Server) -> None:
    answers = {
        json.dumps(asker(server)("/api/login", {"user": user, "password": "no"})) for user in ("alice", "nobody")
    }
    assert answers == {json.dumps((401, {"error": "wrong password or unknown user"}))}


def test_another_password_ends_the_sessions(server: Server, ask: Ask) -> None:
    log_in(ask, "bob", "other")
    with contextlib.closing(Cluster(server.state["listeners"]["local"])) as cluster:
        verifier = encode_verifier(make_verifier("SCRAM-SHA-256", b"other", 4096))
        cluster.admin("put_user", {"name": "bob", "verifiers": {"SCRAM-SHA-256": verifier}, "new": False})
    wait_for(lambda: ask("/api/session")[1]["user"] is None, "the end of the session")


@pytest.mark.parametrize(
    ("host", "status"),
    [("evil.example", 421), ("localhost:1", 200), ("[::1]:1", 200), ("logs.example.net", 200), ("a b", 421), ("", 421)],
)
def test_names_that_somebody_else_can_point_here_are_refused(ask: Ask, host: str, status: int) -> None:
    assert ask("/api/session", host=host)[0] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"content_type": "text/plain"}, 415),
    ],
)
def test_requests_of_other_pages_are_refused(ask: Ask, headers: dict[str, str], status: int) -> None:
    assert ask("/api/login", {"user": "alice", "password": "right"}, **headers)[0] == status


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/messages", 400),
        ("/api/messages?topics=..%2Fx", 400),
        ("/api/messages?topics=open,", 400),
        ("/api/messages?topic=open", 400),
        ("/api/history", 400),
        ("/api/history?topic=open&group=g", 400),
        ("/api/history?topic=*", 400),
        ("/api/messages?topics=open&limit=1000", 400),
        ("/api/messages?topics=open&wrong=1", 400),
        ("/api/messages?topics=open&partition=7", 404),
        ("/api/message?topic=open&partition=0&offset=1", 404),
        ("/nothing", 404),
        ("/../../etc/passwd", 404),
        ("/api/login", 404),
    ],
)
def test_wrong_requests_are_answered(ask: Ask, path: str, status: int) -> None:
    assert ask(path)[0] == status


def test_what_is_nested_too_deeply_is_refused(ask: Ask) -> None:
    token = log_in(ask, "alice", "right")
    deep = b'{"verb": "create_topic", "arguments": %s%s}' % (b"[" * 500_000, b"]" * 500_000)
    assert ask("/api/act", deep, **token) == (400, {"error": "the request is nested too deeply"})


def test_what_is_too_large_is_refused(server: Server, ask: Ask) -> None:
    assert ask("/api/login", {"user": "x" * LOGIN_BYTES_MAX, "password": "x"})[0] == 413
    almost = {"user": "x" * (LOGIN_BYTES_MAX - 100), "password": "x"}
    assert ask("/api/login", almost)[0] == 401, "one that is not too large"
    token = log_in(ask, "alice", "right")
    assert ask("/api/produce", {"topic": "open", "value": "x" * 3_000_000}, **token)[0] == 413
    host, _, port = server.state["listeners"]["console"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nEndless: " + b"x" * 300_000)
        assert sock.recv(4096).startswith(b"HTTP/1.1 400")


def test_answers_on_one_connection_do_not_wait_for_each_other(server: Server) -> None:
    """With Nagle's algorithm each answer after the first would wait 40 ms for an acknowledgement, so none comes sooner.

    Without it most come sooner, and on a busy machine some.
    """
    connection = http.client.HTTPConnection(server.state["listeners"]["console"], timeout=60)

    def answer_s() -> float:
        begun_s = time.perf_counter()
        connection.request("GET", "/console.css")
        connection.getresponse().read()
        return time.perf_counter() - begun_s

    with contextlib.closing(connection):
        answer_s()
        assert any(answer_s() < 0.035 for _ in range(200))


def test_an_open_page_does_not_delay_the_stop(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"console.listen": "127.0.0.1:0"})
    host, _, port = server.state["listeners"]["console"].rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in sock.recv(4096)
        assert server.stop() == 0
    assert "did not stop in time" not in server.log()


def console_socket(server: Server) -> socket.socket:
    host, _, port = server.state["listeners"]["console"].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def stream(server: Server, cookie: str = "") -> tuple[socket.socket, bytes]:
    """An open page, and the first line of the answer."""
    sock = console_socket(server)
    sock.sendall(f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
    return sock, sock.recv(4096).partition(b"\r\n")[0]


def cookie_of(server: Server, user: str, password: str) -> str:
    """Log in; returns the cookie."""
    connection = http.client.HTTPConnection(server.state["listeners"]["console"], timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/api/login", json.dumps({"user": user, "password": password}), JSON)
        return (connection.getresponse().getheader("set-cookie") or "").partition(";")[0]


def test_idle_connections_keep_nobody_out(server: Server, ask: Ask) -> None:
    """They give way to those who come; a connection of somebody who is logged in stays."""
    cookie = cookie_of(server, "alice", "right")
    with contextlib.ExitStack() as stack:
        own = http.client.HTTPConnection(server.state["listeners"]["console"], timeout=60)
        stack.callback(own.close)
        own.request("GET", "/api/messages?topics=open", headers={"cookie": cookie})
        assert own.getresponse().read()
        mine = own.sock
        for _ in range(2 * CONNECTIONS_MAX):
            stack.enter_context(console_socket(server))
        for _ in range(5):
            assert ask("/api/session")[0] == 200
        own.request("GET", "/api/session", headers={"cookie": cookie})
        assert json.loads(own.getresponse().read())["user"] == "alice" and own.sock is mine, "it was closed meanwhile"


def test_pages_without_a_login_leave_places_to_those_with_one(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        statuses = []
        for _ in range(STREAMS_OF_ONE_MAX + 1):
            sock, status = stream(server)
            stack.enter_context(sock)
            statuses.append(status)
        assert statuses[:-1] == [b"HTTP/1.1 200 OK"] * STREAMS_OF_ONE_MAX, statuses
        assert statuses[-1] == b"HTTP/1.1 503 Service Unavailable"
        own, status = stream(server, cookie_of(server, "alice", "right"))
        stack.enter_context(own)
        assert status == b"HTTP/1.1 200 OK"

    def given_back() -> bool:
        sock, status = stream(server)
        sock.close()
        return status == b"HTTP/1.1 200 OK"

    wait_for(given_back, "the places of closed pages")


def test_who_guesses_keeps_nobody_else_out(server: Server, ask: Ask) -> None:
    """Many at once, and more than are counted: other users, and who was here before, get in meanwhile."""
    log_in(asker(server), "alice", "right")
    with ThreadPoolExecutor(20) as pool:
        guesses = [
            pool.submit(asker(server), "/api/login", {"user": f"user{number % 4}", "password": "guess"})
            for number in range(3 * FAILURES_OF_ADDRESS_MAX)
        ]
        log_in(asker(server), "alice", "right")
        statuses = Counter(guess.result()[0] for guess in guesses)
    assert statuses[401] and statuses[503] and not statuses[200], statuses
    log_in(ask, "alice", "right")
    for _ in range(FAILURES_OF_ADDRESS_MAX + 1):
        log_in(asker(server), "alice", "right")


# ---- parts without a process


@pytest.mark.parametrize(
    ("settings", "users", "address", "open_to_all"),
    [
        ([], False, "127.0.0.1:1", True),
        ([], True, "127.0.0.1:1", False),
        (["console.hosts=logs.example.net"], False, "127.0.0.1:1", False),
        (["console.proxies=10.0.0.7"], False, "127.0.0.1:1", False),
        (["kafka.listen=127.0.0.1:1,SASL_PLAINTEXT://127.0.0.1:2"], False, "127.0.0.1:1", False),
        (["native.listen=SASL_SSL://0.0.0.0:2", "tls.certificate=c", "tls.key=k"], False, "127.0.0.1:1", False),
        (["kafka.listen=SSL://127.0.0.1:2", "tls.certificate=c", "tls.key=k"], False, "127.0.0.1:1", True),
        (
            ["kafka.listen=SSL://:2", "tls.certificate=c", "tls.key=k", "tls.ca=a", "tls.client_auth=required"],
            *(False, "127.0.0.1:1", False),
        ),
        ([], False, "10.0.0.1:1", False),
        (["console.anonymous=true", "console.hosts=a", "console.proxies=10.0.0.7"], True, "127.0.0.1:1", True),
        (["console.anonymous=true", "kafka.listen=SASL_PLAINTEXT://127.0.0.1:2"], True, "[::1]:1", True),
        (["console.anonymous=true"], True, "10.0.0.1:1", False),
    ],
)
def test_where_clients_have_to_log_in_so_do_visitors(
    settings: list[str], users: bool, address: str, open_to_all: bool, tmp_path: Path
) -> None:
    given = [setting.replace("SSL://:2", "SSL://127.0.0.1:2") for setting in settings]
    if users:
        verifiers = {"SCRAM-SHA-256": make_verifier("SCRAM-SHA-256", b"x", 4096)}
        security_file.store(tmp_path / security_file.FILE_NAME, SecurityState(users={"alice": verifiers}))
    console = make_console(load(None, given), tmp_path, address, Audit(lambda: 0), lambda: None)
    visitor = console._visitors.find("", "127.0.0.1:5")
    assert (visitor is not None) == open_to_all


def test_proxies_are_addresses() -> None:
    for wrong in ("localhost", "10.0.0.07", "10.0.0.1/8", "10.0.0.0/8,x"):
        with pytest.raises(BadValue, match=r"console\.proxies"):
            load(None, [f"console.proxies={wrong}"])


def test_an_address_for_other_hosts_needs_consent() -> None:
    for table in ("console", "metrics"):
        given = f"{table}.listen=0.0.0.0:1"
        with pytest.raises(BadValue, match=rf"{table}\.listen = 0\.0\.0\.0:1: other hosts reach this address"):
            load(None, [given])
        assert load(None, [given, "security.allow_insecure=true"]).value(f"{table}.listen") == "0.0.0.0:1"


def test_hosts() -> None:
    assert host_of("[::1]:80") == "::1" and host_of("Name.:80") == "name" and host_of("a/b") == ""
    assert is_own_host("10.0.0.1", ()) and not is_own_host("name", ()) and is_own_host("name", {"name"})


def test_sessions_end_and_are_bounded() -> None:
    now_s = 0.0
    sessions = Sessions(lambda: now_s, lifetime_s=10)
    token, session = sessions.begin("alice", {})
    assert sessions.find(token, lambda _: {}) is session
    assert sessions.find("other", lambda _: {}) is None
    now_s = 10.0
    assert sessions.find(token, lambda _: {}) is None
    for _ in range(SESSIONS_MAX + 5):
        sessions.begin("alice", {})
    assert len(sessions) == SESSIONS_MAX


def test_failed_logins_are_bounded_by_user_and_address() -> None:
    """Who guesses a password keeps neither other users out, nor the same user elsewhere, nor who was there before."""
    now_s = 0.0
    attempts = Attempts(lambda: now_s)
    attempts.succeeded("bob", "10.0.0.1")
    for _ in range(FAILURES_MAX):
        assert attempts.wait_s("alice", "10.0.0.1") == 0.0
        attempts.failed("alice", "10.0.0.1")
    assert attempts.wait_s("alice", "10.0.0.1") == ATTEMPTS_S
    assert attempts.wait_s("carol", "10.0.0.1") == attempts.wait_s("alice", "10.0.0.2") == 0.0
    for number in range(FAILURES_OF_ADDRESS_MAX - FAILURES_MAX):
        attempts.failed(f"user{number}", "10.0.0.1")
    assert attempts.wait_s("carol", "10.0.0.1") == ATTEMPTS_S
    assert attempts.wait_s("bob", "10.0.0.1") == 0.0, "who has logged in there before"
    now_s = ATTEMPTS_S
    assert attempts.wait_s("alice", "10.0.0.1") == 0.0


def test_a_host_has_one_count_for_all_its_addresses() -> None:
    """Of IPv6 it may have 2 ** 64."""
    attempts = Attempts(lambda: 0.0)
    for number in range(FAILURES_MAX):
        attempts.failed("alice", f"2001:db8::{number}")
    assert attempts.wait_s("alice", "2001:db8::abc") == ATTEMPTS_S
    assert attempts.wait_s("alice", "2001:db8:0:1::abc") == 0.0


def test_successes_are_not_counted() -> None:
    attempts = Attempts(lambda: 0.0)
    for _ in range(FAILURES_OF_ADDRESS_MAX + 1):
        assert attempts.wait_s("alice", "10.0.0.1") == 0.0
        attempts.succeeded("alice", "10.0.0.1")


def test_a_snapshot_has_the_rows_the_coordinator_would_send(server: Server) -> None:
    """Topics and partitions are read from shared memory and files; a partition that is trimmed counts what is left."""
    with contextlib.closing(Cluster(server.state["listeners"]["local"])) as cluster:
        cluster.admin("create_topic", {"name": "trimmed", "partitions": 1})
        with Producer(server.state["listeners"]["local"]) as producer:
            offsets = [producer.send("trimmed", b"x" * 100).result(60).offset for _ in range(5)]
        cluster.admin("delete_records", {"name": "trimmed", "partition": 0, "offset": offsets[2]})
        look = Poller(server.data_dir, 0, time.monotonic, time.time)

        def agrees() -> bool:
            asked = {topic["name"]: topic for topic in cluster.admin("topics", {})}
            snapshot = look.take(look.look(), [])
            assert snapshot.topics.keys() == asked.keys()
            for name, topic in asked.items():
                assert snapshot.topics[name].own == topic["own"]
                if msgspec.to_builtins(snapshot.partitions.rows(name)) != topic["partitions"]:
                    return False
            return snapshot.partitions.rows("trimmed")[0].messages == 3

        wait_for(agrees, "the same rows from both")

        def polls_agree() -> bool:
            before, after = (look.take(look.look(), []) for _ in range(2))
            return all(after.topics[name] is before.topics.get(name) for name in after.topics)

        wait_for(polls_agree, "two polls in which nothing changed have the same objects, not twice the memory")
        look.close()


def test_a_catalog_that_cannot_be_read_ends_no_polls(server: Server, tmp_path: Path) -> None:
    """They would not begin again when it can: pages would stand still without a word."""
    catalog = tmp_path / CATALOG_FILE
    whole = (server.data_dir / CATALOG_FILE).read_bytes()
    catalog.write_bytes(whole)
    with contextlib.closing(Poller(tmp_path, 0, time.monotonic, time.time)) as poller:
        before = poller.take(poller.look(), [])
        catalog.write_bytes(b"{")
        damaged = poller.take(poller.look(), [])
        assert before.topics and damaged.topics is before.topics
        catalog.write_bytes(whole)
        assert poller.take(poller.look(), []).topics.keys() == before.topics.keys()


def test_the_page_can_be_installed_without_a_build() -> None:
    """Every file that the page names is one of it."""
    page = Path(page_files.__file__).parent / "page"
    for file in page.iterdir():
        for name in re.findall(r"""(?:href|src)="([\w.]+)"|from "\./([\w.]+)\"""", file.read_text()):
            assert (page / (name[0] or name[1])).exists(), f"{file.name}: {name}"
