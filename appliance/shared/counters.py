"""Counts requests, their times and the bytes of connections, in pages of shared memory that anybody may read.

Each network worker has a page, and so has the coordinator, for the errors of what it answers.  A partition's table has
a part of the same kind (:mod:`.table`), for its writer.  The supervisor makes a page before the first fork of its
process and keeps it for the next process, so counters go on after a restart.

Layout of a page, in native-endian u64 cells::

    cell                 content                          stored by                       changes
    0   MAGIC            name and version                 the supervisor, at the start    never
    1   GAUGES           one cell per GAUGE_NAMES         the process, once a second      up and down
    32  TRAFFIC          per listener: bytes in, out      the process                     grows
    64  REQUESTS         per listener and API: a row      the process                     grows

    a row:  BUCKETS cells, how many requests took less than 2^16, 2^17 ... 2^33 ns, or longer;
            SUM_NS, the time of all; ERRORS, requests with an error in the reply; UNANSWERED, requests without a reply

Each cell has one storing process, and readers load whole aligned cells: a reader sees each cell as it was at some
instant, but not all of a row at the same one.  So a sum may be one request ahead of its buckets, which no monitor
notices.  There is no lock and no message.  A request costs one clock and two stores (``perf/metrics.py`` measures it).

Bounds: listeners by what secures them (LISTENERS), APIs by their keys.  Whatever clients do, a page keeps its size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from ..addresses import SECURITY, Listener
from ..wire.kafka.apis import APIS
from ..wire.requests import ADMIN_API

MAGIC_V1: Final = 0x31_54_4E_43_4C_50_50_41  # b"APPLCNT1", read little-endian

UNIX_SOCKET: Final = "unix"
LISTENERS: Final = (
    "native", *(f"native.{security}" for security in SECURITY[1:]),
    "kafka", *(f"kafka.{security}" for security in SECURITY[1:]),
    UNIX_SOCKET,
)  # fmt: skip
"""Kinds of listeners, named as sockets of systemd are: ``kafka``, ``kafka.SASL_SSL``; all Unix sockets are ``unix``."""
API_NAMES: Final = {key: api.name for key, api in APIS.items()} | {ADMIN_API: "Admin"}
"""Kafka's names, also for the native requests that do the same; Admin: the other native requests."""
API_COUNT: Final = ADMIN_API + 1
assert max(APIS) < ADMIN_API

FIRST_BITS: Final = 16
"""The first bucket has times below 2^16 ns."""
BUCKETS: Final = 19
BOUNDS_S: Final = tuple(2 ** (FIRST_BITS + index) / 1e9 for index in range(BUCKETS - 1))
"""The upper bounds of all buckets but the last, in seconds."""
BUCKET_OF: Final = bytes(min(max(bits - FIRST_BITS, 0), BUCKETS - 1) for bits in range(65))
"""The bucket of a time, by the bits of its nanoseconds."""

TIMES_CELLS: Final = BUCKETS + 1
SUM_NS, ERRORS, UNANSWERED = BUCKETS, BUCKETS + 1, BUCKETS + 2
ROW_CELLS: Final = 24

GAUGE_NAMES: Final = (
    "connections", "handed_over", "handshakes", "muted",
    "starved", "parked", "stalled", "memory_wait_ms", "wanted_bytes",
    "fetches_waiting", "appends_waiting",
    "arena_used_bytes", "in_hand_bytes", "arena_bytes", "private_bytes", "reserved_bytes", "refused",
)  # fmt: skip
"""connections: open, handed_over and handshakes beside them; muted: of these, by quotas; starved, parked, stalled: of
these, for lack of memory (processes/network/memory_waits.py), memory_wait_ms: how long the one that waits longest does,
wanted_bytes: what all of them need; fetches_waiting: for messages; appends_waiting: partitions that wait for a writer;
in_hand_bytes: of the arena, those that writers have not answered for; reserved_bytes: what unfinished requests have, or
may take, beside the arena; refused: connections, in all."""
GAUGES, TRAFFIC, REQUESTS = 1, 32, 64
assert GAUGES + len(GAUGE_NAMES) <= TRAFFIC and TRAFFIC + 2 * len(LISTENERS) <= REQUESTS
CELL_COUNT: Final = REQUESTS + len(LISTENERS) * API_COUNT * ROW_CELLS
PAGE_BYTES: Final = CELL_COUNT * 8

Cells = Any
"""A ``memoryview`` cast to "Q", or a list of ints."""


def listener_number(listener: Listener) -> int:
    """The index into LISTENERS."""
    if listener.unix:
        return LISTENERS.index(UNIX_SOCKET)
    named = listener.protocol if listener.security == SECURITY[0] else f"{listener.protocol}.{listener.security}"
    return LISTENERS.index(named)


def add_time(cells: Cells, at: int, elapsed_ns: int, count: int = 1) -> None:
    """Count ``count`` things that took ``elapsed_ns`` each, in the TIMES_CELLS cells from ``at`` on."""
    cells[at + BUCKET_OF[elapsed_ns.bit_length()]] += count
    cells[at + SUM_NS] += elapsed_ns * count


class ListenerCounters:
    """Counts the requests and bytes of one kind of listener, on the side of the process that serves it."""

    __slots__ = ("_bytes_in", "_bytes_out", "_cells", "_clock_ns", "_rows")

    def __init__(self, cells: Cells, rows: int, traffic: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """``rows``: the cell of the row of API 0; ``traffic``: the cell of the bytes in."""
        self._cells, self._rows, self._clock_ns = cells, rows, clock_ns
        self._bytes_in, self._bytes_out = traffic, traffic + 1

    def answered(self, api: int, count: int, since_ns: int) -> None:
        """Count requests that are answered now, all of which came at ``since_ns``."""
        elapsed_ns = self._clock_ns() - since_ns
        cells, row = self._cells, self._rows + api * ROW_CELLS
        cells[row + BUCKET_OF[elapsed_ns.bit_length()]] += count
        cells[row + SUM_NS] += elapsed_ns * count

    def unanswered(self, api: int, count: int) -> None:
        """Count requests that want no reply."""
        self._cells[self._rows + api * ROW_CELLS + UNANSWERED] += count

    def failed(self, api: int, count: int = 1) -> None:
        """Count errors."""
        self._cells[self._rows + api * ROW_CELLS + ERRORS] += count

    def received(self, size: int) -> None:
        self._cells[self._bytes_in] += size

    def sent(self, size: int) -> None:
        self._cells[self._bytes_out] += size


class Counters:
    """One page, on the side of its process.  Without cells it counts for itself, in memory that nobody else sees."""

    def __init__(self, cells: Cells | None = None) -> None:
        self._cells = [0] * CELL_COUNT if cells is None else cells
        self._by_listener = [
            ListenerCounters(self._cells, REQUESTS + number * API_COUNT * ROW_CELLS, TRAFFIC + 2 * number)
            for number in range(len(LISTENERS))
        ]

    def listener_counters(self, listener: Listener) -> ListenerCounters:
        return self._by_listener[listener_number(listener)]

    def set_gauges(self, values: Sequence[int]) -> None:
        """Store the present values of GAUGE_NAMES, in their order."""
        for index, value in enumerate(values):
            self._cells[GAUGES + index] = value


class RequestCounts(NamedTuple):
    """What a row has: how many requests took how long, in how many ns together, with how many errors."""

    buckets: tuple[int, ...]
    sum_ns: int
    errors: int
    unanswered: int

    @property
    def requests(self) -> int:
        return sum(self.buckets) + self.unanswered

    @staticmethod
    def total(rows: Iterable[RequestCounts]) -> RequestCounts:
        """The sum of rows, one or more."""
        buckets, *rest = zip(*rows, strict=True)
        return RequestCounts(tuple(map(sum, zip(*buckets, strict=True))), *map(sum, rest))


def read_row(values: Sequence[int], at: int = 0) -> RequestCounts:
    """A row of a copy of a page's cells."""
    return RequestCounts(tuple(values[at : at + BUCKETS]), *values[at + SUM_NS : at + UNANSWERED + 1])


class PageCounts(NamedTuple):
    """A copy of a page: gauges by name, (bytes in, bytes out) by listener, and rows in use by (listener, API)."""

    gauges: dict[str, int]
    traffic: dict[str, tuple[int, int]]
    requests: dict[tuple[str, str], RequestCounts]


def read_page(cells: Cells) -> PageCounts:
    """Copy a page."""
    values = cells[:CELL_COUNT].tolist() if isinstance(cells, memoryview) else cells[:CELL_COUNT]
    gauges = dict(zip(GAUGE_NAMES, values[GAUGES:], strict=False))
    traffic = {
        name: (values[TRAFFIC + 2 * number], values[TRAFFIC + 2 * number + 1]) for number, name in enumerate(LISTENERS)
    }
    requests = {}
    for number, name in enumerate(LISTENERS):
        for key, api in API_NAMES.items():
            at = REQUESTS + (number * API_COUNT + key) * ROW_CELLS
            if any(values[at : at + ROW_CELLS]):
                requests[name, api] = read_row(values, at)
    return PageCounts(gauges, traffic, requests)
