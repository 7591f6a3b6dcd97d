"""Chooses the text logs of this host that the demo ships, and how much of them.

Every line is shipped unchanged, without its line break.  Small logs are shipped several times, each time as a source
of its own (``/var/log/dpkg.log``, ``/var/log/dpkg.log#2``…).  Large ones are shipped up to a limit.  The plan's
``remark`` states which of the two applies, because the figures depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from typer import BadParameter

from ...owners import open_as_owner

LOG_DIR = Path("/var/log")
FILES_MAX = 200
LINES_MAX = 1_500_000
BYTES_MAX = 192 * 1024 * 1024
LINE_BYTES_MAX = 256 * 1024
PROBE_BYTES = 4096
TURN_LINES = 500


class LogSource(NamedTuple):
    """One file in one round; ``name`` distinguishes the rounds."""

    name: str
    path: Path
    topic: str


class ShippingPlan(NamedTuple):
    """What to ship: ``lines`` and ``size`` (bytes) in all.  ``remark``: that files are repeated, or shipped in part."""

    sources: list[LogSource]
    lines: int
    size: int
    remark: str


def find(directory: Path = LOG_DIR) -> list[Path]:
    """Readable text files under ``directory``, largest last."""
    sizes_and_paths: list[tuple[int, Path]] = []
    for folder, names, files in os.walk(directory, onerror=None):
        names.sort()
        for path in (Path(folder) / file for file in sorted(files)):
            if not path.is_symlink() and (size := _text_bytes(path)):
                sizes_and_paths.append((size, path))
    return [path for _, path in sorted(sizes_and_paths)[-FILES_MAX:]]


def _text_bytes(path: Path) -> int:
    """The size of a text file; 0 for any other file, and for one that cannot be read."""
    try:
        with open_as_owner(path) as file:
            head = file.read(PROBE_BYTES)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return 0
    return size if b"\0" not in head and _decodes(head) else 0


def _decodes(head: bytes) -> bool:
    """Whether ``head`` is UTF-8, except for an incomplete character at its end."""
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3
    return True


def plan(files: Sequence[Path], lines_min: int) -> ShippingPlan:
    """Plans to ship ``files``, or the logs of this host when there are none.

    Raises:
        OSError: a file that cannot be read.
        BadParameter: not one line of text.
    """
    named = list(files)
    for path in named:
        open_as_owner(path).close()
    paths = named or find()
    counted = [(path, *_count(path)) for path in paths]
    lines, size = sum(row[1] for row in counted), sum(row[2] for row in counted)
    if not lines:
        where = "these files" if named else f"{LOG_DIR} (no readable text logs)"
        raise BadParameter(f"{where}: not one line; name files to ship: appliance demo FILE...")
    rounds = 1 if lines >= lines_min else -(-lines_min // lines)
    rounds = max(1, min(rounds, BYTES_MAX // max(size, 1)))
    sources = [
        LogSource(str(path) + (f"#{number}" if number > 1 else ""), path, _topic(path, bool(named)))
        for number in range(1, rounds + 1)
        for path in paths
    ]
    remark = f"each shipped {rounds} times over, since they have {lines:,} lines only" if rounds > 1 else ""
    if lines > LINES_MAX or size > BYTES_MAX:
        kept, kept_size = _limit(sources)
        remark = f"the first {kept:,} of their {lines:,} lines"
        return ShippingPlan(sources, kept, kept_size, remark)
    return ShippingPlan(sources, lines * rounds, size * rounds, remark)


def _topic(path: Path, named: bool) -> str:
    """The topic: given files "files", logs directly in ``/var/log`` "system", those in its folders "applications"."""
    return "files" if named else "system" if path.parent == LOG_DIR else "applications"


def _count(path: Path) -> tuple[int, int]:
    lines = size = 0
    for line in read_lines(path):
        lines += 1
        size += len(line)
        if lines > LINES_MAX:
            break
    return lines, size


def read_lines(path: Path) -> Iterator[bytes]:
    """Yields lines without their line break; a line longer than LINE_BYTES_MAX in pieces."""
    with open_as_owner(path) as file:
        while line := file.readline(LINE_BYTES_MAX):
            yield line.removesuffix(b"\n")


def _limit(sources: Sequence[LogSource]) -> tuple[int, int]:
    lines = size = 0
    for _, _, line in shipped(sources, LINES_MAX, BYTES_MAX):
        lines += 1
        size += len(line)
    return lines, size


def shipped(
    sources: Sequence[LogSource], lines_max: int = LINES_MAX, bytes_max: int = BYTES_MAX
) -> Iterator[tuple[LogSource, int, bytes]]:
    """Yields (source, line number, line) of all sources, TURN_LINES lines of each in turn."""
    waiting = [(source, enumerate(read_lines(source.path), 1)) for source in sources[:FILES_MAX]]
    later = list(sources[FILES_MAX:])
    while waiting:
        going = []
        for source, lines in waiting:
            turn = list(islice(lines, TURN_LINES))
            for number, line in turn:
                lines_max -= 1
                bytes_max -= len(line)
                if lines_max < 0 or bytes_max < 0:
                    return
                yield source, number, line
            if len(turn) == TURN_LINES:
                going.append((source, lines))
            elif later:
                following = later.pop(0)
                going.append((following, enumerate(read_lines(following.path), 1)))
        waiting = going
