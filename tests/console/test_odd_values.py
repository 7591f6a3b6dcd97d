"""No value of any field that the page sends is answered with an error of the program, or reaches the log raw.

Method: for every field of every request, a request that is right but for that one value, which is each of the list in
turn.  A request that this table lacks, and a field of one, fails.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import pytest

from appliance.client import Admin, Producer
from appliance.client.cluster_client import Cluster
from appliance.config import load
from appliance.console.administration import KINDS, Act, ListQuery, TopicQuery
from appliance.console.application import ERROR_CHARACTERS_MAX, LoginForm, MessagePlace
from appliance.console.changes import NewMessage, NewOffsets
from appliance.console.console_process import make_console
from appliance.console.download import Download
from appliance.console.history import PointsQuery
from appliance.console.input_ledgers import LedgerQuery
from appliance.console.message_search import Query
from appliance.console.sql_queries import SqlQuery
from appliance.security.audit_log import Audit
from appliance.security.scram import encode_verifier, make_verifier
from appliance.zookeeper.ensemble import Ensemble

from ..support.long import LONG
from ..support.odd_values import JSON_VALUES, QUERIES
from ..support.server import Server
from ..support.zookeeper_fixture import ACCESS, fresh_connect

PASSWORD = "correct horse"
HEAD_BYTES_MAX = 32 * 1024
ACL = {"resource": "Topic", "name": "odd", "principal": "User:odd", "operation": "Read"}


class Right(NamedTuple):
    """A right request: ``kind`` has its fields, None: it has none that are declared."""

    kind: type[msgspec.Struct] | None
    fields: dict[str, Any]


GETS = {
    "/api/session": Right(None, {}),
    "/api/events": Right(None, {"topic": "odd", "group": "odd"}),
    "/api/messages": Right(Query, {"topics": "odd"}),
    "/api/message": Right(MessagePlace, {"topic": "odd", "partition": "0", "offset": "0"}),
    "/api/history": Right(PointsQuery, {"topic": "odd"}),
    "/api/download": Right(Download, {"topics": "odd"}),
    "/api/list": Right(ListQuery, {"what": "users"}),
    "/api/settings": Right(TopicQuery, {"topic": "odd"}),
    "/api/inputs": Right(None, {}),
    "/api/ledger": Right(LedgerQuery, {"input": "odd", "hours": "1"}),
}
POSTS = {
    "/api/login": Right(LoginForm, {"user": "odd", "password": PASSWORD}),
    "/api/logout": Right(None, {}),
    "/api/produce": Right(NewMessage, {"topic": "odd", "value": "x"}),
    "/api/offsets": Right(NewOffsets, {"group": "odd", "confirm": "odd", "topic": "odd", "to": "latest"}),
    "/api/act": Right(Act, {"verb": "create_role", "arguments": {"name": "odd"}}),
    "/api/sql": Right(SqlQuery, {"query": "select 1"}),
}
ACTS: dict[str, dict[str, Any]] = {
    "create_topic": {"name": "odd"},
    "alter_topic": {"name": "odd", "settings": {"retention.ms": "7d"}},
    "delete_topic": {"name": "nothing"},
    "undelete_topic": {"name": "nothing"},
    "trim": {"name": "odd", "to": "time", "time_ms": 0},
    "alter_group": {"group": "odd", "settings": {"consumer.session.timeout.ms": "60000"}},
    "delete_offsets": {"group": "nothing"},
    "put_user": {"name": "odd", "password": PASSWORD, "new": False},
    "alter_user": {"name": "odd", "locked": True},
    "delete_user": {"name": "nothing"},
    "create_role": {"name": "odd"},
    "alter_role": {"name": "odd", "grant": ["odd"], "revoke": ["odd"]},
    "delete_role": {"name": "nothing"},
    "add_acls": {"acls": [ACL]},
    "delete_acls": {"principal": "User:nothing"},
    "put_quota": {"user": "odd", "client_id": "odd", "limits": {"producer_byte_rate": 1e9}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, standalone: Ensemble) -> Iterator[Server]:
    settings = {"console.listen": "127.0.0.1:0", "zookeeper.connect": fresh_connect(standalone), **ACCESS}
    with Server(tmp_path_factory.mktemp("odd") / "data", **settings) as server:
        local = server.state["listeners"]["local"]
        with Admin(local) as admin, Producer(local) as producer, contextlib.closing(Cluster(local)) as cluster:
            admin.create_topic("odd")
            producer.send("odd", b'{"a": 1}', key=b"k").result()
            admin.commit("odd", {("odd", 0): 0})
            verifier = encode_verifier(make_verifier("SCRAM-SHA-256", PASSWORD.encode(), 4096))
            for user in ("root", "odd"):
                cluster.admin("put_user", {"name": user, "verifiers": {"SCRAM-SHA-256": verifier}, "new": True})
        yield server


class Page:
    """Asks as the page of somebody who is logged in does."""

    def __init__(self, server: Server) -> None:
        self._address = server.state["listeners"]["console"]
        self._headers: dict[str, str] = {"content-type": "application/json"}
        status, _, cookie = self._send("POST", "/api/login", json.dumps({"user": "root", "password": PASSWORD}))
        assert status == 200
        self._headers["cookie"] = cookie.partition(";")[0]
        self._headers["x-csrf-token"] = json.loads(self._send("GET", "/api/session")[1])["csrf"]

    def _send(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes, str]:
        connection = http.client.HTTPConnection(self._address, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body and body.encode(), headers=self._headers)
            answer = connection.getresponse()
            events = (answer.getheader("content-type") or "").startswith("text/event-stream")
            return answer.status, b"" if events else answer.read(), answer.getheader("set-cookie") or ""

    def ask(self, method: str, path: str, body: str | None = None) -> None:
        """The answer is one of success, or says what is wrong with the request."""
        status, text, _ = self._send(method, path, body)
        what = f"{method} {path[:300]} {body and body[:300]}: {status} {text[:500]!r}"
        too_many = path == "/api/login" and status == 503
        assert too_many or status in (200, 400, 401, 403, 404, 409, 413), what
        if status != 200 and len(path) < HEAD_BYTES_MAX:
            error = json.loads(text)["error"]
            assert 0 < len(error) <= ERROR_CHARACTERS_MAX and error.replace("\n", " ").isprintable(), what
            assert "Traceback" not in error, what


@pytest.fixture(scope="module")
def page(server: Server) -> Page:
    return Page(server)


def some(values: dict[str, Any], number: int) -> list[Any]:
    """Of the values, all with ``LONG=1``, else every third one."""
    step = 1 if LONG else 3
    return list(values.values())[number % step :: step]


def fields_of(right: Right) -> list[str]:
    return [one.encode_name for one in msgspec.structs.fields(right.kind)] if right.kind else list(right.fields)


@pytest.mark.parametrize("path", GETS)
def test_odd_values_in_an_address(page: Page, path: str) -> None:
    right = GETS[path]
    for number, field in enumerate([*fields_of(right), "unknown"]):
        for odd in some(QUERIES, number):
            given = {name: value for name, value in right.fields.items() if name != field} | {field: odd}
            page.ask("GET", f"{path}?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in given.items()))


def bodies(right: dict[str, Any], fields: list[str]) -> Iterator[str]:
    """JSON that is right but for one value, in the fields and, where these have some, one level below."""
    for number, field in enumerate([*fields, "unknown"]):
        for odd in some(JSON_VALUES, number):
            yield json.dumps({**right, field: "<odd>"}).replace('"<odd>"', odd)
            value = right.get(field)
            if isinstance(value, dict) and value:
                yield json.dumps({**right, field: {**value, next(iter(value)): "<odd>"}}).replace('"<odd>"', odd)
            if isinstance(value, list) and value:
                yield json.dumps({**right, field: ["<odd>"]}).replace('"<odd>"', odd)
    for odd in JSON_VALUES.values():
        yield odd


@pytest.mark.parametrize("path", POSTS)
def test_odd_values_in_a_body(page: Page, path: str) -> None:
    right = POSTS[path]
    for body in bodies(right.fields, fields_of(right)):
        if path == "/api/logout":
            body = '{"x": ' + body + "}"
            continue
        page.ask("POST", path, body)


@pytest.mark.parametrize("verb", KINDS)
def test_odd_values_in_a_change(page: Page, verb: str) -> None:
    right = ACTS[verb]
    typed = KINDS[verb].typed
    confirm = typed(msgspec.convert(right, KINDS[verb].arguments)) if typed else ""
    more = f'"confirm": {json.dumps(confirm)}'
    for arguments in bodies(right, [one.encode_name for one in msgspec.structs.fields(KINDS[verb].arguments)]):
        page.ask("POST", "/api/act", f'{{"verb": "{verb}", "arguments": {arguments}, {more}}}')


def test_every_rule_of_the_lists_is_one_that_the_page_has(page: Page) -> None:
    """Each field of an access rule, which is a list's."""
    for number, field in enumerate((*ACL, "pattern", "host", "permission")):
        for odd in some(JSON_VALUES, number):
            acl = json.dumps({**ACL, field: "<odd>"}).replace('"<odd>"', odd)
            page.ask("POST", "/api/act", f'{{"verb": "add_acls", "arguments": {{"acls": [{acl}]}}}}')


def test_every_request_is_among_them(tmp_path: Any) -> None:
    config = load(None, ["console.listen=127.0.0.1:1"])
    console = make_console(config, tmp_path, "127.0.0.1:1", Audit(lambda: 0), lambda: None)
    paths = {route.path for route in console.application().routes}  # type: ignore[attr-defined]
    assert {path for path in paths if path.startswith("/api/")} == GETS.keys() | POSTS.keys()
    assert ACTS.keys() == KINDS.keys()


def test_nothing_reached_the_log_raw(server: Server, page: Page) -> None:
    """After all of the above, in the order of the file; and here again, with what ends a line or colours it."""
    for odd in ("a\r\nrefused: who=x", "\x1b[31m", "\u202e", "\u2028x", "<odd>"):
        page.ask("POST", "/api/login", json.dumps({"user": odd, "password": odd}))
        page.ask("GET", f"/api/settings?topic={quote(odd)}")
        for verb, name in (("delete_user", "name"), ("delete_offsets", "group"), ("create_role", "name")):
            arguments = {"verb": verb, "arguments": {name: odd}, "confirm": odd}
            page.ask("POST", "/api/act", json.dumps(arguments))
    log = server.log()
    assert r'who="User:\u001b[31m"' in log, "shown, and escaped"
    assert [line for line in log.split("\n") if not line.isprintable()] == []
    assert "Traceback" not in log and "Task exception" not in log
