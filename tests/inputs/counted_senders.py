"""Senders of every kind that inputs take logs from, each with an account of its own of what was acknowledged to it.

Each has an address of its own, or a file: it is one source of the ledger.  What it sends is odd: all bytes that its
protocol can carry, empty, short, and longer than ``message_bytes_max``, so that it becomes several messages.  A part of
what it sends is not like any other, so copies can be counted.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

import cramjam
import msgspec
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from appliance.client.decoder import Message

from ..support.journald import Journald
from .loki_messages import push_class

MESSAGE_BYTES_MAX: Final = 1024
PAUSE_S: Final = 0.05
ANSWER_S_MAX: Final = 60
DATAGRAM_S_MAX: Final = 2
"""How long a datagram waits for room in the buffer of its receiver."""
NOT_NOW: Final = (408, 429, 503)


class Ended(Exception):
    """The test is over."""


class Reached:
    """Where an appliance is reached that is killed and started again, with other ports then."""

    def __init__(self, addresses_of: Callable[[str], list[str]]) -> None:
        """``addresses_of``: those of an input, as long as the appliance is up."""
        self._addresses_of = addresses_of
        self.is_up, self.is_over = threading.Event(), threading.Event()

    def address(self, scheme: str, name: str) -> str:
        """What is behind ``scheme://``.  Raises OSError: it is not known now."""
        while not self.is_up.wait(PAUSE_S):
            self.check()
        for text in self._addresses_of(name):
            if text.startswith(f"{scheme}://"):
                return text.removeprefix(f"{scheme}://")
        raise ConnectionRefusedError(f"no {scheme} of {name} now")

    def socket_address(self, scheme: str, name: str) -> tuple[str, int]:
        host, _, port = self.address(scheme, name).rpartition(":")
        return host, int(port)

    def check(self) -> None:
        """Raises Ended."""
        if self.is_over.is_set():
            raise Ended

    def pause(self) -> None:
        """Before something is tried again.  Raises Ended."""
        self.is_over.wait(PAUSE_S)
        self.check()


class CountedSender:
    """``attempts``: how often each message was sent; ``acknowledged``: those that the sender need not send again."""

    name: ClassVar[str]
    topic: ClassVar[str]
    is_answered: ClassVar = True
    bytes_left_out: ClassVar = b"\n"
    long_share: ClassVar = 0.03
    has_source: ClassVar = True
    """Whether it is one source of the ledger; else it has a topic."""
    is_alone: ClassVar = True
    """Whether nobody else writes what its source has."""

    def __init__(self, source: str, reached: Reached, seed: int) -> None:
        self.source, self._reached, self._random = source, reached, random.Random(f"{seed} {self.name}")
        self._bytes = bytes(set(range(256)) - set(self.bytes_left_out))
        self.attempts: Counter[bytes] = Counter()
        self.acknowledged: list[bytes] = []
        self._count = 0

    @property
    def sent(self) -> int:
        return self._count

    def run(self, ended: threading.Event) -> None:
        """Send until the end."""
        with contextlib.suppress(Ended):
            while not ended.is_set():
                self.send(self.fresh(self._random.randrange(1, 12)))
                ended.wait(PAUSE_S)

    def fresh(self, count: int) -> list[bytes]:
        """Texts that nobody has sent yet."""
        return [self._fresh() for _ in range(count)]

    def _fresh(self) -> bytes:
        self._count += 1
        mark = b"%s-%d" % (self.name.encode(), self._count)
        if self._random.random() < self.long_share:
            words = b" ".join(b"%s.%d" % (mark, word) for word in range(6 * MESSAGE_BYTES_MAX // len(mark)))
            return words[: self._random.randrange(MESSAGE_BYTES_MAX, 6 * MESSAGE_BYTES_MAX)].strip(b" .") + b"."
        size = self._random.choice([0, 3, 200, MESSAGE_BYTES_MAX - len(mark) - 2])
        return b"%s %b." % (mark, bytes(self._random.choices(self._bytes, k=self._random.randrange(size + 1))))

    def messages_of(self, text: bytes) -> list[bytes]:
        """What is to be in the topic of a text, as :meth:`text_of` reads it."""
        return [text[at : at + MESSAGE_BYTES_MAX] for at in range(0, len(text), MESSAGE_BYTES_MAX)]

    def text_of(self, message: Message) -> bytes:
        return message.value or b""

    def may_own(self, message: Message) -> bool:
        """Whether :meth:`text_of` may be asked of a message of the topic."""
        return True

    def stored(self, messages: list[Message]) -> tuple[int, int]:
        """The lines and bytes that the ledger should have of them."""
        return len(messages), sum(len(message.value or b"") for message in messages)

    def promised(self) -> tuple[int, int]:
        """The lines and bytes that there are at least."""
        return len(set(self.acknowledged)), 0

    def send(self, texts: list[bytes]) -> None:
        """Send texts, again and again where the protocol has answers, until there is one.  Raises Ended."""
        raise NotImplementedError

    def _note_attempt(self, texts: list[bytes]) -> None:
        for text in texts:
            self.attempts.update(self.messages_of(text))

    def _note_taken(self, texts: list[bytes]) -> None:
        for text in texts:
            self.acknowledged += self.messages_of(text)

    def disconnect(self) -> None:
        """What is sent next goes over another connection, if there are any."""

    def close(self) -> None:
        self.disconnect()


# ---- syslog


class Udp(CountedSender):
    name, topic, is_answered = "udp", "net", False

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self._sock = self._open()

    def _open(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((self.source, 0))
        return sock

    def _to(self) -> Any:
        return self._reached.socket_address("udp", "net")

    def send(self, texts: list[bytes]) -> None:
        for text in texts:
            while True:
                self._sock.settimeout(DATAGRAM_S_MAX)
                try:
                    self._sock.sendto(text, self._to())
                except OSError:  # of a Unix socket: nobody has it, or its buffer is full
                    self._reached.pause()
                else:
                    break
            self._note_attempt([text])

    def close(self) -> None:
        self._sock.close()


class Local(Udp):
    name = "local"

    def _open(self) -> socket.socket:
        return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def _to(self) -> str:
        return self._reached.address("unix", "net")


class CountedOctets(CountedSender):
    name, topic, is_answered = "octets", "net", False
    scheme: ClassVar = "tcp"

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self._sock: socket.socket | None = None

    def _connect(self) -> socket.socket:
        address = self._reached.socket_address(self.scheme, "net")
        return socket.create_connection(address, ANSWER_S_MAX, source_address=(self.source, 0))

    def _frame(self, text: bytes) -> bytes:
        return b"%d %b" % (len(text), text)

    def send(self, texts: list[bytes]) -> None:
        while self._sock is None:
            try:
                self._sock = self._connect()
            except OSError:
                self._reached.pause()
        self._note_attempt(texts)
        try:
            self._sock.sendall(b"".join(map(self._frame, texts)))
        except OSError:
            self.disconnect()

    def disconnect(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None


class LinesOverTcp(CountedOctets):
    name, bytes_left_out = "lines", b"\n\0"

    def _frame(self, text: bytes) -> bytes:
        return text + b"\n"


class Relp(CountedOctets):
    """All frames of some texts are in flight together; after a fault those without an answer are sent again."""

    name, is_answered, scheme = "relp", True, "relp"

    def _connect(self) -> socket.socket:
        sock = super()._connect()
        offers = b"relp_version=0\ncommands=syslog"
        self._number, self._received = 1, b""
        try:
            sock.sendall(b"1 open %d %b\n" % (len(offers), offers))
            self._answer(sock)
        except OSError:
            sock.close()
            raise
        return sock

    def _answer(self, sock: socket.socket) -> None:
        """Read one.  Raises OSError: there is none."""
        while True:
            head, is_whole, rest = self._received.lstrip(b"\n").partition(b" rsp ")
            size, has_size, data = rest.partition(b" ")
            if is_whole and has_size and len(data) > int(size):
                assert data.startswith(b"200"), (self._received, head)
                self._received = data[int(size) :]
                return
            more = sock.recv(1 << 16)
            if not more or head.startswith(b"0 serverclose"):
                raise ConnectionResetError
            self._received += more

    def send(self, texts: list[bytes]) -> None:
        left = list(texts)
        while left:
            try:
                if self._sock is None:
                    self._sock = self._connect()
                self._note_attempt(left)
                self._sock.sendall(b"".join(map(self._frame, left)))
                while left:
                    self._answer(self._sock)
                    self._note_taken([left.pop(0)])
            except OSError:
                self.disconnect()
                self._reached.pause()

    def _frame(self, text: bytes) -> bytes:
        self._number += 1
        return b"%d syslog %d %b\n" % (self._number, len(text), text)


# ---- HTTP


class HttpLines(CountedSender):
    """Texts are the lines of a body."""

    name, topic = "http", "web"
    path: ClassVar = "/"
    content_type: ClassVar = "text/plain"

    def may_own(self, message: Message) -> bool:
        return dict(message.headers)["host"] == self.source.encode()

    def body(self, texts: list[bytes]) -> bytes:
        return b"".join(text + b"\n" for text in texts)

    def refused_now(self, texts: list[bytes], answer: bytes) -> list[bytes]:
        """Of a request that was taken, what is to be sent again."""
        return []

    def send(self, texts: list[bytes]) -> None:
        left = texts
        while left:
            try:
                status, answer = self._post(self.body(left), left)
            except (OSError, http.client.HTTPException):
                self._reached.pause()
                continue
            if status in NOT_NOW:
                self._reached.pause()
                continue
            assert status < 300, (self.name, status, answer)
            again = self.refused_now(left, answer)
            self._note_taken([text for text in left if text not in again])
            left = again

    def _post(self, body: bytes, texts: list[bytes]) -> tuple[int, bytes]:
        host, port = self._reached.socket_address("http", "web")
        connection = http.client.HTTPConnection(host, port, ANSWER_S_MAX, source_address=(self.source, 0))
        with contextlib.closing(connection):
            connection.connect()
            self._note_attempt(texts)
            connection.request("POST", self.path, body, {"Content-Type": self.content_type})
            response = connection.getresponse()
            return response.status, response.read()


class JsonLines(HttpLines):
    """Values of JSON, which come as they are."""

    name, content_type = "ndjson", "application/x-ndjson"

    def _fresh(self) -> bytes:
        text = super()._fresh()[: MESSAGE_BYTES_MAX // 8].decode("latin-1")  # an escape has 6 bytes
        return json.dumps({"n": self._count, "text": text}, ensure_ascii=self._random.random() < 0.5).encode()


class JsonArray(JsonLines):
    name, content_type = "array", "application/json"

    def body(self, texts: list[bytes]) -> bytes:
        return b"[%b]" % b",\n".join(texts)


class Bulk(JsonLines):
    name, path = "bulk", "/shop/_bulk"

    def body(self, texts: list[bytes]) -> bytes:
        return b"".join(b'{"index":{}}\n%b\n' % text for text in texts)

    def refused_now(self, texts: list[bytes], answer: bytes) -> list[bytes]:
        statuses = [item["index"]["status"] for item in msgspec.json.decode(answer)["items"]]
        assert set(statuses) <= {201, *NOT_NOW}, statuses
        return [text for text, status in zip(texts, statuses, strict=True) if status != 201]


class Loki(HttpLines):
    name, path, content_type = "loki", "/loki/api/v1/push", "application/json"

    def body(self, texts: list[bytes]) -> bytes:
        values = [[str(10**18), text.decode()] for text in texts]
        return msgspec.json.encode({"streams": [{"stream": {"job": "shop"}, "values": values}]})

    def _fresh(self) -> bytes:
        return super()._fresh().decode("latin-1").encode()[:MESSAGE_BYTES_MAX].decode("utf-8", "ignore").encode()


class LokiProtobuf(HttpLines):
    name, path, content_type = "push", Loki.path, "application/x-protobuf"

    def body(self, texts: list[bytes]) -> bytes:
        push = push_class()()
        stream = push.streams.add(labels='{app="shop"}')
        for text in texts:
            stream.entries.add(line=text).timestamp.seconds = 10**9
        return bytes(cramjam.snappy.compress_raw(push.SerializeToString()))


class OtlpJson(HttpLines):
    """The value is a record; the text is in its body."""

    name, path, content_type = "otlp", "/v1/logs", "application/json"

    def _fresh(self) -> bytes:
        return super()._fresh()[: MESSAGE_BYTES_MAX // 8].decode("latin-1").encode()

    def body(self, texts: list[bytes]) -> bytes:
        records = [{"body": {"stringValue": text.decode()}} for text in texts]
        return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()

    def refused_now(self, texts: list[bytes], answer: bytes) -> list[bytes]:
        assert not answer or answer == b"{}", answer
        return []

    def text_of(self, message: Message) -> bytes:
        text: str = msgspec.json.decode(message.value or b"")["body"]["stringValue"]
        return text.encode()


class OtlpProtobuf(OtlpJson):
    name, content_type = "proto", "application/x-protobuf"

    def body(self, texts: list[bytes]) -> bytes:
        export = ExportLogsServiceRequest()
        records = export.resource_logs.add().scope_logs.add().log_records
        for text in texts:
            records.add().body.string_value = text.decode()
        return bytes(export.SerializeToString())


class UploadedJournal(HttpLines):
    """Entries of a journal, whose MESSAGE is the text."""

    name, path, content_type, long_share = "upload", "/upload", "application/vnd.fdo.journal", 0.0
    bytes_left_out = b""

    def _fresh(self) -> bytes:
        return super()._fresh()[: MESSAGE_BYTES_MAX // 8]  # a list of numbers in JSON

    def body(self, texts: list[bytes]) -> bytes:
        return b"".join(
            b"__CURSOR=s=0;i=%x\n_HOSTNAME=%b\nMESSAGE\n%b%b\n\n"
            % (self._count, self.source.encode(), len(text).to_bytes(8, "little"), text)
            for text in texts
        )

    def text_of(self, message: Message) -> bytes:
        return message_of(message)


# ---- what inputs read by themselves


class LogFiles(CountedSender):
    """A program that writes lines, some in two pieces, to a log that is rotated by renaming."""

    name, topic, has_source = "files", "disk", False

    def __init__(self, path: Path, reached: Reached, seed: int) -> None:
        super().__init__(str(path), reached, seed)
        self._path = path
        self._rotations = self._lines = self._line_bytes = 0

    def send(self, texts: list[bytes]) -> None:
        with self._path.open("ab", buffering=0) as file:
            for text in texts:
                half = self._random.randrange(len(text)) if self._random.random() < 0.1 else 0
                file.write(text[:half])
                file.write(text[half:] + b"\n")
        self._lines += len(texts)
        self._line_bytes += sum(len(text) + 1 for text in texts)
        self._note_attempt(texts)
        self._note_taken(texts)
        if self._random.random() < 0.03:
            self._rotations += 1
            self._path.rename(f"{self._path}.{self._rotations}")

    def stored(self, messages: list[Message]) -> tuple[int, int]:
        """Lines, with their line breaks."""
        parts = [int(dict(message.headers).get("part") or 0) for message in messages]
        texts = b"".join(message.value or b"" for message in messages)
        lines = sum(map(is_last, parts, [*parts[1:], 0]))
        return lines, len(texts) + lines

    def promised(self) -> tuple[int, int]:
        return self._lines, self._line_bytes


def is_last(part: int, next_part: int) -> bool:
    """Whether a message is the end of its line."""
    return next_part != part + 1 or part == 0


class OwnJournal(CountedSender):
    """A program whose lines systemd-journald has in its journal."""

    name, topic, long_share, bytes_left_out = "journal", "host", 0.0, b""
    has_source = is_alone = False

    def __init__(self, journald: Journald, reached: Reached, seed: int) -> None:
        super().__init__(str(journald.directory), reached, seed)
        self._journald = journald

    def send(self, texts: list[bytes]) -> None:
        self._journald.write(texts)
        self._note_attempt(texts)
        self._note_taken(texts)

    def text_of(self, message: Message) -> bytes:
        return message_of(message)


def message_of(message: Message) -> bytes:
    """The field MESSAGE of an entry in JSON: bytes that are no text are numbers there."""
    text: str | list[int] = msgspec.json.decode(message.value or b"")["MESSAGE"]
    return text.encode() if isinstance(text, str) else bytes(text)


LISTENING: Final = (
    *(Udp, Local, CountedOctets, LinesOverTcp, Relp),
    *(HttpLines, JsonLines, JsonArray, Bulk, Loki, LokiProtobuf, OtlpJson, OtlpProtobuf, UploadedJournal),
)
"""Those that send to an address."""
