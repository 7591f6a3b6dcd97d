"""Reads which sockets of TCP there are, and whose, from /proc/net and /proc/PID/fd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
COMMAND_CHARACTERS_MAX: Final = 80
_LISTENING: Final = "0A"
_ESTABLISHED: Final = "01"


class Holder(NamedTuple):
    """A process that listens: its id, and the command that it runs."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


def ports_in_use() -> set[int]:
    """The ports that some process of this network namespace listens on."""
    return {port for state, port, *_ in _rows() if state == _LISTENING}


def holder_of(port: int) -> Holder | None:
    """Who listens at a port; None: nobody, or another user's process, whose descriptors may not be read."""
    sockets = {f"socket:[{inode}]" for state, at, _, inode in _rows() if state == _LISTENING and at == port}
    if not sockets:
        return None
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and _has_one_of(process / "fd", sockets):
            words = b""
            with suppress(OSError):
                words = (process / "cmdline").read_bytes()
            command = " ".join(words.decode(errors="replace").split("\0")).strip()
            return Holder(int(process.name), command[:COMMAND_CHARACTERS_MAX])
    return None


def peers(ports: Collection[int]) -> Counter[str]:
    """Established connections to these ports of this host, by address of the client."""
    return Counter(_address(remote) for state, port, remote, _ in _rows() if state == _ESTABLISHED and port in ports)


def _rows() -> Iterator[tuple[str, int, str, str]]:
    """State, local port, address of the other end as digits, and inode of each socket."""
    for path in TABLES:
        lines: list[str] = []
        with suppress(OSError):
            lines = path.read_text().splitlines()[1:]
        for line in lines:
            _, local, remote, state, *rest = line.split()
            yield state, int(local.rpartition(":")[2], 16), remote.rpartition(":")[0], rest[5]


def _has_one_of(descriptors: Path, sockets: Collection[str]) -> bool:
    with suppress(OSError):
        for descriptor in descriptors.iterdir():
            with suppress(OSError):
                if str(descriptor.readlink()) in sockets:
                    return True
    return False


def _address(digits: str) -> str:
    """``0100007F`` of /proc/net/tcp as ``127.0.0.1``; an address of IPv6 keeps its digits in pairs."""
    words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
    raw = b"".join(words)
    if len(raw) == 4:
        return ".".join(map(str, raw))
    if raw[:12] == bytes(10) + b"\xff\xff":
        return ".".join(map(str, raw[12:]))
    return ":".join(f"{raw[at]:02x}{raw[at + 1]:02x}" for at in range(0, 16, 2))
