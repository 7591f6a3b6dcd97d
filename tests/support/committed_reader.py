"""Reads a partition as Kafka's clients do, from the plans of a worker."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.broker.plan import FetchPlan
from appliance.durable_files import File
from appliance.log import FileCache, LogReader
from appliance.records.batch import CONTROL, TRANSACTIONAL, read_header, walk
from appliance.records.decode import decode_batch
from appliance.records.holes import is_hole
from appliance.records.markers import is_marker, read_marker
from appliance.shared.table import SegmentTable
from appliance.wire.requests import Fetch, FetchPart, FileRange


class Held:
    """A partition as a worker knows it."""

    def __init__(self, path: Path, table: SegmentTable) -> None:
        self.table, self.reader = table, LogReader(path, FileCache(8))
        self.damaged: list[tuple[int, int]] = []

    def suspect(self, start: int, stop: int) -> None:
        raise AssertionError(f"offsets {start} to {stop} cannot be read")


def read(held: Held, committed: bool, bytes_max: int = 1 << 20) -> tuple[list[tuple[int, bytes]], int]:
    """Offset and value of each message from the start on, and the position at the end."""
    offset, found = held.table.snapshot().start, list[tuple[int, bytes]]()
    while True:
        plan = FetchPlan(
            Fetch(None, 0, 1, bytes_max, [FetchPart("t", 0, offset, bytes_max)], committed=committed), [held]
        )
        (result,) = plan.find()
        assert not result.error
        if not result.size:
            return found, offset
        (piece,) = result.pieces
        assert isinstance(piece, FileRange) and isinstance(piece.file, File)
        data = os.pread(piece.file.fd, piece.count, piece.position)
        assert offset < result.high_watermark and (not committed or offset < result.stable <= result.high_watermark)
        seen, offset = _taken(data, list(result.aborted), offset)
        found += seen


def _taken(data: bytes, aborted: list[tuple[int, int]], offset: int) -> tuple[list[tuple[int, bytes]], int]:
    """What Kafka's consumer (``CompletedFetch``) takes of the batches of one reply, and where it goes on."""
    found: list[tuple[int, bytes]] = []
    waiting = sorted(aborted, key=lambda one: one[1])
    out: set[int] = set()
    for start, size, end in walk(memoryview(data), 0, len(data)):
        info = read_header(data, start)
        batch = data[start : start + size]
        if info.producer_id >= 0:
            while waiting and waiting[0][1] < end:
                out.add(waiting.pop(0)[0])
            if is_marker(info) and not read_marker(batch).committed:
                out.discard(info.producer_id)
        is_out = info.attributes & TRANSACTIONAL and info.producer_id in out
        if not info.attributes & CONTROL and not is_out:
            found += [(one.offset, one.value or b"") for one in decode_batch(batch) if one.offset >= offset]
        assert is_marker(info) or is_hole(info) or not info.attributes & CONTROL
        offset = max(offset, end)
    return found, offset
