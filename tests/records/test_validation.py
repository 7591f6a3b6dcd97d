"""appliance.records.validation: what is stored can be read, by us and by others, and its largest timestamp is true."""

from __future__ import annotations

import mmap
import struct
from typing import Any

import pytest
from aiokafka.record import MemoryRecords
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import ClientFault, InvalidRecord, InvalidTimestamp, MessageTooLarge
from appliance.records import validation
from appliance.records.batch import CODECS, CRC_AT, HEADER, HEADER_BYTES, BatchHeader, check_batch
from appliance.records.compression import compress, decompress
from appliance.records.decode import decode_batch
from appliance.records.encode import Fields, encode_batch, encode_values, varint
from appliance.records.validation import check_records, unpacked_bytes_max

from ..support.long import LONG

BYTES_MAX = 1 << 24
FIRST_MS = 1_700_000_000_000


def made(payload: bytes, count: int, first: int = FIRST_MS, largest: int = FIRST_MS, codec: int = 0) -> bytes:
    """A batch with a right checksum over any payload."""
    covered = struct.pack(">hiqqqhii", codec, count - 1, first, largest, -1, -1, -1, count) + payload
    return struct.pack(">qiibI", 0, HEADER_BYTES - 12 + len(payload), 0, 2, crc32c(covered)) + covered


def checked(raw: bytes, before: int = 0) -> int:
    """The largest timestamp, with the batch at ``before`` of a larger buffer, as in a worker's arena."""
    with mmap.mmap(-1, before + len(raw) + 100) as mapped:
        mapped[before : before + len(raw)] = raw
        mapped[before + len(raw) :] = b"\xff" * 100
        with memoryview(mapped) as buffer:
            info = check_batch(buffer, before, before + len(raw), BYTES_MAX)
            return check_records(buffer, before, info, BYTES_MAX)


# ---- a second reading of the format, as slow and as plain as can be


class Reading:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, bytes_max: int) -> int:
        number = 0
        for place in range(bytes_max):
            byte = self.data[self.at]
            self.at += 1
            number += (byte % 128) << 7 * place
            if byte < 128:
                return number // 2 if number % 2 == 0 else -(number // 2) - 1
        raise ValueError("too many bytes")

    def field(self, least: int) -> None:
        length = self.number(5)
        assert length >= least
        self.at += max(length, 0)

    def record(self, index: int) -> int:
        length = self.number(5)
        end = self.at + length
        assert length >= 0 and end <= len(self.data)
        assert self.data[self.at] < 128
        self.at += 1
        time = self.number(10)
        assert self.number(5) == index
        self.field(-1)
        self.field(-1)
        headers = self.number(5)
        assert 0 <= headers <= len(self.data)
        for _ in range(headers):
            name_at = self.at
            self.field(0)
            name = Reading(self.data[name_at : self.at])
            name.number(5)
            name.data[name.at :].decode()
            self.field(-1)
        assert self.at == end
        return time


def read(payload: bytes, count: int) -> int | None:
    """The largest timestamp, less that of the batch; None when the records cannot be read."""
    reading = Reading(payload)
    try:
        times = [reading.record(index) for index in range(count)]
        assert reading.at == len(payload)
    except (AssertionError, IndexError, ValueError):
        return None
    return max(times)


# ---- what clients send

values = st.binary(max_size=90) | st.none()
times = st.integers(0, 63) | st.integers(-70, 200) | st.integers(-(1 << 40), 1 << 40)
headers = st.lists(st.tuples(st.text(max_size=5), values), max_size=3)


@st.composite
def alike(draw: st.DrawFn) -> list[Fields]:
    """Records of one length, in the order of their times, as producers of logs send them."""
    count = draw(st.sampled_from([1, 2, 3, 4, 5, 63, 64, 65, 66, 130]))
    key, value = draw(values), draw(values)
    step, late = draw(st.sampled_from([0, 0, 1, 3])), draw(st.integers(0, 130))
    return [(key, value, (), FIRST_MS + (index * step if index >= late else 0)) for index in range(count)]


@st.composite
def plain(draw: st.DrawFn) -> list[Fields]:
    sizes = draw(st.lists(st.integers(0, 80) | st.integers(8000, 8400), min_size=1, max_size=90))
    return [(None, bytes([index % 256]) * size, (), FIRST_MS + index // 9) for index, size in enumerate(sizes)]


def any_records() -> st.SearchStrategy[list[Fields]]:
    one = st.tuples(values, values, headers, times.map(lambda time: FIRST_MS + time))
    return st.lists(one, min_size=1, max_size=9)


records = alike() | plain() | any_records()


@given(records, st.sampled_from(CODECS), st.integers(0, 3))
def test_what_clients_send_is_right_and_its_time_is_known(given: list[Fields], codec: str, before: int) -> None:
    assert checked(encode_batch(given, codec=codec), before) == max(record[3] for record in given)


@given(records, st.integers(-3, 3) | st.integers(-(1 << 62), 1 << 62))
def test_a_header_that_says_another_time_is_corrected(given: list[Fields], off: int) -> None:
    raw = bytearray(encode_batch(given))
    largest = max(record[3] for record in given)
    raw[35:43] = struct.pack(">q", max(-1, min(largest + off, (1 << 63) - 1)))
    raw[CRC_AT : CRC_AT + 4] = crc32c(raw[CRC_AT + 4 :]).to_bytes(4, "big")
    assert checked(bytes(raw)) == largest


@pytest.mark.parametrize("count", [8191, 8192, 8193, 20_000, validation.ALIKE_MAX, validation.ALIKE_MAX + 1])
def test_large_batches(count: int) -> None:
    """Offset deltas of two and three bytes, in records that are alike, plain, and neither."""
    raw = encode_values([b"%07d" % index for index in range(count)], FIRST_MS)
    assert checked(raw, before=5) == FIRST_MS
    assert checked(encode_values([b"x" * (index % 90) for index in range(count)], FIRST_MS)) == FIRST_MS
    assert checked(encode_batch([(None, b"", (), FIRST_MS + index % 70) for index in range(count)])) == FIRST_MS + 69
    bad = bytearray(raw)
    bad[-1] = 1  # the number of headers of the last record
    bad[CRC_AT : CRC_AT + 4] = crc32c(bad[CRC_AT + 4 :]).to_bytes(4, "big")
    with pytest.raises(InvalidRecord):
        checked(bytes(bad))


# ---- what they do not


@st.composite
def harmed(draw: st.DrawFn) -> tuple[bytes, int]:
    """Payload and count of records that something has changed."""
    given = draw(records)
    payload = bytearray(encode_batch(given)[HEADER_BYTES:])
    count = len(given)
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["byte", "near", "insert", "delete", "count", "end", "pad", "swap"]))
        at = draw(st.integers(0, len(payload) - 1)) if payload else 0
        if kind == "count":
            count = max(1, count + draw(st.sampled_from([-1, 1, 60])))
        elif kind == "end":
            payload += draw(st.binary(min_size=1, max_size=4))
        elif kind == "insert":
            payload[at:at] = draw(st.binary(min_size=1, max_size=2))
        elif not payload:
            continue
        elif kind == "byte":
            payload[at] = draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0x81, 0xFF]))
        elif kind == "near":
            payload[at] = (payload[at] + draw(st.sampled_from([-2, -1, 1, 2]))) % 256
        elif kind == "delete":
            del payload[at]
        elif kind == "pad" and payload[at] < 0x80:  # the same number in one more byte
            payload[at : at + 1] = bytes((payload[at] | 0x80, 0))
        elif kind == "swap":
            other = draw(st.integers(0, len(payload) - 1))
            payload[at], payload[other] = payload[other], payload[at]
    return bytes(payload), count


@settings(max_examples=20_000 if LONG else 600)
@given(harmed(), st.integers(0, 70), st.integers(0, 2))
def test_nothing_is_stored_that_cannot_be_read_and_nothing_refused_that_can(
    given: tuple[bytes, int], said: int, before: int
) -> None:
    """Goal: however the records were changed, the guesses and the reading field by field are what a plain reader says.

    Method: another reader; payloads that are changed in a few bytes, with the time that their header says.
    """
    payload, count = given
    raw = made(payload, count, FIRST_MS, FIRST_MS + said)
    if count > len(raw):
        return
    largest = read(payload, count)
    if largest is None or largest + FIRST_MS >= 1 << 63:
        with pytest.raises(InvalidRecord if largest is None else InvalidTimestamp):
            checked(raw, before)
    else:
        assert checked(raw, before) == FIRST_MS + largest


@settings(max_examples=2_000 if LONG else 200)
@given(harmed())
def test_what_is_stored_others_can_read(given: tuple[bytes, int]) -> None:
    payload, count = given
    raw = made(payload, count)
    if count > len(raw):
        return
    try:
        checked(raw)
    except ClientFault:
        return
    ours = [(record.offset, record.key, record.value) for record in decode_batch(raw)]
    assert len(ours) == count
    theirs: Any = MemoryRecords(raw).next_batch()
    assert [(record.offset, record.key, record.value) for record in theirs] == ours


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_is_refused_whatever_it_calls_itself(codec: str) -> None:
    raw = made(b"this is no compressed data at all", 1, codec=CODECS.index(codec))
    with pytest.raises(InvalidRecord):
        checked(raw)


@pytest.mark.parametrize("codec", range(1, 5))
def test_compressed_records_are_read_and_bounded(codec: int) -> None:
    wrong = encode_values([b"x" * 500] * 3, FIRST_MS)[HEADER_BYTES:-1] + b"\1"
    packed = compress(codec, wrong)
    assert decompress(codec, packed, BYTES_MAX) == wrong
    with pytest.raises(InvalidRecord):
        checked(made(packed, 3, codec=codec))
    bomb = memoryview(bytearray(made(compress(codec, bytes(1 << 20)), 1, codec=codec)))
    info: BatchHeader = check_batch(bomb, 0, len(bomb), BYTES_MAX)
    with pytest.raises(MessageTooLarge):
        check_records(bomb, 0, info, (1 << 20) - 1)


def test_a_time_beyond_64_bits_is_refused() -> None:
    payload = b"".join(
        varint(len(body)) + body
        for body in (b"\0" + varint(delta) + varint(index) + b"\1\1\0" for index, delta in enumerate((0, 1 << 62)))
    )
    assert checked(made(payload, 2, (1 << 62) - 1)) == (1 << 63) - 1
    with pytest.raises(InvalidTimestamp, match="64 bits"):
        checked(made(payload, 2, 1 << 62))


def test_a_bound_for_what_compressed_records_unpack_to() -> None:
    assert unpacked_bytes_max(1000) == validation.UNPACKED_BYTES_MIN
    assert unpacked_bytes_max(4 << 20) == 64 << 20


def test_what_is_remembered_is_bounded() -> None:
    for size in range(2 * validation.LAYOUTS_MAX):
        checked(encode_values([b"x" * size] * 5, FIRST_MS))
        checked(encode_values([b"x" * size], FIRST_MS))
    assert 0 < len(validation._layouts) <= validation.LAYOUTS_MAX
    assert HEADER.size == HEADER_BYTES
