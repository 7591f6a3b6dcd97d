"""appliance.sql.session: queries over topics are exact, read what they need, and touch nothing else."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from appliance.client import Consumer, Producer
from appliance.errors import BrokerAway, CorruptBatch, InvalidRequest, UnknownPartition
from appliance.log_access.access import LogAccess
from appliance.records.encode import encode_batch
from appliance.sql.session import MEMORY_BYTES_MIN, SPILL_FACTOR, Session, quote_offset
from appliance.wire.requests import EARLIEST

from ..support.pipelines import access
from ..support.ready import free_port
from ..support.server import Server, wait_for
from ..support.topics import Topics

T0_MS = 1_795_219_200_000


@pytest.fixture
def session(appliance: Server) -> Iterator[Session]:
    with Session(appliance.native) as made:
        yield made


def ask(session: Session, query: str) -> list[tuple[Any, ...]]:
    batches = session.run(query).batches
    return [row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]


def test_a_topic_is_a_table(appliance: Server, topics: Topics, session: Session, topic: str) -> None:
    topics.create(topic)
    with Producer(appliance.native) as producer:
        producer.send(topic, b"first", key=b"k", headers=[("a", b"1"), ("a", b"2")], timestamp=T0_MS)
        producer.send(topic, b"\xff?", timestamp=T0_MS + 1)
    topics.write(topic, [encode_batch([(None, None, (), -1)])])
    rows = ask(session, f'select * from "{topic}" order by offset')
    assert [row[3:] for row in rows] == [("k", "first", [("a", "2")]), (None, "\ufffd?", None), (None, None, None)]
    assert [row[2] and row[2].timestamp() * 1000 for row in rows] == [T0_MS, T0_MS + 1, None]
    with Consumer(appliance.native) as consumer:
        consumer.assign([(topic, 0)], at=EARLIEST)
        read: list[tuple[int, int]] = []
        while len(read) < 3:
            read += [(message.partition, message.offset) for message in consumer.poll(5)]
    assert [row[:2] for row in rows] == read


def test_bytes_are_as_they_are_when_asked_for(appliance: Server, topics: Topics, topic: str) -> None:
    topics.create(topic)
    with Producer(appliance.native) as producer:
        producer.send(topic, b"\xff", key=b"\xfe", headers=[("a", b"\xfd")])
    with Session(appliance.native, as_bytes=True) as session:
        assert ask(session, f'select key, value, headers from "{topic}"') == [(b"\xfe", b"\xff", [("a", b"\xfd")])]


def test_lines_have_the_columns_of_their_parser(
    appliance: Server, topics: Topics, session: Session, topic: str
) -> None:
    topics.create(topic, 2)
    topics.create(f"{topic}.json")
    with Producer(appliance.native) as producer:
        for number in range(200):
            producer.send(topic, access(number, 200 if number % 4 else 500))
            producer.send(f"{topic}.json", json.dumps({"client": f"10.0.0.{number % 7}", "name": number % 7}).encode())
    found = ask(session, f'select status, count(*) from "{topic}" group by 1 order by 1')
    assert found == [(200, 150), (500, 50)]
    joined = ask(session, f'select count(*) from "{topic}" a join "{topic}.json" b using (client) where name = 3')
    hits = sum(number % 7 == 3 for number in range(200))
    assert joined == [(hits * hits,)]
    assert session.guesses[topic][:2] == ("access", 64)


def test_only_what_a_filter_leaves_is_read(
    appliance: Server, topics: Topics, session: Session, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.create(topic, 2)
    with Producer(appliance.native) as producer:
        for minute in range(50):
            for partition in range(2):
                producer.send(topic, b"x" * 1000, partition=partition, timestamp=T0_MS + minute * 60_000)
            producer.flush()
    asked: list[tuple[int, int]] = []
    read = LogAccess.read

    def noting(self: LogAccess, wanted: Any, *arguments: Any, **named: Any) -> Any:
        asked.append((wanted.partition, wanted.end - wanted.first))
        return read(self, wanted, *arguments, **named)

    offsets = [row[0] for row in ask(session, f'select offset from "{topic}" where partition = 1 order by 1')]
    monkeypatch.setattr(LogAccess, "read", noting)

    def one(where: str) -> list[tuple[Any, ...]]:
        asked.clear()
        return ask(session, f'select count(*) from "{topic}" where {where}')

    assert one("partition = 0") == [(50,)]
    assert [partition for partition, _ in asked] == [0]
    assert one(f"partition = 1 and offset = {offsets[7]}") == [(1,)]
    assert asked == [(1, 1)]
    assert one("timestamp >= timestamptz '2026-11-21 00:45:00+00'") == [(10,)]
    assert {partition for partition, _ in asked} == {0, 1}
    assert sum(size for _, size in asked) < 12 * 1200
    assert one("timestamp > now() + interval 1 day") == [(0,)]
    assert asked == []


def test_a_count_is_exact_while_a_producer_writes(
    appliance: Server, topics: Topics, session: Session, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: what a consumer reads up to the ends that a query took is counted beside it."""
    topics.create(topic, 2)
    over, more = threading.Event(), threading.Semaphore(0)

    def write() -> None:
        with Producer(appliance.native) as producer:
            number = 0
            while not over.is_set():
                producer.send_many(topic, [b"%d" % (number + each) for each in range(100)])
                producer.flush()
                number += 100
                more.release()

    ends: list[dict[Any, int]] = []
    offsets = LogAccess.offsets

    def noting(self: LogAccess, times: Any) -> Any:
        found = offsets(self, times)
        ends.append(found)
        return found

    monkeypatch.setattr(LogAccess, "offsets", noting)
    writing = threading.Thread(target=write)
    writing.start()
    try:
        counted = []
        for _ in range(5):
            assert more.acquire(timeout=60)
            ((count, distinct),) = ask(session, f'select count(*), count(distinct (partition, offset)) from "{topic}"')
            counted.append((count, distinct, ends[-1]))
    finally:
        over.set()
        writing.join()
    messages = []
    with Consumer(appliance.native) as consumer:
        consumer.assign([(topic, 0), (topic, 1)], at=EARLIEST)
        while some := consumer.poll(0.5):
            messages += [(message.partition, message.offset) for message in some]
    assert len(counted) == 5 and counted[0][0] > 0
    for count, distinct, end in counted:
        before = [1 for partition, offset in messages if offset < end[(topic, partition)]]
        assert count == distinct == len(before)


def test_a_query_sees_one_state_of_a_topic(appliance: Server, topics: Topics, session: Session, topic: str) -> None:
    topics.create(topic)
    with Producer(appliance.native) as producer:
        producer.send(topic, b"1")
        producer.flush()
        assert ask(session, f'select (select count(*) from "{topic}"), (select count(*) from "{topic}")') == [(1, 1)]
        producer.send(topic, b"2")
        producer.flush()
        assert ask(session, f'select count(*) from "{topic}"') == [(2,)]


@pytest.mark.parametrize(
    "query, error, says",
    [
        ("select * from nothing_like_it_xyz", UnknownPartition, "no topic 'nothing_like_it_xyz'"),
        ("selec 1", InvalidRequest, "syntax error"),
        ("select 1; select 2", InvalidRequest, "2 statements: give one query"),
        ("", InvalidRequest, "0 statements: give one query"),
        ("select * from read_csv('/etc/passwd')", InvalidRequest, "file system operations are disabled"),
        ("copy (select 1) to '/tmp/appliance-sql-test.csv'", InvalidRequest, "file system operations are disabled"),
        ("select * from session", UnknownPartition, "no topic 'session'"),  # a variable of this module
        ("select * from glob('/etc/*')", InvalidRequest, "file system operations are disabled"),
        ("select * from '/etc/passwd'", UnknownPartition, "no topic '/etc/passwd'"),
        ("attach '/tmp/appliance-sql-test.db' as other", InvalidRequest, "file system operations are disabled"),
        ("export database '/tmp/appliance-sql-test'", InvalidRequest, "disabled"),
        ("install httpfs", InvalidRequest, "disabled"),
        ("load '/tmp/appliance-sql-test.duckdb_extension'", InvalidRequest, "disabled"),
        ("select getenv('HOME')", InvalidRequest, "getenv"),
        ("set enable_external_access = true", InvalidRequest, "locked"),
        ("set memory_limit = '100GB'", InvalidRequest, "locked"),
    ],
)
def test_what_a_query_may_not(session: Session, query: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        ask(session, query)
    assert ask(session, "select 1") == [(1,)]


def test_directories_that_are_allowed_can_be_used(appliance: Server, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "hosts.csv").write_text("name,room\na,1\n")
    (tmp_path / "other.csv").write_text("name\nb\n")
    with Session(appliance.native, allowed=[tmp_path / "in"]) as session:
        assert ask(session, f"select room from '{tmp_path}/in/hosts.csv'") == [(1,)]
        with pytest.raises(InvalidRequest, match="disabled") as caught:
            ask(session, f"select * from read_csv('{tmp_path}/other.csv')")
        assert "--allow" in caught.value.remedy


def test_a_topic_with_a_near_name_is_offered(topics: Topics, session: Session, topic: str) -> None:
    topics.create(f"{topic}-weblogs")
    with pytest.raises(UnknownPartition, match=f"did you mean '{topic}-weblogs'"):
        ask(session, f'select * from "{topic}-weblog"')


def test_a_column_that_is_not_there_has_a_remedy(topics: Topics, session: Session, topic: str) -> None:
    """A near one is offered, and the query that the remedy names shows all."""
    topics.create(topic)
    for query, near in ((f'select valeu from "{topic}"', "value"), (f'select t.xyzzy from "{topic}" t', "")):
        with pytest.raises(InvalidRequest) as caught:
            ask(session, query)
        remedy = caught.value.remedy
        assert remedy.startswith(f"did you mean {near!r}? " if near else "`appliance sql"), remedy
        _, _, command = shlex.split(remedy.split("`")[1])
        assert "value" in {row[0] for row in ask(session, command)}


def test_topics_that_differ_by_case_are_not_confused(
    appliance: Server, topics: Topics, session: Session, topic: str
) -> None:
    for name in ("A", "a"):
        topics.create(f"{topic}{name}")
        with Producer(appliance.native) as producer:
            producer.send(f"{topic}{name}", name.encode())
    assert ask(session, f'select value from "{topic}a"') == [("a",)]
    assert ask(session, f'select value from "{topic}A"') == [("A",)]
    for query in (f'select * from "{topic}A", "{topic}a"', f'select * from "{topic.upper()}A"'):
        with pytest.raises(InvalidRequest, match="does not tell names by their case"):
            ask(session, query)
    topics.create(f"{topic}-other")
    assert ask(session, f'select * from "{topic.upper()}-OTHER"') == []
    with Session(appliance.native, admitted=lambda named: [name for name in named if name.endswith("a")]) as visitor:
        assert ask(visitor, f'select value from "{topic.upper()}A"') == [("a",)], "the other one is not told"


def test_names_that_need_quotes_are_told(topics: Topics, session: Session, topic: str) -> None:
    for name in (topic, f"{topic}-x", f"a{topic.replace('-', '.')}"):
        with pytest.raises(InvalidRequest) as caught:
            ask(session, f"select * from {topics.create(name)}")
        assert caught.value.remedy == f'quote names that are no words: "{name}"'


def test_nobody_is_there() -> None:
    with (
        Session(f"127.0.0.1:{free_port()}", retry_ms=100) as session,
        pytest.raises(BrokerAway, match="is an appliance running there"),
    ):
        ask(session, "select * from web")


def test_memory_and_what_is_spilled_are_bounded(appliance: Server) -> None:
    with Session(appliance.native, memory_bytes=MEMORY_BYTES_MIN) as session:
        rows = ask(session, "select current_setting('memory_limit'), current_setting('max_temp_directory_size')")
        assert rows == [("64.0 MiB", f"{64 * SPILL_FACTOR}.0 MiB")]
        large = "select count(*) from (select md5(range::varchar) h from range(1000000) order by h)"
        assert ask(session, large) == [(1_000_000,)]  # sorted on the disk
        with pytest.raises(InvalidRequest, match="memory") as caught:
            ask(session, "select length(string_agg(repeat('x', 1000), '')) from range(1000000)")
        assert "--memory" in caught.value.remedy


def test_a_result_is_made_while_it_is_taken(session: Session) -> None:
    first = next(session.run("select range from range(1000000000000)").batches)
    assert first.num_rows > 0
    assert ask(session, "select 1") == [(1,)]  # the next query ends it


@pytest.mark.parametrize(
    "given, quoted",
    [
        (
            "select offset from t where offset > 5 limit 3 offset 1",
            'select "offset" from t where "offset" > 5 limit 3 offset 1',
        ),
        (
            "select a.offset, max(OFFSET) from t order by offset desc offset 2",
            'select a."offset", max("offset") from t order by "offset" desc offset 2',
        ),
        ("select 1 from t where a = 2 offset 3", "select 1 from t where a = 2 offset 3"),
        ("select 'offset' -- offset\n, offset", "select 'offset' -- offset\n, \"offset\""),
        ("select * from t limit all offset 3", "select * from t limit all offset 3"),
        ("", ""),
    ],
)
def test_offset_is_a_column_where_an_operand_stands(given: str, quoted: str) -> None:
    assert quote_offset(given) == quoted


def test_duckdb_takes_the_quoted_query() -> None:
    inner = "(select 1 as offset) t where t.offset > 0"
    query = quote_offset(f"select offset, count(*) from {inner} group by offset order by offset limit 1 offset 0")
    assert duckdb.sql(query).fetchall() == [(1, 1)]


def test_a_damaged_batch_ends_a_query_and_is_told(
    make_appliance: Callable[..., Server], topics_of: Callable[[Server], Topics]
) -> None:
    """The file is altered behind the back of the appliance, as a bad disk would."""
    server = make_appliance()
    topics_of(server).create("web")
    with Producer(server.native) as producer:
        for number in range(3):
            producer.send("web", b"line-%d" % number)
            producer.flush()
    log = next((server.data_dir / "web-0").glob("*.log"))
    with log.open("r+b") as file:
        file.seek(file.read().index(b"line-1"))
        file.write(b"X")
    with Session(server.native, parsers={"web": ""}) as session:
        assert ask(session, "select value from web where offset < 74") == [("line-0",)], (
            "what is not asked for is not read"
        )
        for _ in range(2):  # the second time the appliance knows it, and does not serve it
            with pytest.raises(CorruptBatch, match="web-0"):
                ask(session, "select count(*) from web where value like '%0'")
            wait_for(lambda: "web-0" in server.state["damaged"], "it is named")
