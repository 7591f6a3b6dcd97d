"""Record batches for the tests of the log: made, checked and placed as the writer does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from crc32c import crc32c

from appliance.config import TopicSettings
from appliance.durable_files import File
from appliance.log import Log
from appliance.log.segment_list import headers_from
from appliance.log.tools import verify
from appliance.records.batch import ATTRIBUTES_AT, CRC_AT, MAX_TIMESTAMP_AT, BatchHeader, check_batch, place
from appliance.records.encode import encode_values
from appliance.wire.requests import FileRange

Group = list[tuple[memoryview, BatchHeader]]

BATCH_BYTES_MAX = 1 << 24
BOOT = (17, 4)
SETTINGS = TopicSettings(segment_bytes=2048, index_interval_bytes=256)
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""Where tests make thousands of logs: what a disk does to them is played by other means."""


def batch(values: Iterable[bytes] = (b"a line of a log",), timestamp: int = 1000) -> bytes:
    return encode_values(list(values), timestamp)


RAWS = [batch([b"%d" % number * 60] * (number % 3 + 1), number) for number in range(20)]
"""Batches of several segments."""


def boundaries(raws: Iterable[bytes] = RAWS) -> list[int]:
    """Where batches that follow one another begin, and the end of the last."""
    return list(accumulate(map(len, raws), initial=0))


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def kinds(path: Path) -> list[str]:
    """The problems that are found in a log."""
    return [problem.kind for problem in verify(path).problems]


def placed(raw: bytes, position: int) -> tuple[memoryview, BatchHeader]:
    """A batch as it will stand at ``position`` of its log."""
    view = memoryview(bytearray(raw))
    info = check_batch(view, 0, len(view), BATCH_BYTES_MAX)
    place(view, 0, position, info.size, info.count)
    return view, info


def place_all(position: int, raws: Iterable[bytes]) -> Group:
    group: Group = []
    for raw in raws:
        group.append(placed(raw, position))
        position += len(raw)
    return group


def headers_of(log: Log, offset: int) -> Iterator[tuple[BatchHeader, int, int]]:
    """Header, base offset and end offset of each batch, from the one that contains ``offset`` on."""
    return headers_from(log.path, log.bases, log.end_offset, offset)


def open_log(path: Path, settings: TopicSettings = SETTINGS, now_ms: int = 5000) -> Log:
    return Log.open(path, settings, lambda: now_ms, boot=BOOT)


def filled(path: Path, raws: Iterable[bytes], settings: TopicSettings = SETTINGS) -> Log:
    """A log with these batches, flushed and exposed."""
    log = open_log(path, settings)
    for raw in raws:
        log.append(place_all(log.end_offset, [raw]))
    log.flush()
    log.raise_high_watermark(log.end_offset)
    return log


def retire(log: Log, offset: int) -> None:
    """Let the log start at ``offset``, and remove the files before it."""
    log.flush()
    log.retire_before(offset)
    log.flush()
    log.unlink_retired()


def log_range(found: FileRange) -> tuple[int, int]:
    """Offsets from where to where a range of a segment file goes."""
    assert isinstance(found.file, File)
    start = int(Path(found.file.path).stem) + found.position
    return start, start + found.count


def contents(path: Path) -> bytes:
    """All bytes of the segment files, one after the other."""
    return b"".join(file.read_bytes() for file in sorted(path.glob("*.log")))


def labelled(raw: bytes, *, largest: int | None = None, attributes: int = 0) -> bytes:
    """A batch whose header says another largest timestamp, or more attributes, with a right checksum."""
    changed = bytearray(raw)
    if largest is not None:
        changed[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] = largest.to_bytes(8, "big", signed=True)
    flags = int.from_bytes(changed[ATTRIBUTES_AT : ATTRIBUTES_AT + 2], "big") | attributes
    changed[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = flags.to_bytes(2, "big")
    changed[CRC_AT:ATTRIBUTES_AT] = crc32c(changed[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return bytes(changed)


class Arena:
    """A worker that has received produce requests."""

    def __init__(self, size: int = 1 << 20) -> None:
        self.arena = memoryview(bytearray(size))

    def answer(self, answers: Any) -> None:
        raise AssertionError("whoever asks the appender reads the answers itself")
