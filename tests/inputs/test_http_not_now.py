"""What cannot be taken now is told so in each protocol, with the time after which it is to come again."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from appliance.client import Admin
from appliance.inputs.bodies import CROWDED, RETRY_AFTER_S
from appliance.inputs.http import ANSWER_MS_MAX
from appliance.inputs.http_connection import LOBBY_MAX
from appliance.web.server import ACCEPT_PAUSE_S

from ..support.server import stopped, wait_for
from ..support.small_machine import fill, small_machine
from ..support.sockets import CLOSE_WAIT, ESTABLISHED, tcp_sockets
from .http_box import Box, Reply, box, reply_of

JSON = "application/json"
TEXT = "a line"


class Protocol(NamedTuple):
    path: str
    content_type: str
    body: Any
    taken: int


PROTOCOLS = {
    "lines": Protocol("/", "text/plain", TEXT, 200),
    "ndjson": Protocol("/", "application/x-ndjson", '{"text":"a line"}\n', 200),
    "otlp": Protocol(
        "/v1/logs",
        JSON,
        {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": TEXT}}]}]}]},
        200,
    ),
    "loki": Protocol("/loki/api/v1/push", JSON, {"streams": [{"stream": {"app": "x"}, "values": [["1", TEXT]]}]}, 204),
    "bulk": Protocol("/_bulk", "application/x-ndjson", '{"create":{}}\n{"text":"a line"}\n', 200),
}


def send(web: Box, protocol: Protocol, name: str = "web") -> Reply:
    body = protocol.body if isinstance(protocol.body, str) else msgspec.json.encode(protocol.body)
    return web.send(name, body, protocol.path, content_type=protocol.content_type)


def assert_told(reply: Reply, protocol: Protocol, reason: str) -> None:
    """503 and a time; of a bulk request, as by Elasticsearch, 429 for each item."""
    assert reason in reply.text
    if protocol.path == "/_bulk":
        (item,) = msgspec.json.decode(reply.body)["items"]
        assert (reply.status, item["create"]["status"]) == (200, 429)
    else:
        assert (reply.status, reply.headers.get("retry-after")) == (503, str(RETRY_AFTER_S[503]))


def is_taken(reply: Reply, protocol: Protocol) -> bool:
    return reply.status == protocol.taken and b'"errors":true' not in reply.body


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    tables = "".join(
        f'[inputs.{name}]\ntype = "http"\nlisten = ["127.0.0.1:0"]\ntopic = "{name}"\n{more}\n'
        for name, more in {"few": "connections_max = 4", **{kind: "" for kind in PROTOCOLS}}.items()
    )
    with box(tmp_path_factory.mktemp("http"), tables, **{"topics.auto_create": False}) as found:
        with Admin(found.server.native) as admin:
            admin.create_topic("few")
        yield found
        assert "Traceback" not in found.server.log()


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_without_a_topic(web: Box, kind: str) -> None:
    protocol = PROTOCOLS[kind]
    assert_told(send(web, protocol, kind), protocol, f"there is no topic '{kind}'")
    wait_for(lambda: f"no topic '{kind}'" in web.row(kind)["trouble"], "the trouble to be shown")
    assert web.row(kind)["refused"] == 0, "it comes again"
    with Admin(web.server.native) as admin:
        admin.create_topic(kind)
    assert is_taken(send(web, protocol, kind), protocol)
    assert len(web.values(kind)) == 1
    wait_for(lambda: not web.row(kind)["trouble"], "the trouble to be over")


def test_while_the_disk_is_full(tmp_path: Path) -> None:
    settings = {"inputs.web.type": "http", "inputs.web.listen": "127.0.0.1:0", "inputs.web.topic": "web"}
    with (
        small_machine(tmp_path) as machine,
        machine.server(tmp_path / "log", **settings, **{"disk.check_ms": 100}) as server,
    ):
        web = Box(server)
        assert send(web, PROTOCOLS["lines"]).status == 200
        fill(machine.path / "filler")
        wait_for(lambda: send(web, PROTOCOLS["lines"]).status == 503, "the disk to be full")
        for protocol in PROTOCOLS.values():
            assert_told(send(web, protocol), protocol, "disk")
        before = len(web.values("web"))
        (machine.path / "filler").unlink()
        for protocol in PROTOCOLS.values():
            wait_for(lambda protocol=protocol: is_taken(send(web, protocol), protocol), "room again")
        assert len(web.values("web")) >= before + len(PROTOCOLS)


def test_while_all_connections_wait_for_their_answers(web: Box) -> None:
    """None of them gives way: each was read whole.  Those beyond the lobby are closed, with the words if possible."""
    assert web.send("few", "first").status == 200
    replies: list[Reply] = []

    def send_until_it_is_taken() -> None:
        while (reply := web.send("few", "x")).status != 200:
            assert CROWDED in reply.text, "who has not sent its body yet gives way"
        replies.append(reply)

    wait_for(lambda: "few" in {row["topic"] for row in web.server.processes("writer")}, "the new writer to be shown")
    supervisor = next(row["pid"] for row in web.server.processes("supervisor"))
    threads = [threading.Thread(target=send_until_it_is_taken) for _ in range(4)]
    with contextlib.ExitStack() as held:  # else it would replace a writer that stands still
        for process in (supervisor, *web.server.pids("writer")):
            held.enter_context(stopped(process))
        for thread in threads:
            thread.start()
        begun_s = time.monotonic()
        wait_for(lambda: _is_refused(web), "a connection without a place to be told")
        crowd = [
            held.enter_context(contextlib.closing(http.client.HTTPConnection(*web.address("few"))))
            for _ in range(2 * LOBBY_MAX)
        ]
        for connection in crowd:
            with contextlib.suppress(OSError):
                connection.request("POST", "/", b"y")
        statuses: list[int] = []
        for connection in crowd:
            with contextlib.suppress(OSError, http.client.HTTPException):
                reply = reply_of(connection)
                assert CROWDED in reply.text
                statuses.append(reply.status)
        assert set(statuses) == {503}
        assert time.monotonic() - begun_s < ANSWER_MS_MAX / 1000
        assert not replies
    for thread in threads:
        thread.join()
    assert [reply.status for reply in replies] == [200] * 4
    assert CROWDED in web.server.log()
    assert web.send("few", "after").status == 200
    values = web.values("few")
    assert values.count(b"x") >= 4, "who gives way may send again what was taken"
    assert b"y" not in values


def _is_refused(web: Box) -> bool:
    """Whether all places are taken by now; else this one is not taken for logs."""
    reply = web.send("few", path="/v1/logs", method="GET")
    return reply.status == 503 and CROWDED in reply.text


def test_who_gives_way_in_the_middle_of_a_request_hears_why(web: Box) -> None:
    with contextlib.ExitStack() as held:
        crowd = [held.enter_context(socket.create_connection(web.address("few"), 60)) for _ in range(4)]
        for sock in crowd:
            sock.sendall(b"POST / HTTP/1.1\r\nhost: x\r\n")
        assert web.send("few", "one more").status == 200
        answer = b""
        with contextlib.suppress(ConnectionError):
            while data := crowd[0].recv(65536):
                answer += data
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: %d\r\n" % RETRY_AFTER_S[503] in answer
        assert answer.endswith(CROWDED.encode() + b"\n")
        crowd[3].sendall(b"content-length: 1\r\n\r\nz")
        assert crowd[3].recv(65536).startswith(b"HTTP/1.1 200 ")


def connections_to(port: int) -> list[str]:
    """The state of each connection that a server at a port of this machine has not closed yet."""
    states = [each.state for each in tcp_sockets() if each.port == port]
    return [state for state in states if state in (ESTABLISHED, CLOSE_WAIT)]


def test_without_descriptors_it_is_told_once_and_goes_on_when_there_are_some(web: Box) -> None:
    assert web.send("few", "first").status == 200
    pid = web.pid("few")
    # The descriptor of a connection that closes later would be one more that can be accepted.
    wait_for(lambda: not connections_to(web.address("few")[1]), "the connections before this one to be closed")
    used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    least = next(number for number in itertools.count() if number not in used)
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (least, limits[1]))
    try:
        until_s = time.monotonic() + 2.5 * ACCEPT_PAUSE_S
        with socket.create_connection(web.address("few"), 60):
            wait_for(lambda: time.monotonic() > until_s, "it to be tried several times")
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert web.send("few", "again").status == 200
    assert web.server.log().count("a connection to inputs.few is not accepted") == 1
