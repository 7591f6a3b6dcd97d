"""Dead letters that wait: what would remove their lines sends them first, or leaves the files; without an appliance."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from appliance.errors import ApplianceError, Unavailable
from appliance.spark.pipeline import commit_follower
from appliance.spark.pipeline.batch_record import COMMIT_KEY, BatchRecord, TopicRead
from appliance.spark.pipeline.compaction import Compactor, DeltaEvents, compact
from appliance.spark.pipeline.forget import remove_old_files, remove_rows, send_letters
from appliance.spark.pipeline.letters import SENT, LetterKeeper, Letters
from appliance.spark.pipeline.pipeline_status import of_letters
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.sink import Written

HOUR_MS = 3_600_000


@pytest.fixture
def made(tmp_path: Path) -> Settings:
    source = [{"topics": ["t"], "parsers": ["access"]}]
    output = {"path": "out", "keep_ms": 0}
    return parse(
        {"pipeline": {"name": "p"}, "source": source, "output": output, "dead_letters": {"topic": "dead"}}, tmp_path
    )


class Topic:
    """Stands for the topic.  ``refuses``: it is away, from a value on that is this one."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.refuses: bool | bytes = False
        self.too_large = 0

    def writer(self, *_: object, **__: object) -> Topic:
        return self

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        rows = [row["value"] for batch in batches for row in batch.to_pylist()]
        if self.refuses is True or self.refuses in rows:
            raise Unavailable("it is away")
        self.values += rows
        return Written(len(rows), 0)


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    found = Topic()
    monkeypatch.setattr(commit_follower, "TaskWriter", found.writer)
    return found


def micro_batch(made: Settings, number: int, raw: bytes) -> None:
    """A line that a parser took, and one that none took."""
    read = {"t": TopicRead("id", {0: (2 * number, 2 * number + 2)})}
    record = BatchRecord(number, "run", read, since={"t": {0: 0}})
    now = datetime.now(UTC)
    rows = {
        "topic": ["t", "t"],
        "partition": pa.array([0, 0], pa.int32()),
        "offset": [2 * number, 2 * number + 1],
        "received": [now, now],
        "time": [now, now],
        "rejected": ["no line", None],
        "raw": [raw, None],
        "raw_key": pa.array([None, None], pa.binary()),
    }
    done = CommitProperties(
        custom_metadata={COMMIT_KEY: record.encode()}, app_transactions=[Transaction("app", number)]
    )
    write_deltalake(f"{made.output.path}/events", pa.table(rows), mode="append", commit_properties=done)


def waiting(made: Settings, lines: list[bytes]) -> Letters:
    """The letters of these lines wait; their files were put together."""
    letters = Letters(made)
    letters.begin()
    for number, raw in enumerate(lines):
        micro_batch(made, number, raw)
    compact(DeltaEvents(made.output), made.output, settled=True, vacuum=False)
    return letters


def test_forget_sends_the_letters_that_wait_or_removes_nothing(made: Settings, topic: Topic) -> None:
    letters = waiting(made, [b"bob 1", b"ann", b"bob 2"])
    topic.refuses = True
    for step in (send_letters, remove_old_files):
        with pytest.raises(ApplianceError, match=r"nothing is removed: dead letters wait .* it is away"):
            step(made)
    topic.refuses = False
    assert remove_rows(made, "raw = 'ann'") == 1
    assert remove_old_files(made) > 0
    assert topic.values == [b"bob 1", b"ann", b"bob 2"] and letters.waiting() == []


def test_letters_from_before_there_was_a_topic_are_not_sent_by_forget(made: Settings, topic: Topic) -> None:
    micro_batch(made, 0, b"bob")
    send_letters(made)
    assert topic.values == [] and Letters(made).waiting() == []


def test_files_stay_while_letters_wait_that_need_them(
    made: Settings, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = waiting(made, [b"1", b"2"])
    now_s = time.time()
    assert [0 <= now_s - stamp.timestamp() < 60 for stamp in letters.waiting()] == [True, True]
    hours: list[int] = []
    monkeypatch.setattr(DeltaTable, "vacuum", lambda _, given, *__, **___: hours.append(given) or [])
    monkeypatch.setattr(time, "time", lambda: now_s + 40 * 3600)
    for _ in range(2):
        with Compactor(made.output, at_end=True, waiting=letters.waiting) as compactor:
            compactor._ahead_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        letters.send()
    assert hours == [41, 6] and topic.values == [b"1", b"2"] and letters.waiting() == []


def test_commits_whose_letters_are_sent_are_not_sent_again_after_a_failure(made: Settings, topic: Topic) -> None:
    letters = waiting(made, [b"1", b"2", b"3"])
    topic.refuses = b"3"
    for _ in range(2):
        with pytest.raises(Unavailable):
            letters.send()
    assert topic.values == [b"1", b"2"] and len(letters.waiting()) == 1
    topic.refuses = False
    assert (letters.send(), letters.send()) == (1, 0) and topic.values == [b"1", b"2", b"3"]


def test_whatever_is_wrong_the_letters_go_on_afterwards(made: Settings, topic: Topic) -> None:
    letters = waiting(made, [b"1"])
    keeper = LetterKeeper(made)
    progress = Path(made.output.path) / SENT
    right = progress.read_bytes()
    progress.write_bytes(b"")
    keeper.look()
    assert keeper.remark.startswith("dead letters are not sent, the lines are in events: ")
    progress.write_bytes(right)
    last = Path(made.output.path) / "events/_delta_log" / f"{letters.latest():020d}.json"
    right = last.read_bytes()
    last.write_bytes(b"{broken")
    keeper.look()
    assert keeper.remark.startswith("dead letters are not sent, the lines are in events: ")
    last.write_bytes(right)
    keeper.look()
    assert keeper.remark == "" and topic.values == [b"1"]


def test_letters_that_are_late_are_told_also_of_a_run(made: Settings, topic: Topic) -> None:
    letters, now = waiting(made, [b"1", b"2"]), datetime.now(UTC)
    assert list(of_letters(letters, now - timedelta(minutes=1))) == [], "they may be on their way"
    (told,) = of_letters(letters, now + timedelta(minutes=1))
    assert told.startswith("dead letters of 2 versions of events are not sent yet, since 20")
    letters.send()
    assert list(of_letters(letters, now + timedelta(minutes=1))) == []
