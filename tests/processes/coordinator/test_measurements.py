"""appliance.processes.coordinator.measurements: what is in a partition, once it is flushed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from appliance.names import TopicPartition as Part

from ...support.coordinator_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_lag_waits_for_the_flush_of_what_acks_1_has_acknowledged(bench: Bench) -> None:
    bench.table.set_log_end_offset(300)

    async def flushed_meanwhile() -> int:
        asking = asyncio.ensure_future(bench.measurements.measure({Part("logs", 0): None}))
        await asyncio.sleep(0)
        assert not asking.done()
        bench.table.publish_high_watermark(300, 30)
        return (await asking)["logs", 0].end

    assert bench.run(flushed_meanwhile()) == 300
    bench.table.set_log_end_offset(350)
    assert (
        bench.run(bench.measurements.measure({Part("logs", 0): None}))["logs", 0].end == 300
    )  # its flush takes longer
