"""appliance.connected_clients: rows of several workers, their order, and what fits a message."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from appliance.connected_clients import CLIENTS_MAX, TEXT_BYTES_MAX, ClientName, ClientRow, add_up, encode, shown
from appliance.processes.control import MESSAGE_BYTES_MAX
from appliance.processes.messages import TO_SUPERVISOR, ClientsCounted

COUNTS = st.integers(0, 2**40)
NAMES = st.builds(ClientName, st.sampled_from("ab"), st.sampled_from("12"), st.just("id"), st.just(""), st.just("k"))
ROWS = st.builds(ClientRow, NAMES, st.integers(1, 9), COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)


@given(st.lists(ROWS))
def test_rows_of_a_client_are_added_up_and_sorted(rows: list[ClientRow]) -> None:
    together = add_up(rows)
    assert {row.name for row in together} == {row.name for row in rows} and len(together) == len(set(together))
    for row in together:
        parts = [part for part in rows if part.name == row.name]
        assert row.since_ms == min(part.since_ms for part in parts)
        assert row[1:2] + row[3:] == tuple(map(sum, zip(*(part[1:2] + part[3:] for part in parts), strict=True)))
    assert together == sorted(together, key=lambda row: row.order)
    assert add_up(reversed(rows)) == together


@given(st.text())
def test_a_shown_text_is_cut_between_characters(text: str) -> None:
    assert len(shown(text).encode()) <= TEXT_BYTES_MAX and text.startswith(shown(text))


def test_as_many_rows_as_there_may_be_fit_a_message() -> None:
    name = ClientName(*(TEXT_BYTES_MAX * "x" for _ in ClientName._fields))
    counted = ClientsCounted([ClientRow(name, 2**31, *[2**63] * 3, 1e300, 1e300)] * CLIENTS_MAX, 2**31)
    packed = msgspec.msgpack.encode(counted)
    assert len(packed) <= MESSAGE_BYTES_MAX
    assert TO_SUPERVISOR.decode(packed) == counted


def test_the_file_has_the_time_by_the_wall_clock_and_rounded_figures() -> None:
    name = ClientName("User:u", "10.0.0.7", "id", "librdkafka 2.6.1", "kafka 127.0.0.1:9092")
    row = ClientRow(name, 1, since_ms=5_000, bytes_in=1, bytes_out=2, in_s=0.5, out_s=3288.7999999999997)
    found = msgspec.json.decode(encode([row], 3, pid=7, now_ms=9_000, at_s=1_000.0))
    numbers = {"connections": 1, "since": 996.0, "bytes_in": 1, "bytes_out": 2, "in_s": 0.5, "out_s": 3288.8}
    assert found == {"pid": 7, "clients": [name._asdict() | numbers], "others": 3}
