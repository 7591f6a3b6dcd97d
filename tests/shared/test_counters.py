"""Pages of counters: what is counted is what a reader of the page sees, and nothing else changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.addresses import SECURITY, Listener
from appliance.shared.counters import (
    API_NAMES,
    BOUNDS_S,
    CELL_COUNT,
    GAUGE_NAMES,
    LISTENERS,
    Counters,
    ListenerCounters,
    RequestCounts,
    listener_number,
    read_page,
)
from appliance.shared.table import ROWS, SegmentTable
from appliance.wire.kafka.apis import APIS

KAFKA = Listener("kafka", "PLAINTEXT", "127.0.0.1:9092")
KINDS = [Listener(protocol, security, "h:1") for protocol in ("native", "kafka") for security in SECURITY]
KINDS.append(Listener("native", "PLAINTEXT", "unix:/run/a.sock"))


def test_every_kind_of_listener_has_counters_of_its_own() -> None:
    assert sorted(listener_number(kind) for kind in KINDS) == list(range(len(LISTENERS)))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS),
            st.sampled_from(sorted(API_NAMES)),
            st.integers(1, 1000),
            st.integers(0, 1 << 40),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_a_page_has_what_was_counted(
    events: list[tuple[Listener, int, int, int, bool]],
) -> None:
    cells = [0] * CELL_COUNT
    counters = Counters(cells)
    wanted: dict[tuple[str, str], list[int]] = {}
    traffic = {name: [0, 0] for name in LISTENERS}
    for listener, api, count, elapsed_ns, failed in events:
        one = counters.listener_counters(listener)
        one._clock_ns = lambda elapsed_ns=elapsed_ns: elapsed_ns + 7  # type: ignore[misc]
        one.answered(api, count, 7)
        one.unanswered(api, 2)
        one.received(count)
        one.sent(elapsed_ns)
        if failed:
            one.failed(api)
        name = LISTENERS[listener_number(listener)]
        row = wanted.setdefault((name, API_NAMES[api]), [0, 0, 0])
        row[0] += count + 2
        row[1] += count * elapsed_ns
        row[2] += failed
        traffic[name][0] += count
        traffic[name][1] += elapsed_ns
    page = read_page(cells)
    assert {key: [row.requests, row.sum_ns, row.errors] for key, row in page.requests.items()} == wanted
    assert {name: list(sizes) for name, sizes in page.traffic.items()} == traffic


@given(st.integers(0, 1 << 62))
def test_a_time_is_in_the_bucket_below_whose_bound_it_lies(elapsed_ns: int) -> None:
    cells = [0] * 100
    ListenerCounters(cells, 0, 90, lambda: elapsed_ns).answered(0, 1, 0)
    (index,) = [index for index in range(len(BOUNDS_S) + 1) if cells[index]]
    below, above = ([0.0, *BOUNDS_S][index], [*BOUNDS_S, float("inf")][index])
    assert below <= elapsed_ns / 1e9 < above or index == 0


def test_gauges_have_their_names() -> None:
    cells = [0] * CELL_COUNT
    Counters(cells).set_gauges(range(1, len(GAUGE_NAMES) + 1))
    assert read_page(cells).gauges == {name: index for index, name in enumerate(GAUGE_NAMES, 1)}


def test_a_table_has_what_its_writer_and_its_workers_count() -> None:
    table = SegmentTable([0] * (ROWS + 4))
    table.publish([0], 0, 0, 0)
    table.count_parts(3)
    table.count_flush(70_000)
    table.count_fetched(0, 100)
    table.count_fetched(63, 11)
    handed_over = table.handed_over(LISTENERS.index("kafka"))
    handed_over.failed(0, 2)
    handed_over.received(9)
    handed_over.sent(8)
    counts = table.counts()
    assert (counts.parts, counts.fetched_bytes, counts.fetched_parts) == (3, 111, 2)
    assert (counts.flush_times[1], sum(counts.flush_times), counts.flush_ns) == (1, 1, 70_000)
    assert counts.counters.flushes == 1
    assert counts.handed_over == {"kafka": (RequestCounts((0,) * 19, 0, 2, 0), 9, 8)}
    assert table.snapshot().bases == (0,), "none of this is the log's"


def test_every_api_has_a_name() -> None:
    assert set(APIS) < set(API_NAMES)
