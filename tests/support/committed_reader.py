"""Reads a partition from the plans of a worker: as Kafka's clients do, and with the native client's own parts."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.broker.plan import FetchPlan
from appliance.client.damage_reports import DamageReports
from appliance.client.decoder import ChunkDecoder
from appliance.client.fetcher import Chunk, Fetched, start_offset_of
from appliance.durable_files import File
from appliance.log import FileCache, LogReader
from appliance.records.batch import CONTROL, TRANSACTIONAL, read_header, walk
from appliance.records.decode import decode_batch
from appliance.records.holes import is_hole
from appliance.records.markers import aborted_batches, is_marker, read_marker
from appliance.shared.table import SegmentTable
from appliance.wire.requests import Fetch, FetchPart, FileRange


class Held:
    """A partition as a worker knows it."""

    def __init__(self, path: Path, table: SegmentTable) -> None:
        self.table, self.reader = table, LogReader(path, FileCache(8))
        self.damaged: list[tuple[int, int]] = []

    def suspect(self, start: int, stop: int) -> None:
        raise AssertionError(f"offsets {start} to {stop} cannot be read")


class _NoDamage(DamageReports):
    def __init__(self) -> None:
        """Has nobody to tell."""

    def report(self, topic: str, partition: int, start: int, stop: int) -> None:
        raise AssertionError(f"offsets {start} to {stop} are damaged")


def read(held: Held, committed: bool, bytes_max: int = 1 << 20) -> tuple[list[tuple[int, bytes]], int]:
    """Offset and value of each message from the start on, and the position at the end."""
    offset, seen = held.table.snapshot().start, list[tuple[int, bytes]]()
    while True:
        data, aborted = _fetch(held, committed, offset, bytes_max)
        if not data:
            return seen, offset
        messages, offset = _taken(data, aborted, offset)
        seen += messages


def read_natively(held: Held, committed: bool, bytes_max: int = 1 << 20) -> tuple[list[tuple[int, bytes]], int]:
    """As :func:`read`, as ``appliance.client`` reads: its positions are those of bytes."""
    offset, seen = held.table.snapshot().start, list[tuple[int, bytes]]()
    fetched = Fetched(("t", 0), offset, lambda: None)
    decoder = ChunkDecoder(_NoDamage(), check_crc=True, on_corrupt="raise")
    while True:
        data, aborted = _fetch(held, committed, offset, bytes_max)
        if not data:
            return seen, offset
        start = start_offset_of(memoryview(data), offset)
        out = frozenset(start + at for at in aborted_batches(memoryview(data), aborted))
        chunk = Chunk(fetched, memoryview(data), offset, start, out)
        while (messages := decoder.messages(chunk)) is not None:
            seen += [(message.offset, message.value or b"") for message in messages]
        offset = chunk.stop_offset


def _fetch(held: Held, committed: bool, offset: int, bytes_max: int) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes and the aborted transactions of one answer; no bytes at the end."""
    part = FetchPart("t", 0, offset, bytes_max)
    (result,) = FetchPlan(Fetch(None, 0, 1, bytes_max, [part], committed=committed), [held]).results
    assert not result.error
    if not result.size:
        return b"", []
    (piece,) = result.pieces
    assert isinstance(piece, FileRange) and isinstance(piece.file, File)
    assert offset < result.high_watermark and (not committed or offset < result.stable <= result.high_watermark)
    return os.pread(piece.file.fd, piece.count, piece.position), list(result.aborted)


def _taken(data: bytes, aborted: list[tuple[int, int]], offset: int) -> tuple[list[tuple[int, bytes]], int]:
    """What Kafka's consumer (``CompletedFetch``) takes of the batches of one reply, and where it goes on."""
    found: list[tuple[int, bytes]] = []
    waiting = sorted(aborted, key=lambda one: one[1])
    out: set[int] = set()
    for start, size, _ in walk(memoryview(data), 0, len(data)):
        info = read_header(data, start)
        end = int.from_bytes(data[start : start + 8], "big") + info.span  # behind its last offset, as clients have it
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
