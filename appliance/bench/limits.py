"""Measures what the machine itself can do: no broker on it is faster.

Rates are the best of a few short runs, because whatever else the machine does only lowers them: copying memory,
``sendfile`` over the loopback interface to a process that only receives, writing to the page cache, ``fdatasync`` by
size, waking a process up, and answering requests of 200 bytes with the same bytes (an empty server with epoll, in C and
in Python; the client is in C).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..wire.sockets import set_options
from .compiling import Missing, echo
from .measures import MachineLimit

MIB = 1 << 20
ECHO_BYTES = 200
ECHO_DEPTHS = (1, 5)
SYNC_SIZES = {"4 KiB": 4096, "64 KiB": 65536, "1 MiB": MIB}
REPEATS = 3


def measure(directory: Path, scale: int, notices: list[str]) -> list[MachineLimit]:
    """All limits, with files in ``directory``; ``scale`` divides the sizes."""
    measured = [
        MachineLimit("memcpy", _best(lambda: _memcpy(1024 * MIB // scale)), "B/s"),
        MachineLimit("loopback sendfile", _best(lambda: _sendfile(directory, 512 * MIB // scale), 8), "B/s"),
        MachineLimit("page cache write", _best(lambda: _write(directory, 512 * MIB // scale)), "B/s"),
    ]
    for name, size in SYNC_SIZES.items():
        times = _fdatasync(directory, size, max(400 // scale, 20))
        measured += [
            MachineLimit(f"fdatasync {name} p50", statistics.median(times) * 1000, "ms"),
            MachineLimit(f"fdatasync {name} p99", times[int(len(times) * 0.99)] * 1000, "ms"),
        ]
    measured.append(MachineLimit("wake-up of a process", _wake_up(max(20_000 // scale, 100)) * 1000, "ms"))
    try:
        measured += _echoes(max(20_000 // scale, 500))
    except Missing as missing:
        notices.append(f"the echo servers were not measured, missing: {missing}")
    return measured


def _best(once: Callable[[], float], repeats: int = REPEATS) -> float:
    return max(once() for _ in range(repeats))


def _memcpy(count: int) -> float:
    """Bytes per second between two buffers that no cache holds."""
    source, target = bytearray(64 * MIB), memoryview(bytearray(64 * MIB))
    target[:] = source
    times = max(count // len(source), 1)
    start = time.perf_counter()
    for _ in range(times):
        target[:] = source
    return times * len(source) / (time.perf_counter() - start)


def _sendfile(directory: Path, count: int) -> float:
    """Bytes per second out of a file in the page cache through a connection into a process that throws them away."""
    with tempfile.TemporaryFile(dir=directory) as file, socket.create_server(("127.0.0.1", 0)) as server:
        size = min(count, 256 * MIB)
        file.write(bytes(size))
        file.flush()
        with _child(lambda: _receive(server.getsockname()[1], count)):
            sock, _ = server.accept()
            with sock:
                set_options(sock, "127.0.0.1")
                sock.setblocking(False)  # a blocking call wakes up for each piece that has room
                poll = select.poll()
                poll.register(sock, select.POLLOUT)
                start, sent = time.perf_counter(), 0
                while sent < count:
                    try:
                        sent += os.sendfile(sock.fileno(), file.fileno(), sent % size, min(size - sent % size, MIB))
                    except BlockingIOError:
                        poll.poll()
                sock.setblocking(True)
                sock.recv(1)  # it has everything
                return count / (time.perf_counter() - start)


def _receive(port: int, count: int) -> None:
    buffer = bytearray(MIB // 4)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        while count > 0:
            count -= sock.recv_into(buffer) or count
        sock.send(b"!")


def _write(directory: Path, count: int) -> float:
    """Bytes per second into a new file, without a flush."""
    block = bytes(MIB)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        start = time.perf_counter()
        for _ in range(count // MIB):
            file.write(block)
        return count // MIB * MIB / (time.perf_counter() - start)


def _fdatasync(directory: Path, size: int, times: int) -> list[float]:
    """Seconds that each flush of an appended block took, in ascending order."""
    block, seconds = os.urandom(size), []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(times):
            file.write(block)
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - start)
    return sorted(seconds)


def _wake_up(times: int) -> float:
    """Seconds until a process that waits for an eventfd runs: half of a way there and back."""
    here, there = os.eventfd(0), os.eventfd(0)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, here)
        stack.callback(os.close, there)

        def answer() -> None:
            for _ in range(times):
                os.eventfd_read(there)
                os.eventfd_write(here, 1)

        with _child(answer):
            seconds = []
            for _ in range(times):
                start = time.perf_counter()
                os.eventfd_write(there, 1)
                os.eventfd_read(here)
                seconds.append((time.perf_counter() - start) / 2)
    return statistics.median(seconds)


def _echoes(count: int) -> Iterator[MachineLimit]:
    """Requests per second of an empty server, by the requests that a client has in flight."""
    servers = {"C": [str(echo()), "serve", str(ECHO_BYTES)], "Python": [sys.executable, "-m", __name__]}
    for language, command in servers.items():
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                port = server.stdout.readline().strip()
                for depth in ECHO_DEPTHS:
                    rate = _best(lambda: _ask(port, count * depth, depth))  # noqa: B023 - called at once
                    yield MachineLimit(f"echo in {language}, {depth} in flight", rate, "1/s")
            finally:
                server.kill()


def _ask(port: str, count: int, depth: int) -> float:
    command = [str(echo()), "ask", port, str(ECHO_BYTES), str(count), str(depth)]
    return count / float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def serve_echo() -> None:
    """The server in Python: as that of ``c/echo.c``."""
    buffer = memoryview(bytearray(1 << 16))
    with socket.create_server(("127.0.0.1", 0)) as server, select.epoll() as poll:
        print(server.getsockname()[1], flush=True)
        while True:
            sock, _ = server.accept()
            set_options(sock, "127.0.0.1")
            poll.register(sock, select.EPOLLIN)
            part = 0
            with sock:
                while poll.poll() and (got := sock.recv_into(buffer)):
                    whole = (part + got) // ECHO_BYTES * ECHO_BYTES
                    part += got - whole
                    if whole:
                        sock.sendall(buffer[:whole])


@contextlib.contextmanager
def _child(run: Callable[[], None]) -> Iterator[None]:
    """A forked process that runs ``run`` and ends."""
    pid = os.fork()
    if not pid:
        try:
            run()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    serve_echo()
