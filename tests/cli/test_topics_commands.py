"""appliance.cli.topics_commands, against a real appliance."""

from __future__ import annotations

import json

from appliance.cli.topics_commands import _deleted_row, _size_text

from ..support.command_line import run, succeeding
from ..support.server import Server


def test_a_topic_from_creation_to_deletion(appliance: Server, topic: str) -> None:
    at = ("--data", str(appliance.data_dir))
    said = succeeding("topics", "create", topic, "--partitions", "2", "--setting", "retention.ms=2d", *at)
    assert said.out == f"created {topic} with 2 partitions\n"
    listed = {row["name"]: row for row in succeeding("topics", "list", "--json", *at).json}
    assert listed[topic]["partitions"] == 2
    assert listed[topic]["settings"] == {"retention.ms": str(2 * 86_400_000)}
    succeeding("topics", "alter", topic, "--setting", "retention.bytes=1GiB", "--unset", "retention.ms", *at)
    succeeding("topics", "alter", topic, "--partitions", "3", *at)
    described = succeeding("topics", "describe", topic, "--json", *at).json
    assert described["own"] == {"retention.bytes": str(1 << 30)}
    assert described["settings"]["retention.ms"] == str(7 * 86_400_000)
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert {row["state"] for row in described["partitions"]} == {"online"}
    assert succeeding("topics", "delete", topic, "--yes", *at).out == f"deleted {topic}\n"
    assert topic not in succeeding("topics", "list", *at).out


def test_tables_in_a_pipe_have_a_header(appliance: Server, topic: str) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, *at)
    lines = succeeding("topics", "list", *at).out.splitlines()
    assert lines[0] == "name\tpartitions\tmessages\tbytes\tsettings"
    assert f"{topic}\t1\t0\t0\t-" in lines
    described = succeeding("topics", "describe", topic, *at).out.splitlines()
    assert described[0] == "setting\tvalue\tfrom" and "flush.ms\t1000\tdefault" in described


def test_what_is_refused(appliance: Server, topic: str) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, "--partitions", "2", *at)
    for words, status, says in [
        (("create", topic), 65, "already"),
        (("create", "a/b"), 65, "use only letters"),
        (("create", "x", "--setting", "retention.m=1"), 65, "did you mean 'retention.ms'"),
        (("create", "x", "--setting", "flush.ms=soon"), 65, "flush.ms = 'soon'"),
        (("create", "x", "--partitions", "1000000"), 65, "partitions"),
        (("create", "x", "--partitions", "0"), 2, "--partitions"),
        (("alter", topic, "--partitions", "1"), 65, "partitions"),
        (("describe", "nothing"), 66, "appliance topics list"),
        (("delete", "nothing"), 66, "appliance topics list"),
    ]:
        said = run("topics", *words, *at)
        assert (said.status, said.out) == (status, ""), said
        assert says in said.err, said


def test_trimming_deletes_what_is_before(appliance: Server, topic: str) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, "--partitions", "2", *at)
    succeeding("produce", topic, "--partition", "0", *at, stdin=b"a\nb\n")
    succeeding("produce", topic, "--partition", "0", *at, stdin=b"c\n")
    reading = ("consume", topic, "--from", "earliest", "--timeout", "0.2", *at)
    offsets = {row["value"]: row["offset"] for row in map(json.loads, succeeding(*reading, "--json").out.splitlines())}
    trim = ("topics", "trim", topic, "--before")
    end = offsets["c"] + 1
    wanted = [
        {"partition": 0, "start": 0, "before": end, "end": end, "messages": 3, "bytes": end, "unread": {}},
        {"partition": 1, "start": 0, "before": 0, "end": 0, "messages": 0, "bytes": 0, "unread": {}},
    ]
    assert succeeding(*trim, "latest", "--dry-run", "--json", *at).json == wanted
    one = succeeding(*trim, str(offsets["b"]), "--partition", "0", "--dry-run", "--json", *at).json
    assert [row["messages"] for row in one] == [1], "also in the middle of a batch"
    refused = run(*trim, "latest", *at)
    assert refused.status == 2 and "--yes" in refused.err and "--dry-run" in refused.err
    assert run(*trim, "5", *at).status == 2, "one offset is not for two partitions"
    assert succeeding(*reading).out == "a\nb\nc\n"
    succeeding(*trim, str(offsets["b"]), "--partition", "0", "--yes", *at)
    assert succeeding(*reading).out == "b\nc\n"
    trimmed = succeeding(*trim, "latest", "--dry-run", "--json", *at).json
    assert [row["messages"] for row in trimmed] == [2, 0]
    (deleted,) = succeeding("topics", "delete", topic, "--dry-run", "--json", *at).json
    assert all(deleted[size] == sum(row[size] for row in trimmed) for size in ("messages", "bytes")), "both count alike"
    succeeding(*trim, "latest", "--yes", *at)
    assert succeeding(*reading).out == ""
    assert run("topics", "trim", "nothing", "--before", "latest", "--yes", *at).status == 66


def test_a_topic_with_a_partition_that_cannot_be_asked_is_not_empty() -> None:
    """Its messages and the groups that have not read them are not known, which is not the same as none."""
    known = {"partition": 0, "start": 0, "end": 9, "bytes": 9, "messages": 2}
    damaged = known | {"partition": 1, "messages": None}
    away = dict.fromkeys(known) | {"partition": 2}
    for parts, messages, size, unread, text in (
        ([known], 2, 9, {"g": 4}, "2 messages, 9 B"),
        ([known, damaged], None, 18, {"g": 4}, "messages whose number is not known, 18 B"),
        ([known, away], None, None, None, "messages whose number is not known"),
    ):
        row = _deleted_row({"name": "web", "own": {}, "partitions": parts}, {("web", 0): {"g": 4}})
        assert (row["messages"], row["bytes"], row["unread"], _size_text(row)) == (messages, size, unread, text)


def test_deleting_asks_shows_and_deletes_all_or_none(appliance: Server, topic: str) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, *at)
    succeeding("produce", topic, *at, stdin=b"a\nb\n")
    assert run("topics", "delete", topic, *at).status == 2
    (row,) = succeeding("topics", "delete", topic, "--dry-run", "--json", *at).json
    assert (row["name"], row["messages"]) == (topic, 2)
    assert run("topics", "delete", topic, "nothing", "--yes", *at).status == 66
    assert topic in succeeding("topics", "list", *at).out
