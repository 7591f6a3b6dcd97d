"""What the console keeps of each topic: it is small, since there may be ten thousand of them."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from pathlib import Path

from appliance.catalog import FILE_NAME, Catalog, Topic
from appliance.console.observer import Poller
from appliance.metrics.looks import Look
from appliance.metrics.readings import NO_COUNTS, of_status
from appliance.names import TopicPartition
from appliance.status import NOTHING

from ..support.measures import FRAMES, kept_by_appliance

TOPICS = 2_000
BYTES_OF_TOPIC_MAX = 450
"""Two polls, as pages may still be sent the one before.  Measured: 300."""


def test_each_topic_takes_little_memory_and_an_idle_one_costs_no_new_row(tmp_path: Path) -> None:
    names = [f"topic-of-a-team-{number:05}" for number in range(TOPICS)]
    settings = {"retention.ms": "86400000"}
    topics = {name: Topic(name, {0: [0]}, dict(settings), f"{number:032x}") for number, name in enumerate(names)}
    Catalog(tmp_path / FILE_NAME, topics).store()
    del topics
    counts = {TopicPartition(name, 0): NO_COUNTS._replace(high_watermark=900, records=9) for name in names}
    readings = of_status(NOTHING | {"pid": 1, "partitions": []}, 0.0)._replace(partitions=counts)
    clock = iter(range(1_000))

    def a_poller() -> contextlib.closing[Poller]:
        return contextlib.closing(Poller(tmp_path, 0, lambda: next(clock), lambda: 0.0))

    with a_poller() as poller:
        poller.take(Look(readings), [])  # what is loaded once
    with a_poller() as poller:
        tracemalloc.start(FRAMES)
        try:
            first = poller.take(Look(readings), [])
            second = poller.take(Look(readings._replace(partitions=dict(counts))), [])
            gc.collect()
            kept = kept_by_appliance() / TOPICS
        finally:
            tracemalloc.stop()
        assert kept < BYTES_OF_TOPIC_MAX, f"{kept:.0f} bytes for each topic"
        assert (first.rated, second.rated) == (False, True)
        assert all(second.topics[name] is first.topics[name] for name in names)
        assert second.topics[names[7]].own == settings and second.topics[names[7]].messages == 9

        busy = TopicPartition(names[7], 0)
        moved = dict(counts) | {busy: counts[busy]._replace(high_watermark=1_000, records=10)}
        rows = [poller.take(Look(readings._replace(partitions=now)), []).topics for now in (moved, dict(moved))]
        assert [row[names[7]].bytes_per_s for row in rows] == [100, 0], "an idle topic's rate ends with it"
        assert rows[0][names[7]].messages_per_s == 1 and rows[1][names[8]] is first.topics[names[8]]
