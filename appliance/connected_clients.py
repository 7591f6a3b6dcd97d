"""Says who is connected to an appliance: rows that its workers count, and the file that the supervisor writes them to.

A *client* is all connections that have the same listener, user, address, client id and software.  A worker tells the
supervisor its ``CLIENTS_MAX`` clients that move most, and how many connections the others have; the supervisor adds up
what its workers say and keeps ``<data>/clients.json``.  :func:`.status.read_clients` returns::

    {"clients": [{"user": "User:shipper",      ANONYMOUS without a login
                  "host": "10.0.0.7",          "" at a Unix socket
                  "client_id": "rdkafka",      what it calls itself, cut to TEXT_BYTES_MAX bytes
                  "software": "librdkafka 2.6.1",      by ApiVersions (KIP-511); "" when it does not say
                  "listener": "kafka SASL_SSL://10.0.0.1:9093",
                  "connections": 2, "since": 1763800000.0,     of the oldest, in seconds since 1970
                  "bytes_in": 1, "bytes_out": 2,       of its connections that are open now, since they were opened
                  "in_s": 0.5, "out_s": 0.0}],         bytes per second, in the last seconds (``COUNTED_MS``)
     "others": 0}                              connections of clients that are not in the list

The rows are sorted by what moves most now, then by what has moved most, then by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

CLIENTS_FILE: Final = "clients.json"
CLIENTS_MAX: Final = 200
"""Clients that one worker tells of: their rows fit a message of a channel."""
COUNTED_MS: Final = 5_000
"""A worker tells of them at most this often."""
TEXT_BYTES_MAX: Final = 96
"""Bytes of each text of a row in UTF-8; what clients call themselves may be much longer."""


class ClientName(NamedTuple):
    """What makes connections those of one client."""

    user: str
    host: str
    client_id: str
    software: str
    listener: str


class ClientRow(NamedTuple):
    """A client of one worker.  ``since_ms``: by the monotonic clock, which all processes of a machine share."""

    name: ClientName
    connections: int
    since_ms: int
    bytes_in: int
    bytes_out: int
    in_s: float
    out_s: float

    @property
    def order(self) -> tuple[float, int, ClientName]:
        """Sorts what moves most to the front."""
        return -(self.in_s + self.out_s), -(self.bytes_in + self.bytes_out), self.name


def shown(text: str) -> str:
    """A text of a row, cut to TEXT_BYTES_MAX bytes."""
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= TEXT_BYTES_MAX else encoded[:TEXT_BYTES_MAX].decode("utf-8", "ignore")


def add_up(rows: Iterable[ClientRow]) -> list[ClientRow]:
    """The rows of several workers as those of their appliance, sorted."""
    by_name: dict[ClientName, ClientRow] = {}
    for row in rows:
        if (sum_so_far := by_name.get(row.name)) is not None:
            row = ClientRow(
                row.name,
                sum_so_far.connections + row.connections,
                min(sum_so_far.since_ms, row.since_ms),
                sum_so_far.bytes_in + row.bytes_in,
                sum_so_far.bytes_out + row.bytes_out,
                sum_so_far.in_s + row.in_s,
                sum_so_far.out_s + row.out_s,
            )
        by_name[row.name] = row
    return sorted(by_name.values(), key=lambda row: row.order)


def encode(rows: Iterable[ClientRow], others: int, pid: int, now_ms: int, at_s: float) -> bytes:
    """The content of the file.

    Args:
        rows, others: of all workers.
        pid: of the supervisor.
        now_ms, at_s: the same instant by the monotonic and by the wall clock.
    """
    clients = []
    for row in add_up(rows):
        numbers = row._asdict()
        numbers["since"] = round(at_s - (now_ms - numbers.pop("since_ms")) / 1000, 3)
        numbers |= {name: round(numbers[name], 1) for name in ("in_s", "out_s")}
        clients.append(numbers.pop("name")._asdict() | numbers)
    return msgspec.json.encode({"pid": pid, "clients": clients, "others": others})
