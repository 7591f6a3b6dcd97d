"""appliance.processes.coordinator.producer_ids: no id twice, whatever happens to the process."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import StorageFault
from appliance.processes.coordinator.producer_ids import COUNTERS, FILE_NAME, GENERATIONS, ProducerIds


@settings(max_examples=25, deadline=None)
@given(
    lives=st.lists(st.lists(st.integers(1, COUNTERS), min_size=1, max_size=8), min_size=1, max_size=5),
    broker_id=st.integers(0, 2**31 - 1),
    first=st.integers(0, GENERATIONS - 1),
)
def test_no_id_twice_over_any_number_of_lives(
    tmp_path_factory: pytest.TempPathFactory, lives: list[list[int]], broker_id: int, first: int
) -> None:
    directory = tmp_path_factory.mktemp("ids")
    taken: list[int] = []
    for counts in lives:
        life = ProducerIds(directory, broker_id, lambda below: first)
        for count in counts:
            begin = life.take(count)
            taken += range(begin, begin + count)
    assert len(set(taken)) == len(taken)
    assert all(0 <= producer_id < 2**63 and producer_id >> 32 == broker_id for producer_id in taken)


def test_a_lost_directory_starts_somewhere_else(tmp_path: Path) -> None:
    first = ProducerIds(tmp_path, 1, lambda below: 17).take()
    (tmp_path / FILE_NAME).unlink()
    assert ProducerIds(tmp_path, 1, lambda below: 99).take() != first


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("many")
    with pytest.raises(StorageFault, match=FILE_NAME):
        ProducerIds(tmp_path, 1, lambda below: 0).take()
