"""Journals that hosts upload: by the real systemd-journal-upload, many at a time, endless, hostile, and killed."""

from __future__ import annotations

import random
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.bench.accounts import pss_bytes
from appliance.inputs.journal_upload import CONTENT_TYPE

from ..support.journal_upload import upload, upload_program
from ..support.journald import journald
from ..support.server import wait_for
from .http_box import Box, box, headers_of, make_identities
from .test_files_process import rows_of

TABLES = """
[inputs.hosts]
type = "http"
listen = ["127.0.0.1:0"]
topic = "hosts"
message_bytes_max = 8192
[inputs.secure]
type = "http"
listen = ["https://127.0.0.1:0"]
topic = "secure-{{app}}"
topics_max = 5
whole_journals = false
[inputs.guarded]
type = "http"
listen = ["127.0.0.1:0"]
topic = "guarded"
token_file = "{directory}/tokens"
[tls]
certificate = "{directory}/server.pem"
key = "{directory}/server.key"
ca = "{directory}/ca.pem"
client_auth = "required"
"""
SEQUENCE = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_identities(tmp_path_factory.mktemp("upload"))
    (made / "tokens").write_text("a-token\n")
    (made / "tokens").chmod(0o600)
    return made


@pytest.fixture(scope="module")
def web(directory: Path) -> Iterator[Box]:
    with box(directory, TABLES.format(directory=directory)) as found:
        yield found
        assert "Traceback" not in found.server.log()


@pytest.fixture
def before(web: Box) -> int:
    """How many messages the topic has before a test."""
    send(web, entry(1, b"first", "f" * 32))
    return len(web.values("hosts"))


def entry(number: int, message: bytes, sequence: str = SEQUENCE, **fields: bytes) -> bytes:
    pairs = {
        "__CURSOR": f"s={sequence};i={number:x};b=1;m=2;t=3;x=4".encode(),
        "__REALTIME_TIMESTAMP": b"1795219200250000",
        "_HOSTNAME": b"web-1",
        "SYSLOG_IDENTIFIER": b"shop",
        "PRIORITY": b"3",
    } | fields
    lines = b"".join(b"%s=%s\n" % (name.encode(), value) for name, value in pairs.items())
    return lines + b"MESSAGE\n" + struct.pack("<Q", len(message)) + message + b"\n\n"


def send(web: Box, body: bytes, name: str = "hosts", **headers: str) -> tuple[int, str]:
    reply = web.send(name, body, "/upload", **{"content_type": CONTENT_TYPE} | headers)
    return reply.status, reply.text


def texts(web: Box, topic: str, start: int = 0) -> list[Any]:
    return [msgspec.json.decode(value).get("MESSAGE") for value in web.values(topic)[start:]]


class Endless:
    """An upload whose body goes on."""

    def __init__(self, web: Box) -> None:
        self.sock = socket.create_connection(web.address("hosts"), 60)
        head = f"POST /upload HTTP/1.1\r\nhost: x\r\ncontent-type: {CONTENT_TYPE}\r\ntransfer-encoding: chunked\r\n\r\n"
        self.sock.sendall(head.encode())

    def send(self, data: bytes) -> None:
        self.sock.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self) -> bytes:
        self.sock.sendall(b"0\r\n\r\n")
        return self.answer()

    def answer(self) -> bytes:
        return self.sock.recv(65536)

    def __enter__(self) -> Endless:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


def test_an_entry_arrives_with_its_fields_headers_and_cursor(web: Box, before: int) -> None:
    body = entry(1, b"two\nlines") + entry(2, b"\xff\0") + entry(3, b"long", COREDUMP=b"x" * 9_000) + b"\n\n"
    assert send(web, body) == (202, "OK.\n")
    assert texts(web, "hosts", before) == ["two\nlines", [255, 0], "long"]
    one, _, cut = web.messages("hosts")[before:]
    assert headers_of(one) == {
        "host": "web-1",
        "app": "shop",
        "severity": "err",
        "time": "2026-11-21T00:00:00.250000Z",
        "cursor": f"s={SEQUENCE};i=1;b=1;m=2;t=3;x=4",
    }
    assert (headers_of(cut)["cut"], msgspec.json.decode(cut.value or b"")["COREDUMP"]) == ("COREDUMP", None)


def test_entries_of_a_body_without_end_are_in_the_topic_before_it_ends_and_answered_after(
    web: Box, before: int
) -> None:
    with Endless(web) as one, Endless(web) as other:
        for number in range(1, 4):
            one.send(entry(number, b"one %d" % number, "1" * 32))
            other.send(entry(number, b"other %d" % number, "2" * 32))
            wait_for(lambda number=number: len(web.values("hosts")) == before + 2 * number, "both entries")  # type: ignore[misc]
        one.sock.settimeout(0)
        with pytest.raises(BlockingIOError):
            one.answer()
        one.sock.settimeout(60)
        assert one.end().startswith(b"HTTP/1.1 202 ")
        assert other.end().startswith(b"HTTP/1.1 202 ")


@pytest.mark.parametrize(
    ("body", "status", "reason", "taken"),
    [
        (entry(1, b"whole") + b"MESSAGE=half", 400, "ends within an entry", 1),
        (entry(1, b"whole") + b"MESSAGE\n" + struct.pack("<Q", 1 << 62) + b"x" * 9_000, 400, "within an entry", 1),
        (b"a b=c\n\n", 400, "no name of a field", 0),
        (b"MESSAGE\n" + struct.pack("<Q", 3) + b"abcd\n\n", 400, "line break", 0),
        (random.Random(1).randbytes(200_000).replace(b"\n", b"\0") + b"\n", 400, "no name of a field", 0),
        (b"\n" * 300_000, 202, "OK.", 0),
        (b"", 202, "OK.", 0),
    ],
)
def test_what_is_no_journal_is_refused_and_holds_nothing(
    web: Box, before: int, body: bytes, status: int, reason: str, taken: int
) -> None:
    answer = send(web, body)
    assert (answer[0], reason in answer[1]) == (status, True)
    assert len(web.values("hosts")) == before + taken


def test_a_value_without_end_takes_no_memory(web: Box, before: int) -> None:
    pid = web.pid("hosts")
    held = pss_bytes(pid)
    with Endless(web) as one:
        one.send(b"MESSAGE\n" + struct.pack("<Q", 1 << 62))
        for _ in range(500):
            one.send(bytes(1 << 17))
        assert pss_bytes(pid) - held < 32 << 20
    assert send(web, entry(9, b"goes on", "e" * 32))[0] == 202
    assert len(web.values("hosts")) == before + 1


def test_only_journals_that_may_come_are_taken(web: Box) -> None:
    assert send(web, entry(1, b"x"), content_type="text/plain")[0] == 415
    assert send(web, entry(1, b"x"), content_encoding="zstd")[0] == 415
    assert send(web, entry(1, b"x"), "guarded")[0] == 401
    assert send(web, entry(1, b"x"), "guarded", authorization="Bearer a-token")[0] == 202
    assert texts(web, "guarded") == ["x"]


def test_numbers_that_are_missing_between_uploads_and_within_one_are_gaps_once(web: Box) -> None:
    gaps = web.row("hosts")["gaps"]
    sequence = "c" * 32
    first = entry(5, b"5", sequence) + entry(8, b"8", sequence)
    assert send(web, first)[0] == 202
    assert send(web, first)[0] == 202  # it was not answered, say
    assert send(web, entry(9, b"9", sequence) + entry(9, b"9", "d" * 32))[0] == 202
    assert send(web, entry(20, b"20", sequence))[0] == 202
    wait_for(lambda: web.row("hosts")["gaps"] == gaps + 2, "the gaps to be shown")


# ---- the real one


def test_the_real_sender_uploads_a_real_journal_through_kills_of_the_input_and_its_ledger_counts(
    tmp_path: Path, web: Box, before: int
) -> None:
    """Goal: every entry at least once, and 0 doubles while nothing is killed.  Method: kills between and in uploads."""
    upload_program()
    state = tmp_path / "state"
    host, port = web.address("hosts")
    with journald(tmp_path / "systemd") as journal:
        written: list[str] = []
        failed = 0
        for turn in range(8):
            fresh = [f"{len(written) + at} {'x' * (at % 300)}" for at in range(300)]
            written += fresh
            journal.write([text.encode() for text in fresh], MARK=b"upload")
            journal.rotate()
            killer = threading.Timer(0.01 * turn, web.server.kill, (web.pid("hosts"), signal.SIGKILL))
            if turn % 2:
                killer.start()
            failed += upload(f"http://{host}:{port}", journal.directory, state).returncode != 0
            if turn % 2:
                killer.join()
                wait_for(lambda: send(web, entry(1, b"again", "f" * 32))[0] == 202, "another input")
        while upload(f"http://{host}:{port}", journal.directory, state).returncode:
            failed += 1
        cursors = journal.cursors("MARK=upload")
    assert len(cursors) == len(written)
    found = [message for message in web.messages("hosts")[before:] if b'"MARK":"upload"' in (message.value or b"")]
    in_topic = [headers_of(message)["cursor"] for message in found]
    assert list(dict.fromkeys(in_topic)) == cursors
    assert len(in_topic) == len(cursors) or failed


def test_the_real_sender_with_a_certificate(tmp_path: Path, web: Box, directory: Path) -> None:
    upload_program()
    host, port = web.address("secure")
    with journald(tmp_path / "systemd") as journal:
        journal.write([b"secret"])
        journal.rotate()
        options = (f"--trust={directory}/ca.pem", f"--cert={directory}/shipper.pem", f"--key={directory}/shipper.key")
        sent = upload(f"https://{host}:{port}", journal.directory, tmp_path / "state", *options)
        assert sent.returncode == 0, sent.stdout
    assert texts(web, "secure-shop") == ["secret"]


def test_at_an_ordered_stop_the_ledger_has_as_many_entries_as_the_topic(tmp_path: Path) -> None:
    tables = '[inputs.hosts]\ntype = "http"\nlisten = ["127.0.0.1:0"]\ntopic = "hosts"\n'
    with box(tmp_path, tables) as web:
        with Endless(web) as one:
            for number in range(1, 50):
                one.send(entry(number * 2, b"%d" % number))
            wait_for(lambda: web.row("hosts")["messages"] == 49, "all entries")
            web.server.stop()
            assert one.answer().startswith(b"HTTP/1.1 503 ")
        web.server.start()
        rows = rows_of(web.server)
        assert sum(row.lines for row in rows) == len(web.values("hosts")) == 49
        assert [(gap.start, gap.stop) for row in rows for gap in row.gaps] == [
            (2 * number + 1, 2 * number + 2) for number in range(1, 49)
        ]
