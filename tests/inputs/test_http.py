"""What an input by HTTP answers with 200 is in its topic, each line once and as it came; all else is told why not."""

from __future__ import annotations

import gzip
import http.client
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import cramjam
import msgspec
import pytest

from appliance.bench.local_appliance import LocalAppliance
from appliance.client import Admin
from appliance.errors import BadValue
from appliance.input_settings import Http
from appliance.inputs import http as http_module
from appliance.inputs.http import ANSWER_MS_MAX, LINGER_S, http_input
from appliance.inputs.machinery import Machinery

from ..support.server import runs, wait_for
from .http_box import Box, box, headers_of, reply_of

TOKEN = "s3cret-token"
TABLES = """
[inputs.web]
type = "http"
listen = ["127.0.0.1:0"]
topic = "{topic}"
body_bytes_max = 1048576
message_bytes_max = 4096
[inputs.guarded]
type = "http"
listen = ["127.0.0.1:0"]
topic = "guarded"
token_file = "{directory}/tokens"
[inputs.elsewhere]
type = "http"
listen = ["127.0.0.1:0"]
topic = "elsewhere"
allow = ["10.1.0.0/16", "192.0.2.7"]
[inputs.many]
type = "http"
listen = ["127.0.0.1:0"]
topic = "logs-{{app}}"
topics_max = 3
key = "host"
"""


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    directory = tmp_path_factory.mktemp("http")
    (directory / "tokens").write_text(f"# of the test\nother\n{TOKEN}\n")
    (directory / "tokens").chmod(0o600)
    with box(directory, TABLES.format(topic="web", directory=directory)) as found:
        yield found


def new_values(web: Box, before: int) -> list[bytes]:
    return web.values("web")[before:]


@pytest.fixture
def before(web: Box) -> int:
    """How many messages the topic has before a test."""
    web.send("web", "first")
    return len(web.values("web"))


def test_lines_arrive_as_they_came(web: Box, before: int) -> None:
    body = b"one\n\ttwo \r\n\n\xff\xfe no UTF-8\n[error] no JSON\n\0\nlast"
    assert web.send("web", body, content_type="text/plain").status == 200
    assert new_values(web, before) == body.replace(b"\r\n", b"\n").split(b"\n")
    assert headers_of(web.messages("web")[-1]) == {"host": "127.0.0.1"}


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/octet-stream"]
)
def test_lines_need_no_content_type_of_their_own(web: Box, before: int, content_type: str) -> None:
    assert web.send("web", "[a]\n[b]\n", "/any/path", content_type=content_type).status == 200
    assert new_values(web, before) == [b"[a]", b"[b]"]


@pytest.mark.parametrize(
    ("content_type", "body", "values"),
    [
        ("application/json", ' [ {"a" : 1} ,\n 2.50, "x"]\n', ['{"a" : 1}', "2.50", '"x"']),
        ("application/json; charset=utf-8", '{"a":\n 1 }', ['{"a":\n 1 }']),
        ("application/json", '{"a":1}\n{"b":2}\n', ['{"a":1}', '{"b":2}']),
        ("application/json", "[]", []),
        ("application/x-ndjson", '{"a":1}\r\n\n [2, 3]\n4', ['{"a":1}', "[2, 3]", "4"]),
        ("application/octet-stream", '[{"a":1},{"b":2}]', ['{"a":1}', '{"b":2}']),
        ("text/plain", '[{"a":1},{"b":2}]', ['[{"a":1},{"b":2}]']),
    ],
)
def test_json_becomes_a_message_for_each_element(
    web: Box, before: int, content_type: str, body: str, values: list[str]
) -> None:
    reply = web.send("web", body, content_type=content_type)
    assert (reply.status, msgspec.json.decode(reply.body)) == (200, {"messages": len(values)})
    assert new_values(web, before) == [value.encode() for value in values]


@pytest.mark.parametrize(
    ("content_type", "body", "reason"),
    [
        ("application/json", '[{"a":1},', "no JSON array"),
        ("application/json", '{"a":1}\n{"b"', "line 2 is no JSON"),
        ("application/x-ndjson", '{"a":1}\n\n{"b":1} {"c":1}\n', "line 3 is no JSON"),
        ("application/json", "[" * 100_000, "no JSON array"),
        ("application/json", '{"a":' * 500, "line 1 is no JSON"),
    ],
)
def test_what_does_not_parse_is_refused_whole_with_the_reason(
    web: Box, before: int, content_type: str, body: str, reason: str
) -> None:
    reply = web.send("web", body, content_type=content_type)
    assert (reply.status, reason in reply.text) == (400, True)
    assert new_values(web, before) == []


def zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstd)])
def test_packed_bodies_are_unpacked_within_their_bound(web: Box, before: int, encoding: str, pack: object) -> None:
    assert callable(pack)
    lines = b"".join(b"line %d\n" % number for number in range(1000))
    assert web.send("web", pack(lines), content_encoding=encoding).status == 200
    assert new_values(web, before) == lines.splitlines()
    assert web.send("web", pack(bytes(1 << 26)), content_encoding=encoding).status == 413
    assert web.send("web", pack(lines)[:-9], content_encoding=encoding).status == 400
    assert web.send("web", b"neither", content_encoding=encoding).status == 400
    assert web.send("web", pack(lines), content_encoding="br").status == 415
    assert len(new_values(web, before)) == 1000


def test_several_members_of_gzip_are_one_body(web: Box, before: int) -> None:
    assert web.send("web", gzip.compress(b"a\nb") + gzip.compress(b"c\n"), content_encoding="gzip").status == 200
    assert new_values(web, before) == [b"a", b"bc"]


def test_a_long_line_becomes_parts_and_a_long_value_is_refused(web: Box, before: int) -> None:
    line = "ö€𝄞" * 1000
    assert web.send("web", f"a\n{line}\nb\n").status == 200
    found = web.messages("web")[before:]
    parts = [message for message in found if "part" in headers_of(message)]
    assert [headers_of(message)["part"] for message in parts] == ["1", "2", "3"]
    assert b"".join(message.value or b"" for message in parts).decode() == line
    for message in parts:
        assert len((message.value or b"").decode().encode()) <= 4096
    reply = web.send("web", msgspec.json.encode(["short", line]), content_type="application/json")
    assert (reply.status, "message_bytes_max" in reply.text) == (413, True)
    assert len(web.messages("web")) == before + len(found)


def test_a_body_that_never_fits_is_413_with_and_without_its_length(web: Box, before: int) -> None:
    body = b"x\n" * (1 << 20)
    reply = web.send("web", body)
    assert (reply.status, "body_bytes_max" in reply.text, reply.headers["connection"]) == (413, True, "close")
    connection = http.client.HTTPConnection(*web.address("web"), timeout=60)
    pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))
    connection.request("POST", "/", pieces, encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    assert reply_of(connection).status == 413
    connection.close()
    assert new_values(web, before) == []


def test_requests_of_one_connection_follow_each_other(web: Box, before: int) -> None:
    connection = http.client.HTTPConnection(*web.address("web"), timeout=60)
    for number in range(5):
        connection.request("POST", "/", f"{number}\n".encode())
        assert reply_of(connection).status == 200
    connection.close()
    assert new_values(web, before) == [b"%d" % number for number in range(5)]


def test_pipelined_requests_are_answered_in_order(web: Box, before: int) -> None:
    with socket.create_connection(web.address("web"), 60) as sock:
        for number in range(5):
            sock.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n%d\n" % number)
        answers = b""
        while answers.count(b'{"messages":1}') < 5:
            data = sock.recv(65536)
            assert data
            answers += data
    assert sorted(new_values(web, before)) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
        ("Bearer other", 200),
        ("Basic " + "dXNlcjpzM2NyZXQtdG9rZW4=", 200),  # user:s3cret-token
        ("ApiKey " + "aWQ6czNjcmV0LXRva2Vu", 200),  # id:s3cret-token
        ("Bearer", 401),
        ("", 401),
        ("Bearer # of the test", 401),
        (f"Bearer {TOKEN}x", 401),
        (TOKEN, 401),
        ("Basic !!!", 401),
        ("Bearer \xff", 401),
    ],
)
def test_a_sender_needs_a_token(web: Box, authorization: str, status: int) -> None:
    reply = web.send("guarded", "x", authorization=authorization)
    assert reply.status == status
    assert (status == 401) == ("www-authenticate" in reply.headers)


def test_tokens_are_read_again_when_their_file_changes(web: Box) -> None:
    file = web.server.data_dir.parent / "tokens"
    file.write_text("new-token\n")
    assert web.send("guarded", "x", authorization="Bearer new-token").status == 200
    assert web.send("guarded", "x", authorization=f"Bearer {TOKEN}").status == 401
    file.chmod(0o644)
    reply = web.send("guarded", "x", authorization="Bearer new-token")
    assert (reply.status, "retry-after" in reply.headers) == (503, True)
    file.chmod(0o600)
    file.write_text(f"other\n{TOKEN}\n")
    assert web.send("guarded", "x", authorization=f"Bearer {TOKEN}").status == 200


def test_senders_of_other_networks_are_refused(web: Box) -> None:
    assert web.send("elsewhere", "x").status == 403


def test_app_and_host_of_a_request_choose_topic_and_key(web: Box) -> None:
    assert web.send("many", "x", "/?app=nginx&host=web-1").status == 200
    (message,) = web.messages("logs-nginx")
    assert (message.key, headers_of(message)) == (b"web-1", {"host": "web-1", "app": "nginx"})
    assert web.send("many", "x", "/?app=a%2Fb").status == 200
    assert web.values("logs-a_b") == [b"x"]
    assert web.send("many", "x").status == 200
    assert web.values("logs-unknown") == [b"x"]
    reply = web.send("many", "x", "/?app=one-more")
    assert (reply.status, "topics_max" in reply.text, "retry-after" in reply.headers) == (429, True, True)


def test_what_is_refused_is_counted(web: Box) -> None:
    refused = web.row("web")["refused"]
    web.send("web", "[", content_type="application/json")
    wait_for(lambda: web.row("web")["refused"] > refused, "the refusal to be shown")


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl")
def test_curl_sends_a_file(web: Box, before: int, tmp_path: Path) -> None:
    """Goal: as the page says.  Method: a body that is so large that curl waits to be asked for it."""
    lines = b"".join(b"line %d\n" % number for number in range(80_000))
    file = tmp_path / "app.log"
    host, port = web.address("web")
    for content, options in ((lines, ()), (gzip.compress(lines), ("-H", "Content-Encoding: gzip"))):
        file.write_bytes(content)
        command = ["curl", "-sSf", *options, "--data-binary", f"@{file}", f"http://{host}:{port}/?app=shop"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert msgspec.json.decode(answer.stdout) == {"messages": 80_000}
    assert new_values(web, before) == lines.splitlines() * 2


# ---- kills


class Senders:
    """Threads that send numbered lines, each request again until it is answered by 200."""

    def __init__(self, web: Box, count: int) -> None:
        self._web = web
        self._stop = threading.Event()
        self._answered: list[list[bytes]] = [[] for _ in range(count)]
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(count)]

    def __enter__(self) -> Senders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def answered(self) -> list[bytes]:
        return [line for lines in self._answered for line in lines]

    def wait_for_more(self) -> None:
        before = len(self.answered)
        wait_for(lambda: len(self.answered) > before + 200, "lines to be answered")

    def _send(self, sender: int) -> None:
        number = 0
        while not self._stop.is_set():
            lines = [b"sender %d line %d" % (sender, number + more) for more in range(20)]
            try:
                reply = self._web.send("web", b"\n".join(lines))
            except (OSError, http.client.HTTPException):
                continue
            if reply.status == 200:
                self._answered[sender] += lines
                number += len(lines)


def test_what_was_answered_is_in_the_topic_after_kills_of_the_input(web: Box) -> None:
    with Senders(web, 4) as senders:
        for _ in range(3):
            senders.wait_for_more()
            pid = web.pid("web")
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda pid=pid: not runs(pid), "the input to end")
        senders.wait_for_more()
    assert not set(senders.answered) - set(web.values("web"))


def test_what_was_answered_survives_a_kill_of_everything(tmp_path: Path) -> None:
    with box(tmp_path, '[inputs.web]\ntype = "http"\nlisten = ["127.0.0.1:0"]\ntopic = "web"\n') as web:
        with Senders(web, 2) as senders:
            senders.wait_for_more()
            LocalAppliance.kill(web.server)
        web.server.start()
        assert not set(senders.answered) - set(web.values("web"))
        assert web.send("web", "x").status == 200


def test_an_ordered_stop_answers_what_it_has_taken(tmp_path: Path) -> None:
    with box(tmp_path, '[inputs.web]\ntype = "http"\nlisten = ["127.0.0.1:0"]\ntopic = "web"\n') as web:
        with Senders(web, 2) as senders, socket.create_connection(web.address("web"), 60) as half:
            half.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
            senders.wait_for_more()
            assert web.server.process is not None
            web.server.process.terminate()
            answer = half.recv(65536)
            answered_s = time.monotonic()
            while data := half.recv(65536):
                answer += data
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert time.monotonic() - answered_s < LINGER_S / 2, "who has its answer keeps nobody from stopping"
            assert web.server._wait() == 0
            assert web.server.state["state"] == "stopped"
        web.server.start()
        found = web.values("web")
        assert sorted(set(senders.answered)) == sorted(found), "each once"
        assert "did not stop in time" not in web.server.log()


def test_an_input_begins_as_soon_as_its_files_can_be_used(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tables = f'[inputs.web]\ntype = "http"\nlisten = ["127.0.0.1:0"]\ntopic = "web"\ntoken_file = "{tokens}"\n'
    with box(tmp_path, tables) as web:
        wait_for(lambda: "token_file" in web.row("web")["trouble"], "the fault to be shown")
        tokens.touch(0o600)
        wait_for(lambda: "must have a token" in web.row("web")["trouble"], "the other fault to be shown")
        tokens.write_text(TOKEN)
        assert web.send("web", "x", authorization=f"Bearer {TOKEN}").status == 200
        assert "Traceback" not in web.server.log()


def test_missing_packages_are_named_with_what_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "PACKAGES", ("uvicorn", "no_such_package", "no_such_package.inner"))
    with pytest.raises(BadValue, match=r"inputs.web: no_such_package and no_such_package.inner missing: .*\[inputs\]"):
        http_input(Http(listen=("127.0.0.1:0",), topic="web"), cast(Machinery, SimpleNamespace(name="web")))


@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_deleted_topic_holds_no_sender(tmp_path: Path, is_made_again: bool) -> None:
    """It is made again at once where topics are made on demand; else senders hear that there is none."""
    tables = '[inputs.web]\ntype = "http"\nlisten = ["127.0.0.1:0"]\ntopic = "web"\n'
    with box(tmp_path, tables, **{"topics.auto_create": is_made_again}) as web, Admin(web.server.native) as admin:
        if not is_made_again:
            admin.create_topic("web")
        assert web.send("web", "before").status == 200
        admin.delete_topic("web")
        begun_s = time.monotonic()
        reply = web.send("web", "after")
        assert time.monotonic() - begun_s < ANSWER_MS_MAX / 3000
        if is_made_again:
            assert (reply.status, web.values("web")) == (200, [b"after"])
        else:
            assert (reply.status, reply.text) == (503, "there is no topic 'web'\n")
            admin.create_topic("web")
            assert web.send("web", "again").status == 200
