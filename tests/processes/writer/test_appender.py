"""appliance.processes.writer.writer: what is refused of produced batches, and what the others are stored with."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.broker.open_transactions import OpenTransactions
from appliance.config import TopicSettings
from appliance.log import FileCache, Log, LogReader
from appliance.log.tools import verify
from appliance.processes.writer import writer as appender_module
from appliance.processes.writer.producers import Producers
from appliance.processes.writer.writer import FUTURE_MS_MAX, Appender
from appliance.records.batch import CODECS, HEADER_BYTES, LOG_APPEND_TIME
from appliance.records.decode import decode_batch
from appliance.records.encode import encode_batch, encode_values
from appliance.records.validation import UNPACKED_BYTES_MIN
from appliance.shared.table import CELL_COUNT, SegmentTable

from ...support.log_batches import Arena, labelled

NOW_MS = 1_700_000_000_000
GARBAGE = b"this is no compressed data at all"


class Partition:
    """A log with an appender; ``now_ms`` is the broker's time."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch, **settings: object) -> None:
        self.now_ms = NOW_MS
        patch.setattr(appender_module, "wall_ms", lambda: self.now_ms)
        path.mkdir(exist_ok=True)
        checked = {"message_validate": True} | settings
        given = TopicSettings(index_interval_bytes=256, **checked)  # type: ignore[arg-type]
        self.log = Log.open(path / "t-0", given, lambda: self.now_ms)
        table = SegmentTable([0] * CELL_COUNT)
        table.publish([0], 0, 0, 0)
        self.appender = Appender(self.log, Producers(self.log, 100), table, OpenTransactions(100))

    def produce(self, *raws: bytes) -> int:
        """Send batches as one request; the error of it."""
        arena = Arena()
        data = b"".join(raws)
        arena.arena[: len(data)] = data
        (ready,) = self.appender.admit_batches([(arena, (1, -1, [0, len(data)]))])
        self.appender.append()
        return ready.answer.numbers[0]

    def stored(self) -> bytes:
        return (self.log.path / f"{0:020d}.log").read_bytes()

    def found(self, timestamp: int) -> int | None:
        """The time of the first batch with at least this one."""
        found = LogReader(self.log.path, FileCache()).find_time([0], self.log.end_offset, timestamp)
        return None if found is None else found.timestamp


@pytest.mark.parametrize("skew_ms", [-3_600_000, -5, 0, 7_200_000])
def test_a_log_with_append_times_is_searched_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew_ms: int
) -> None:
    """Goal: a consumer that asks for messages since a moment misses none, however wrong its producers' clocks are."""
    partition = Partition(tmp_path, monkeypatch, message_timestamp_type="LogAppendTime")
    for _ in range(40):
        partition.now_ms += 3
        assert partition.produce(encode_values([b"x" * 100], partition.now_ms + skew_ms)) == 0
    for asked in range(NOW_MS, partition.now_ms + 1):
        assert partition.found(asked) == max(NOW_MS + 3, asked + (NOW_MS - asked) % 3)
    partition.log.flush()
    assert verify(partition.log.path, partition.log.derived, 256).problems == []


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_nobody_could_read_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    partition = Partition(tmp_path, monkeypatch)
    good = encode_values([b"x" * 100], NOW_MS)
    poison = labelled(good[:HEADER_BYTES] + GARBAGE.ljust(len(good) - HEADER_BYTES), attributes=CODECS.index(codec))
    assert [partition.produce(raw) for raw in (good, poison, good)] == [0, 87, 0]
    assert partition.log.records == 2
    assert partition.produce(good, poison) == 87, "a request is stored as a whole or not at all"
    assert partition.log.records == 2


def test_where_records_are_not_checked_everything_with_a_right_header_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = Partition(tmp_path, monkeypatch, message_validate=False)
    good = encode_values([b"x" * 100], NOW_MS)
    assert partition.produce(labelled(good[:-50] + bytes(50))) == 0
    assert partition.produce(labelled(good, largest=NOW_MS + 5)) == 0
    assert partition.found(NOW_MS + 1) == NOW_MS + 5


def test_a_batch_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = Partition(tmp_path, monkeypatch, max_message_bytes=100_000)
    assert partition.produce(encode_values([bytes(UNPACKED_BYTES_MIN - 100)], NOW_MS, codec="zstd")) == 0
    assert partition.produce(encode_values([bytes(UNPACKED_BYTES_MIN + 1)], NOW_MS, codec="zstd")) == 10
    larger = Partition(tmp_path / "larger", monkeypatch, max_message_bytes=2 << 20)
    assert larger.produce(encode_values([bytes(UNPACKED_BYTES_MIN + 1)], NOW_MS, codec="zstd")) == 0


def test_what_only_a_broker_may_say_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = encode_values([b"x"], NOW_MS)
    for times in ("CreateTime", "LogAppendTime"):
        for validates in (True, False):
            path = tmp_path / f"{times}-{validates}"
            partition = Partition(path, monkeypatch, message_timestamp_type=times, message_validate=validates)
            assert partition.produce(labelled(good, attributes=LOG_APPEND_TIME)) == 32
            for bit in range(7, 16):
                assert partition.produce(labelled(good, attributes=1 << bit)) == 87
            assert partition.produce(labelled(good, attributes=0x20)) == 42  # control
            assert partition.log.records == 0


@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize("said", [-1, NOW_MS - 1, NOW_MS + FUTURE_MS_MAX + 1, (1 << 63) - 1])
def test_a_header_without_its_largest_time_or_with_an_absurd_one_gets_that_of_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validates: bool, said: int
) -> None:
    """Goal: questions about times are answered by the times of messages, whatever the header of a batch says.

    sarama leaves the largest timestamp out; Kafka computes it, too.
    """
    partition = Partition(tmp_path, monkeypatch, message_validate=validates)
    raw = encode_batch([(None, b"x", (), NOW_MS), (None, b"y", (), NOW_MS + 7)], codec="gzip")
    assert partition.produce(labelled(raw, largest=said)) == 0
    assert (partition.found(NOW_MS + 7), partition.found(NOW_MS + 8)) == (NOW_MS + 7, None)
    assert [record.timestamp for record in decode_batch(partition.stored())] == [NOW_MS, NOW_MS + 7]
    assert partition.stored()[21:] == raw[21:], "the batch as it would have been sent"


def test_negative_times_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = Partition(tmp_path, monkeypatch)
    assert partition.produce(encode_values([b"x"], -1)) == 0
    assert partition.produce(encode_values([b"x"], -2)) == 32
    assert partition.produce(encode_batch([(None, b"x", (), -2), (None, b"y", (), 5)])) == 0, "as in Kafka"


def test_a_repeat_is_answered_without_a_look_at_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = Partition(tmp_path, monkeypatch)
    raw = encode_values([b"x" * 90], NOW_MS, producer_id=7, producer_epoch=0, base_sequence=0)
    assert partition.produce(raw) == 0
    monkeypatch.setattr(appender_module, "check_records", None)
    assert partition.produce(raw) == 0
    assert partition.log.records == 1


def test_a_refused_batch_takes_no_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer whose batch is refused sends another one in its place."""
    partition = Partition(tmp_path, monkeypatch)
    raw = encode_values([b"x" * 90], NOW_MS, producer_id=7, producer_epoch=0, base_sequence=0)
    assert partition.produce(labelled(raw[:HEADER_BYTES] + bytes(len(raw) - HEADER_BYTES))) == 87
    assert partition.produce(raw) == 0
