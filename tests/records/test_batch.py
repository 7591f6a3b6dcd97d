"""appliance.records.batch: what the broker admits, and that nothing altered on the way gets in."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from appliance.catalog import LEADER_EPOCH
from appliance.errors import (
    ApplianceError,
    ClientFault,
    CorruptBatch,
    InvalidRecord,
    InvalidRequest,
    MessageTooLarge,
    UnsupportedVersion,
)
from appliance.records import batch
from appliance.records.batch import BatchHeader, check_batch, place, walk

BYTES_MAX = 1 << 20


def make(
    count: int = 3,
    payload: bytes = b"\x10\0\0\0\1\4ab\0" * 3,
    attributes: int = 0,
    last_delta: int | None = None,
    magic: int = 2,
    length: int | None = None,
) -> bytearray:
    """A batch with a right checksum over whatever fields are asked for."""
    delta = count - 1 if last_delta is None else last_delta
    covered = struct.pack(">hiqqqhii", attributes, delta, 1000, 1002, 7, 8, 9, count) + payload
    size = batch.HEADER_BYTES + len(payload)
    size = size - batch.LENGTH_END if length is None else length
    return bytearray(struct.pack(">qiibI", 0, size, -1, magic, crc32c(covered)) + covered)


def test_every_field_is_read() -> None:
    data = make()
    expected = BatchHeader(len(data), 3, 1002, 1000, 7, 8, 9, 0, 3)
    assert check_batch(memoryview(data), 0, len(data), BYTES_MAX) == expected
    assert check_batch(memoryview(b"junk" + data + b"junk"), 4, 8 + len(data), BYTES_MAX) == expected


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (make(magic=1), UnsupportedVersion, "magic 1"),
        (make(length=48), CorruptBatch, "shorter than its header"),
        (make(length=-12), CorruptBatch, "shorter than its header"),
        (make(length=500), CorruptBatch, "only 88 are there"),
        (make(length=BYTES_MAX), MessageTooLarge, "max.message.bytes"),
        (make(length=2**31 - 1), MessageTooLarge, "max.message.bytes"),
        (make(count=0), InvalidRecord, "0 records"),
        (make(count=-5), InvalidRecord, "-5 records"),
        (make(count=89), InvalidRecord, "uncompressed"),
        (make(last_delta=3), InvalidRecord, "delta 3"),
        (make(attributes=batch.MARKED), InvalidRequest, "brokers only"),
        (make(attributes=batch.CONTROL), InvalidRequest, "brokers only"),
        (make(attributes=batch.DELETE_HORIZON), InvalidRequest, "horizon"),
        (make(attributes=5), UnsupportedVersion, "codec 5"),
        (bytearray(b"\0" * 200), UnsupportedVersion, "magic 0"),
    ],
)
def test_what_is_refused(data: bytearray, error: type[ApplianceError], says: str) -> None:
    with pytest.raises(error, match=says):
        check_batch(memoryview(data), 0, len(data), BYTES_MAX)


def test_the_limit_is_inclusive() -> None:
    data = make()
    check_batch(memoryview(data), 0, len(data), len(data))
    with pytest.raises(MessageTooLarge):
        check_batch(memoryview(data), 0, len(data), len(data) - 1)


def test_every_truncation_is_corrupt() -> None:
    data = memoryview(make())
    for stop in range(len(data)):
        with pytest.raises(CorruptBatch):
            check_batch(data, 0, stop, BYTES_MAX)


def test_every_flipped_bit_behind_the_base_offset_is_refused() -> None:
    """The base offset and the leader epoch are the broker's own, and lie outside the checksum."""
    data = make()
    for position in [*range(8, 12), *range(16, len(data))]:
        for bit in range(8):
            data[position] ^= 1 << bit
            with pytest.raises(ClientFault):
                check_batch(memoryview(data), 0, len(data), BYTES_MAX)
            data[position] ^= 1 << bit
    check_batch(memoryview(data), 0, len(data), BYTES_MAX)


@pytest.mark.parametrize("epoch", [LEADER_EPOCH, 7])
def test_place_touches_the_base_offset_and_the_leader_epoch_only(epoch: int) -> None:
    """Clients send any epoch; what is stored and served has the partition's."""
    data = make()
    data[12:16] = b"\xff\xff\xff\xfe"
    view = memoryview(bytearray(b"xx" + data + b"yy"))
    place(view, 2, 1 << 40, len(data), 3, epoch)
    assert view[2:10] == struct.pack(">q", (1 << 40) + len(data) - 3)
    assert view[14:18] == struct.pack(">i", epoch)
    assert view[:2] == b"xx" and view[10:14] == data[8:12] and view[18:] == data[16:] + b"yy"
    check_batch(view, 2, len(view), BYTES_MAX)


def test_walk_gives_every_whole_batch_and_stops_at_a_cut_one() -> None:
    first, second = make(), make(count=1, payload=b"\x10\0\0\0\1\4ab\0")
    place(memoryview(first), 0, 0, len(first), 3)
    place(memoryview(second), 0, len(first), len(second), 1)
    data = memoryview(first + second)
    both = [(0, len(first), len(first)), (len(first), len(second), len(data))]
    for stop in range(len(data) + 1):
        whole = (stop >= len(first)) + (stop == len(data))
        assert list(walk(data, 0, stop)) == both[:whole]


@pytest.mark.parametrize(
    ("bad", "error"),
    [(make(length=48), CorruptBatch), (make(length=-99), CorruptBatch), (make(magic=0), UnsupportedVersion)],
)
def test_walk_does_not_run_in_circles(bad: bytearray, error: type[ApplianceError]) -> None:
    good = make()
    steps = walk(memoryview(good + bad), 0, len(good) + len(bad))
    assert next(steps)[0] == 0
    with pytest.raises(error):
        next(steps)
