"""appliance.processes.network.known_partitions: a partition whose table cannot be mapped yet exists all the same."""

from __future__ import annotations

import errno
import select
from pathlib import Path

import pytest

from appliance.broker import plan
from appliance.catalog import new_id
from appliance.errors import WriterGone
from appliance.log.partition_directory import claim, directory_of
from appliance.names import TopicPartition
from appliance.partition_states import ONLINE
from appliance.processes.network.known_partitions import KnownPartitions
from appliance.shared import memory
from appliance.shared.table import TABLE_BYTES, SegmentTable
from appliance.wire.requests import EARLIEST, Fetch, FetchPart, OffsetsPart, SessionStep

KEY = TopicPartition("t", 0)


def test_a_partition_is_found_by_the_id_of_its_topic_only(tmp_path: Path) -> None:
    """Goal: the log of a topic is not read by who asks for an earlier one of the same name."""
    mine, earlier = new_id(), new_id()
    with select.epoll() as epoll:
        known = KnownPartitions(tmp_path, 0, 1 << 20, epoll, lambda *_: None)
        name, mapped = memory.create("knowntest", "table", TABLE_BYTES)
        try:
            known.add_partition(KEY, name)
        finally:
            memory.unlink(name)
        parts = [FetchPart("t", 0, 0, 1, bytes.fromhex(topic_id)) for topic_id in (mine, earlier)]
        request = Fetch(None, 0, 0, 0, [*parts, parts[0]], frozenset({2}), session=SessionStep(0, -1, [], True))
        assert known.partitions_of(request) == [None] * 3, "it has no directory yet"
        claim(directory_of(tmp_path, "t", 0), mine)
        assert known.partitions_of(request) == [known.get(KEY), None, None]
        assert [known.partition_of(part) for part in parts] == [known.get(KEY), None]
        assert known.partition_of(FetchPart("t", 0, 0, 1)) is known.get(KEY)
        mapped.close()


def test_a_table_that_cannot_be_mapped_is_one_that_is_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with select.epoll() as epoll:
        known = KnownPartitions(tmp_path, 0, 1 << 20, epoll, lambda *_: None)
        question = OffsetsPart(*KEY, EARLIEST, -1)

        def lack(name: str) -> None:
            raise OSError(errno.ENOMEM, "no map is left")

        with monkeypatch.context() as patch:
            patch.setattr(memory, "attach", lack)
            for _ in range(2):  # the supervisor sends it again
                with pytest.raises(OSError):
                    known.add_partition(KEY, "/any")
        partition = known.get(KEY)
        assert plan.offsets(question, partition, counted=False).error == WriterGone.code
        name, mapped = memory.create("knowntest", "table", TABLE_BYTES)
        try:
            table = SegmentTable(memoryview(mapped).cast("Q"))
            table.publish([0], 0, 0, 0)
            table.set_state(ONLINE)
            known.add_partition(KEY, name)
            assert known.get(KEY) is partition, "its writer and who waits there stay"
            assert plan.offsets(question, partition, counted=False).error == 0
        finally:
            memory.unlink(name)
