"""Checks that the records of a batch can be read, before it is stored: no client can step over what it cannot read.

A record is::

    length of what follows                varint, at most 5 bytes
    attributes                            1 byte, without a meaning; below 128, since some clients read it as a varint
    timestamp, less that of the batch     varint, at most 10 bytes
    offset, less that of the batch        varint: 0, 1, 2 ...
    key, value                            varint of the length, -1: none; bytes
    number of headers                     varint
    name and value of each header         as key and value; there is a name, in UTF-8

All varints are zigzag.  The records fill the payload, and there are as many as the header of the batch says.
Compressed ones are unpacked first, up to a bound.

Reading field by field (:func:`_largest_delta`) takes more than a microsecond a record.  What most records are is seen
faster, by two guesses that accept nothing which reading field by field would refuse:

- They are alike (:func:`_are_alike`): keys of one length, values of one length, no headers.  Then a field of all
  records is one slice with a step, which is compared as a whole.
- They are plain (:func:`_are_plain`): no keys, no headers.  Then the length of a record tells where its fields are.  A
  short loop goes from record to record and collects their fronts, which are compared as above.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ..errors import CorruptBatch, InvalidRecord, InvalidTimestamp
from .batch import CODEC_MASK, HEADER_BYTES, BatchHeader
from .compression import decompress
from .encode import DELTA_STEPS, varint

INT_BYTES_MAX: Final = 5
LONG_BYTES_MAX: Final = 10
TIME_MAX: Final = (1 << 63) - 1
UNPACKED_BYTES_MIN: Final = 16 << 20
UNPACKED_FACTOR: Final = 16
ALIKE_MIN: Final = 4
"""Fewest records for the guesses: fewer are read faster field by field."""
ALIKE_MAX: Final = 1 << 16
"""Most records for the guesses."""
FIRST_BYTES_MAX: Final = 128
"""Bytes of the first record that are looked at: with a longer key they do not tell the length of its value."""
COPIED_BYTES_MAX: Final = 64 << 10
"""Larger payloads are compared where they are: reading them from there is cheaper than a copy."""
PLAIN_FRONT_BYTES: Final = 8
"""Attributes, time, offset delta, no key, length of the value: at most 1, 1, 3, 1 and 2 bytes."""
PLACES_MAX: Final = 4096
LAYOUTS_MAX: Final = 64
LAYOUT_RECORDS_MAX: Final = 512
"""Layouts that are kept, and the most records of one."""

Data = Any
"""bytes or an mmap, which are quick to slice with a step.  A memoryview is not."""


def unpacked_bytes_max(message_bytes_max: int) -> int:
    """How much a batch may unpack to in a topic with this ``max.message.bytes``."""
    return max(UNPACKED_BYTES_MIN, UNPACKED_FACTOR * message_bytes_max)


def check_records(buffer: memoryview, start: int, header: BatchHeader, bytes_max: int) -> int:
    """Check the records of a batch whose header is right.

    ``buffer`` is the whole of its object, no slice.  ``bytes_max`` bounds what compressed records unpack to.

    Returns:
        The largest timestamp of the records in ms: the header may say another.

    Raises:
        InvalidRecord: they cannot be read.
        InvalidTimestamp: a timestamp has more than 64 bits.
        MessageTooLarge: they unpack to more than ``bytes_max``.
    """
    position, stop = start + HEADER_BYTES, start + header.size
    said = header.max_timestamp - header.first_timestamp
    if header.attributes & CODEC_MASK:
        data = _unpacked(header.attributes & CODEC_MASK, bytes(buffer[position:stop]), bytes_max)
    elif stop - position > COPIED_BYTES_MAX and _are_alike(buffer.obj, position, stop - position, header.count, said):
        return header.max_timestamp
    else:
        data = bytes(buffer[position:stop])
    if _is_guessed(data, header.count, said):
        return header.max_timestamp
    try:
        largest = header.first_timestamp + _largest_delta(data, header.count)
    except IndexError:
        raise InvalidRecord(f"the records of a batch leave its {len(data)} bytes") from None
    if largest > TIME_MAX:
        raise InvalidTimestamp(f"a timestamp of {largest} ms has more than 64 bits")
    return largest


def _unpacked(codec: int, payload: bytes, bytes_max: int) -> bytes:
    try:
        return decompress(codec, payload, bytes_max)
    except CorruptBatch as error:  # the checksum is right: sent again, it would be the same
        raise InvalidRecord(str(error)) from None


def _is_guessed(data: bytes, count: int, said: int) -> bool:
    """Whether a guess shows that ``data`` is right, and ``said`` the largest timestamp, less that of the batch.

    False is no answer: then the records are read field by field.
    """
    if count == 1:
        return not said and _is_lone(data)
    if not ALIKE_MIN <= count <= ALIKE_MAX:
        return False
    return _are_alike(data, 0, len(data), count, said) or _are_plain(data, count, said)


# ---- field by field


def _largest_delta(data: bytes, count: int) -> int:
    """The largest timestamp of the records, less that of the batch.  Raises IndexError where they leave ``data``."""
    largest = -1 << 63
    position = 0
    for index in range(count):
        # Almost every number has one byte or two, so these are read here.
        length = data[position]
        if length < 0x80:
            position += 1
        elif (high := data[position + 1]) < 0x80:
            length = length & 0x7F | high << 7
            position += 2
        else:
            length, position = _varint(data, position, INT_BYTES_MAX)
        if length & 1:
            raise InvalidRecord(f"record {index} of a batch has a negative length")
        end = position + (length >> 1)
        if end > len(data):
            raise IndexError
        if data[position] >= 0x80:
            raise InvalidRecord(f"record {index} of a batch has attributes {data[position]:#x}")
        time = data[position + 1]
        if time < 0x80:
            position += 2
        else:
            time, position = _varint(data, position + 1, LONG_BYTES_MAX)
        time = (time >> 1) ^ -(time & 1)
        if time > largest:
            largest = time
        delta = data[position]
        if delta < 0x80:
            position += 1
        elif (high := data[position + 1]) < 0x80:
            delta = delta & 0x7F | high << 7
            position += 2
        else:
            delta, position = _varint(data, position, INT_BYTES_MAX)
        if delta != index << 1:
            raise InvalidRecord(f"record {index} of a batch has the offset delta {(delta >> 1) ^ -(delta & 1)}")
        position = position + 1 if data[position] == 1 else _after(data, position)
        length = data[position]
        if length < 0x80 and not length & 1:
            position += 1 + (length >> 1)
        else:
            position = _after(data, position)
        position = position + 1 if not data[position] else _after_headers(data, position, end)
        if position != end:
            raise InvalidRecord(f"record {index} of a batch has another length than declared")
    if position != len(data):
        raise InvalidRecord(f"{len(data) - position} bytes follow the last of {count} records")
    return largest


def _varint(data: bytes, position: int, bytes_max: int) -> tuple[int, int]:
    """The number at ``position``, still zigzag, and the position after it."""
    number = 0
    for shift in range(0, 7 * bytes_max, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise InvalidRecord(f"a number of more than {bytes_max} bytes")


def _after(data: bytes, position: int, *, may_lack: bool = True) -> int:
    """The position after the bytes whose length is at ``position``."""
    length, position = _varint(data, position, INT_BYTES_MAX)
    if not length & 1:
        return position + (length >> 1)
    if length != 1 or not may_lack:
        raise InvalidRecord(f"a field of {(length >> 1) ^ -(length & 1)} bytes")
    return position


def _after_headers(data: bytes, position: int, end: int) -> int:
    count, position = _varint(data, position, INT_BYTES_MAX)
    if count & 1 or count >> 1 > end - position:
        raise InvalidRecord(f"a record of {(count >> 1) ^ -(count & 1)} headers")
    for _ in range(count >> 1):
        stop = _after(data, position, may_lack=False)
        _, name_at = _varint(data, position, INT_BYTES_MAX)
        try:
            data[name_at:stop].decode()
        except UnicodeDecodeError:
            raise InvalidRecord("a name of a header that is no UTF-8") from None
        position = _after(data, stop)
    return position


# ---- alike: one slice for each field


class _Span(NamedTuple):
    """Consecutive records of one size: where each of their fields is, and what it has to be in all of them."""

    times: tuple[slice, ...]
    fields: tuple[tuple[slice, bytes], ...]


Layout = tuple[_Span, ...]
_layouts: dict[tuple[int, int], Layout] = {}
"""By the size and the number of the records: those that fitted last."""


def _are_alike(data: Data, position: int, size: int, count: int, said: int) -> bool:
    layouts = _layouts.get((size, count))
    if layouts is not None and _fits(data, position, layouts, said):
        return True
    lengths = _first_lengths(data[position : position + FIRST_BYTES_MAX])
    if lengths is None:
        return False
    late = size - _size(*lengths, count, 0)
    if not 0 <= late < count:
        return False
    # So many records are a byte longer, the last ones: their times have two bytes.
    if late and _size(*lengths, count, late) != size:
        return False
    layout = _layout(*lengths, count, late)
    if not _fits(data, position, layout, said):
        return False
    if count <= LAYOUT_RECORDS_MAX:
        if len(_layouts) >= LAYOUTS_MAX:
            _layouts.clear()
        _layouts[size, count] = layout
    return True


def _fits(data: Data, position: int, layout: Layout, said: int) -> bool:
    seen = False
    for times, fields in layout:
        if position:
            times = tuple(_moved(piece, position) for piece in times)
            fields = tuple((_moved(piece, position), expected) for piece, expected in fields)
        for piece, expected in fields:
            if data[piece] != expected:
                return False
        largest = _largest_time([data[piece] for piece in times], said)
        if largest > said:
            return False
        seen = seen or largest == said
    return seen


def _moved(piece: slice, by: int) -> slice:
    return slice(piece.start + by, piece.stop + by, piece.step)


def _first_lengths(front: bytes) -> tuple[int, int] | None:
    """The lengths of key and value of the first record, -1 for none; None when ``front`` does not tell."""
    try:
        _, at = _varint(front, 0, INT_BYTES_MAX)
        key, at = _varint(front, at + 3, INT_BYTES_MAX)  # behind attributes, time and offset delta 0
        key_bytes = key >> 1 if key != 1 else -1
        value, _ = _varint(front, at + max(key_bytes, 0), INT_BYTES_MAX)
    except (IndexError, InvalidRecord):
        return None
    return key_bytes, value >> 1 if value != 1 else -1


def _sizes(key_bytes: int, value_bytes: int, count: int, late: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields first record, number of records, the size of a body, of its time, and of its offset delta, of each span.

    The keys and values of all records have these lengths; the last ``late`` have times of two bytes.
    """
    fixed_bytes = 2 + sum(len(varint(length)) + max(length, 0) for length in (key_bytes, value_bytes))
    index = 0
    while index < count:
        delta_bytes = 1 if index < DELTA_STEPS[1] else 2 if index < DELTA_STEPS[2] else 3
        time_bytes = 1 if index < count - late else 2
        stop = min(DELTA_STEPS[delta_bytes], count - late if time_bytes == 1 else count)
        yield index, stop - index, fixed_bytes + time_bytes + delta_bytes, time_bytes, delta_bytes
        index = stop


def _size(key_bytes: int, value_bytes: int, count: int, late: int) -> int:
    sizes = _sizes(key_bytes, value_bytes, count, late)
    return sum(number * (len(varint(body_bytes)) + body_bytes) for _, number, body_bytes, _, _ in sizes)


def _layout(key_bytes: int, value_bytes: int, count: int, late: int) -> Layout:
    key, value = varint(key_bytes), varint(value_bytes)
    spans: list[_Span] = []
    position = 0
    for first, number, body_bytes, time_bytes, delta_bytes in _sizes(key_bytes, value_bytes, count, late):
        length = varint(body_bytes)
        stride = len(length) + body_bytes
        stop = position + number * stride
        time_at = position + len(length) + 1
        delta_at = time_at + time_bytes
        key_at = delta_at + delta_bytes
        value_at = key_at + len(key) + max(key_bytes, 0)
        columns = list(enumerate(_deltas(delta_bytes, first, first + number), delta_at))
        constants = (
            (position, length + b"\0"), (key_at, key), (value_at, value), (position + stride - 1, b"\0")
        )  # fmt: skip
        for at, constant in constants:
            columns += enumerate((bytes((byte,)) * number for byte in constant), at)
        fields = tuple((slice(at, stop, stride), column) for at, column in columns)
        spans.append(_Span(tuple(slice(at, stop, stride) for at in range(time_at, delta_at)), fields))
        position = stop
    return tuple(spans)


def _deltas(width: int, first: int, stop: int) -> list[bytes]:
    """The ``width`` bytes of the offset deltas from ``first`` to ``stop``: one column for each byte."""
    base = DELTA_STEPS[width - 1]
    return [column[first - base : stop - base] for column in _all_deltas(width)]


@cache
def _all_deltas(width: int) -> list[bytes]:
    """The columns of all offset deltas of ``width`` bytes, up to ALIKE_MAX."""
    stop = min(DELTA_STEPS[width], ALIKE_MAX)
    columns = []
    for digit in range(width):
        more = 0x80 if digit + 1 < width else 0
        # Digits count by 128; the last one counts by 64, since zigzag doubles.
        same = 64 * 128 ** (digit - 1) if digit else 1
        values = range(0, 128, 2) if not digit else range(128)
        period = b"".join(bytes((more | value,)) * min(same, stop) for value in values)
        column = period * -(-stop // len(period))
        columns.append(column[DELTA_STEPS[width - 1] : stop])
    return columns


def _largest_time(columns: list[bytes], said: int) -> int:
    """The largest of the times that these columns hold, or any number above ``said``."""
    low = columns[0]
    if len(columns) == 1:
        if low.translate(None, _TIMES_UP_TO[said] if 0 <= said < 64 else _ONE_BYTE):
            return said + 1
        return said if 0 <= said < 64 and 2 * said in low else said - 1
    high = columns[1]
    if not high.isascii() or low.translate(None, _WITH_MORE):
        return said + 1
    pairs = bytearray(2 * len(low))
    pairs[::2], pairs[1::2] = low, high
    largest = max(memoryview(pairs).cast("H"))
    return said + 1 if largest & 1 else (largest & 0x7F | largest >> 1 & 0x3F80) >> 1


_ONE_BYTE: Final = bytes(range(0x80))
_WITH_MORE: Final = bytes(range(0x80, 0x100))
"""The bytes of a varint that end it, and those that do not."""
_TIMES_UP_TO: Final = [bytes(byte for byte in range(0x80) if byte & 1 or byte >> 1 <= said) for said in range(64)]
"""Encoded times of one byte up to ``said``; odd ones are negative."""


# ---- plain: one step for each record


class _Places(dict[bytes, tuple[int, int, bytes]]):
    """Where the fields of a plain record are, by three bytes: the one before it, which must be 0, and its first two.

    The size of the record, where its attributes are, and how the length of its value has to be encoded: two bytes, and
    a mask for the second one, which may belong to the value.
    """

    def __init__(self, delta_bytes: int) -> None:
        super().__init__()
        self._fixed_bytes = 4 + delta_bytes  # attributes, time, offset delta, no key, no headers

    def __missing__(self, front: bytes) -> tuple[int, int, bytes]:
        """Raises IndexError or InvalidRecord: the record is not plain, or too large."""
        number, length_bytes = _varint(front[1:], 0, 2)
        value_bytes = _value_bytes(number >> 1, self._fixed_bytes)
        if front[0] or number & 1 or value_bytes < 0:
            raise InvalidRecord("no plain record")
        if len(self) >= PLACES_MAX:
            self.clear()
        value = varint(value_bytes)
        tail = value + b"\xff" if len(value) == 2 else value + b"\0\0"
        place = self[front] = length_bytes + (number >> 1), length_bytes + 1, tail
        return place


_places: Final = [_Places(width) for width in range(1, 4)]


def _value_bytes(body_bytes: int, fixed_bytes: int) -> int:
    """The length of the value in a plain record with this length of its body; -1: there is none."""
    rest = body_bytes - fixed_bytes
    for width in range(1, 4):
        if len(varint(rest - width)) == width and rest >= width:
            return rest - width
    return -1


def _are_plain(data: bytes, count: int, said: int) -> bool:
    # Each record follows a 0, the number of headers of the one before.
    padded = b"".join((b"\0", data, bytes(PLAIN_FRONT_BYTES)))
    position, seen = 0, False
    for width, (first, stop) in enumerate(pairwise((*DELTA_STEPS[:3], ALIKE_MAX)), 1):
        number = min(stop, count) - first
        if number <= 0:
            break
        places = _places[width - 1]
        fronts: list[bytes] = []
        values: list[bytes] = []
        try:
            for _ in range(number):
                size, at, value = places[padded[position : position + 3]]
                at += position
                fronts.append(padded[at : at + PLAIN_FRONT_BYTES])
                values.append(value)
                position += size
        except (IndexError, InvalidRecord):
            return False
        if position > len(data):
            return False
        front, value = b"".join(fronts), b"".join(values)
        attributes, times, *columns = (front[at::PLAIN_FRONT_BYTES] for at in range(width + 5))
        constants = [*_deltas(width, first, first + number), b"\1" * number, value[::3]]
        if attributes.strip(b"\0") or columns[:-1] != constants:
            return False
        differing = int.from_bytes(columns[-1], "big") ^ int.from_bytes(value[1::3], "big")
        largest = _largest_time([times], said)
        if differing & int.from_bytes(value[2::3], "big") or largest > said:
            return False
        seen = seen or largest == said
    return position == len(data) and not data[-1] and seen


# ---- alone


class _LoneFronts(dict[int, bytes | None]):
    """What is before the value of a plain record that is alone in its batch, by the size of the record."""

    def __missing__(self, size: int) -> bytes | None:
        if len(self) >= PLACES_MAX:
            self.clear()
        front = None
        for width in range(1, INT_BYTES_MAX):
            length, value_bytes = varint(size - width), _value_bytes(size - width, 5)
            if len(length) == width and value_bytes >= 0:
                front = length + b"\0\0\0\1" + varint(value_bytes)
        self[size] = front
        return front


_lone_fronts: Final = _LoneFronts()


def _is_lone(data: bytes) -> bool:
    """Whether ``data`` is one plain record of the time of its batch."""
    front = _lone_fronts[len(data)]
    return front is not None and data.startswith(front) and not data[-1]
