"""Who gives logs to the inputs of an appliance under load: see ``clients.py``.

What a sender gets no answer for is of unknown outcome, and is not sent again.  The lines of a file are promised as soon
as they are written: those that the ledger names as lost are taken back at the end (``input_load.py``).
"""

from __future__ import annotations

import gzip
import http.client
import os
import shutil
import socket
from collections import deque
from pathlib import Path
from typing import Final

from .history import Log, text_of
from .producers import ProducerClient

ANSWER_S_MAX: Final = 10.0
RELP_IN_FLIGHT_MAX: Final = 200
OFFERS: Final = b"relp_version=0\nrelp_software=load\ncommands=syslog"
GENERATION_LINES: Final = 60
"""Of a file, at most, before it is rotated."""
PLAIN_MAX: Final = 60
"""Rotated files that are not compressed yet."""
COMPRESSED_AT_ONCE: Final = 0.05
"""The share of rotated files that are compressed at once, before an input that is struck has read them."""


class HttpLines(ProducerClient):
    """A request at a time, with the lines of a tick: 200 means that all are flushed."""

    def open(self) -> None:
        pass

    def send(self, values: list[tuple[Log, int, bytes]]) -> None:
        if not values:
            return
        host, _, port = self.spec.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER_S_MAX)
        error = "not answered"
        try:
            connection.request("POST", "/", b"".join(value + b"\n" for _, _, value in values))
            answer = connection.getresponse()
            answer.read()
            error = "" if answer.status == 200 else f"answered {answer.status}"
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        for log, number, _ in values:
            self.in_flight -= 1
            self.record_send(log, number, "info" if error else "ok")


class SyslogLines(ProducerClient):
    """Lines over TCP, which nobody answers: acks=0."""

    def open(self) -> None:
        self._sock: socket.socket | None = None

    def connect(self) -> socket.socket:
        host, _, port = self.spec.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=ANSWER_S_MAX)

    def send(self, values: list[tuple[Log, int, bytes]]) -> None:
        sent = False
        try:
            if self._sock is None:
                self._sock = self.connect()
            self.write(self._sock, values)
            sent = True
        except OSError:
            self.disconnect()
        self.settle(values, sent)

    def write(self, sock: socket.socket, values: list[tuple[Log, int, bytes]]) -> None:
        sock.sendall(b"".join(value + b"\n" for _, _, value in values))

    def settle(self, values: list[tuple[Log, int, bytes]], sent: bool) -> None:
        for log, number, _ in values:
            self.in_flight -= 1
            self.record_send(log, number, "ok" if sent else "info")

    def disconnect(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    def finish(self) -> None:
        self.disconnect()


class Relp(SyslogLines):
    """Frames in flight, each answered once it is flushed."""

    def open(self) -> None:
        super().open()
        self._waiting: deque[tuple[Log, int]] = deque()
        self._received = b""

    def connect(self) -> socket.socket:
        sock = super().connect()
        self._received, self._number = b"", 1
        sock.sendall(b"1 open %d %b\n" % (len(OFFERS), OFFERS))
        self._answer(sock)
        return sock

    def write(self, sock: socket.socket, values: list[tuple[Log, int, bytes]]) -> None:
        frames = []
        for log, number, value in values:
            self._number += 1
            frames.append(b"%d syslog %d %b\n" % (self._number, len(value), value))
            self._waiting.append((log, number))
        sock.sendall(b"".join(frames))
        self._receive(sock, RELP_IN_FLIGHT_MAX)

    def _receive(self, sock: socket.socket, left_max: int) -> None:
        while len(self._waiting) > left_max:
            is_stored = self._answer(sock).startswith(b"200")
            log, number = self._waiting.popleft()
            self.in_flight -= 1
            self.record_send(log, number, "ok" if is_stored else "info")

    def _answer(self, sock: socket.socket) -> bytes:
        """The data of the next answer; they come in order."""
        while True:
            head, is_whole, rest = self._received.lstrip(b"\n").partition(b" rsp ")
            size, has_size, data = rest.partition(b" ")
            if is_whole and has_size and len(data) > int(size):
                self._received = data[int(size) :]
                return data[: int(size)]
            if head.startswith(b"0 serverclose"):
                raise ConnectionResetError
            more = sock.recv(1 << 16)
            if not more:
                raise ConnectionResetError
            self._received += more

    def settle(self, values: list[tuple[Log, int, bytes]], sent: bool) -> None:
        """What is answered has been recorded; when the connection breaks the rest is of unknown outcome."""
        if not sent:
            unanswered = sorted({*self._waiting, *((log, number) for log, number, _ in values)})
            self._waiting.clear()
            self.in_flight = 0
            for log, number in unanswered:
                self.record_send(log, number, "info")

    def finish(self) -> None:
        try:
            if self._sock is not None:
                self._receive(self._sock, 0)
        except OSError:
            self.settle([], sent=False)
        self.disconnect()


class LogFiles(ProducerClient):
    """A program with a log that is rotated again and again, and others whose logs come and go between two looks.

    Each life of a file is a process of the history, ``name.1``, ``name.2`` and so on: its lines keep their order.
    """

    def open(self) -> None:
        self._directory = Path(self.spec.address)
        self._lives = 0
        self._rotated: deque[Path] = deque()
        self._path = self._directory / "app.log"
        self._begin()

    def _begin(self) -> None:
        self._lives += 1
        self._lines = 0
        self.process = f"{self.spec.name}.{self._lives}"
        self._numbers.clear()

    def next_value(self, log: Log) -> tuple[Log, int, bytes]:
        """Which life of which file it belongs to is decided when it is written."""
        return log, 0, b""

    def send(self, values: list[tuple[Log, int, bytes]]) -> None:
        for log, _, _ in values:
            self._write(self._path, log)
            self._lines += 1
        if self._lines and self._lines >= self._random.randrange(5, GENERATION_LINES):
            self._rotate()
            self._begin()
            if values and self._random.random() < 0.3:
                self._come_and_go(values[0][0])

    def _write(self, path: Path, log: Log) -> None:
        number, _ = self.new_value(log, -1)
        self.recorder.flush()
        with path.open("ab") as file:
            file.write(text_of(self.process, log, number).encode() + b"\n")
        self.record_send(log, number, "ok")

    def _rotate(self) -> None:
        older = self._directory / f"app.log.{self._lives}"
        if self._random.random() < 0.5:
            self._path.rename(older)
        else:
            shutil.copyfile(self._path, older)
            os.truncate(self._path, 0)
        self._age(older)

    def _come_and_go(self, log: Log) -> None:
        path = self._directory / f"job-{self._lives}.log"
        for _ in range(self._random.randrange(1, 6)):
            self._write(path, log)
        older = path.with_name(f"{path.name}.1")
        path.rename(older)
        self._age(older)
        self._begin()

    def _age(self, path: Path) -> None:
        """Compress some at once, and what was rotated PLAIN_MAX rotations ago: as gzip does, with the file's time."""
        self._rotated.append(path)
        is_at_once = self._random.random() < COMPRESSED_AT_ONCE
        if is_at_once or len(self._rotated) > PLAIN_MAX:
            oldest = self._rotated.pop() if is_at_once else self._rotated.popleft()
            times = oldest.stat()
            packed = oldest.with_name(f"{oldest.name}.gz")
            packed.write_bytes(gzip.compress(oldest.read_bytes(), 1))
            os.utime(packed, ns=(times.st_atime_ns, times.st_mtime_ns))
            oldest.unlink()
