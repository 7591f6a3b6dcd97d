"""appliance.sql.pipeline_tables: stored events and unread lines together are each line once."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.client import Producer
from appliance.errors import BadValue
from appliance.log_access.access import LogAccess
from appliance.log_access.arrow import Decoder
from appliance.log_access.ranges import Range
from appliance.names import TopicPartition
from appliance.spark.pipeline.batch_record import BatchRecord, topics_read
from appliance.spark.pipeline.events import Transform
from appliance.spark.pipeline.settings import Settings
from appliance.spark.pipeline.tables import EventFiles, claim, open_store
from appliance.spark.pipeline.unknown_fields import schema_of
from appliance.sql.session import Session
from appliance.wire.requests import EARLIEST, LATEST

from ..support.pipelines import access, settings
from ..support.server import Server
from ..support.topics import Topics
from .test_session import ask


def carry_out(made: Settings, batch: int, first: dict[int, int]) -> dict[int, int]:
    """A micro-batch as the pipeline commits it, from these offsets on.  Returns where it ends."""
    topic = made.source[0].topics[0]
    store = open_store(made, claim(made), Transform(made).schema)
    reader = LogAccess(made.pipeline.bootstrap, 5000, "test")
    described = reader.topics([topic])[topic]
    keys = [TopicPartition(topic, partition) for partition in range(len(described.leaders))]
    start, end = (reader.offsets(dict.fromkeys(keys, when)) for when in (EARLIEST, LATEST))
    if store.recorded() is None:
        store.commit(BatchRecord(-1), [])
    files = EventFiles(store, made.output, batch, 0)
    ranges = {key: (first.get(key.partition, start[key]), end[key]) for key in keys}
    for key, (begin, stop) in ranges.items():
        decoder = Decoder(*key, begin, stop)
        for position, data in reader.read(Range(*key, begin, stop, stop), None, 1 << 20, True):
            for rows in decoder.decode(data, position):
                files.add(Transform(made).run(rows).rows)
    files.flush()
    reader.close()
    since = {topic: {key.partition: begin for key, (begin, _) in ranges.items()}}
    store.commit(BatchRecord(batch, read=topics_read({topic: described.id}, ranges), since=since), files.files)
    return {key.partition: stop for key, (_, stop) in ranges.items()}


def test_live_has_each_line_once(appliance: Server, topics: Topics, topic: str, tmp_path: Path) -> None:
    made = settings(tmp_path, topics, topics.create(topic, 2))
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        with Producer(appliance.native) as producer:
            producer.send(topic, b"no line of it")
            producer.send_many(topic, [access(number) for number in range(sent, sent + count)])
        sent += count

    def counted(session: Session) -> tuple[int, ...]:
        """Parsed lines, their places and paths; then rejected lines and their places: each ``send`` has one."""
        places = f"""count(*), count(distinct (partition, "offset")), count(distinct path) from "{topic}".live"""
        (row,) = ask(session, f"select {places} where rejected is null")
        (dead,) = ask(
            session, f"select {places} where rejected = 'not a line of access' and raw = 'no line of it'::blob"
        )
        return (*row, *dead[:2])

    with Session(appliance.native, pipelines=[made]) as session:
        send(500)
        assert counted(session) == (500, 500, 500, 1, 1)
        ends = carry_out(made, 0, {})
        assert ask(session, f'select count(*) from "{topic}".events') == [(501,)]
        send(300)
        assert counted(session) == (800, 800, 800, 2, 2)
        ends = carry_out(made, 1, ends)
        send(1)
        assert counted(session) == (801, 801, 801, 3, 3)
        both = f"""select (select count(*) from "{topic}" where parser = 'access'),
                   (select count(status) from "{topic}".events), (select count(*) from "{topic}".live
                   where status = 200)"""
        assert ask(session, both) == [(801, 800, 801)]
        columns = [[row[0] for row in ask(session, f'describe "{topic}".{table}')] for table in ("events", "live")]
        assert columns[0] == columns[1]


def test_live_joins_the_lines_of_an_event(appliance: Server, topics: Topics, topic: str, tmp_path: Path) -> None:
    source = {"topics": [topics.create(topic)], "parsers": ["plain"], "multiline": {"start": "^[0-9]"}}
    made = settings(tmp_path, topics, topic, source=[source])
    with Producer(appliance.native) as producer:
        producer.send_many(topic, [b"1 first", b"  more", b"2 second", b"  more", b"  and more"])
    with Session(appliance.native, pipelines=[made]) as session:
        rows = ask(session, f'select message, lines from "{topic}".live order by "offset"')
        assert rows == [("1 first\n  more", 2), ("2 second\n  more\n  and more", 3)]
        assert len(ask(session, f'select message from "{topic}"')) == 5, "a message each in the topic itself"


def test_tables_of_another_pipeline_are_refused(appliance: Server, topics: Topics, topic: str, tmp_path: Path) -> None:
    made = settings(tmp_path, topics, topics.create(topic), output={"path": "out"})
    carry_out(made, 0, {})
    other = settings(tmp_path, topics, topic, pipeline={"name": "other"}, output={"path": "out"})
    with (
        Session(appliance.native, pipelines=[other]) as session,
        pytest.raises(BadValue, match=f"is the output of pipeline '{topic}'"),
    ):
        ask(session, "select * from other.events")


def test_live_has_the_columns_that_unknown_fields_have_become(
    appliance: Server, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Those that the table has: the run that reads the lines adds others."""
    own = {"kind": "logfmt", "unknown": "add"}
    source = [{"topics": [topics.create(topic)], "parsers": ["own"]}]
    made = settings(tmp_path, topics, topic, source=source, parser={"own": own})
    store = open_store(made, claim(made), Transform(made).schema)
    store.commit(BatchRecord(-1), [])
    store.extend(schema_of(["user"]))
    with Producer(appliance.native) as producer:
        producer.send_many(topic, [b"User=ann", b"message=m", b"zone=z"])
    with Session(appliance.native, pipelines=[made]) as session:
        found = ask(session, f'select "user", message, column_errors is null from "{topic}".live order by "offset"')
    assert found == [("ann", None, True), (None, "m", True), (None, None, False)]
