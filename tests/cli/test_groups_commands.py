"""appliance.cli.groups_commands and ``consume --group``, against a real appliance with a ZooKeeper of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli.command_tree import tree
from appliance.cli.interactive_shell import completions
from appliance.client import Admin, GroupConsumer

from ..support.command_line import run, succeeding
from ..support.remedies import Remedy
from ..support.server import Server, wait_for


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("grouped") / "data", **{"zookeeper.nodes": 1}) as server:
        server.wait_for_zookeeper()
        yield server


def test_a_group_goes_on_where_it_has_committed(grouped: Server, topic: str) -> None:
    at = ("--data", str(grouped.data_dir))
    succeeding("topics", "create", topic, "--partitions", "2", *at)
    succeeding("produce", topic, "--partition", "0", *at, stdin=b"a\nb\nc\n")
    reading = ("consume", topic, "--group", topic, *at)
    first = succeeding(*reading, "--max", "2").out
    rest = succeeding(*reading, "--timeout", "1").out
    assert first + rest == "a\nb\nc\n"
    succeeding("produce", topic, "--partition", "1", *at, stdin=b"d\n")
    assert json.loads(succeeding(*reading, "--max", "1", "--json").out)["value"] == "d"

    rows = {row["group"]: row for row in succeeding("groups", "list", "--json", *at).json}
    assert (rows[topic]["state"], rows[topic]["members"]) == ("empty", 0)
    described = succeeding("groups", "describe", topic, "--json", *at).json
    lag = [(row["partition"], row["lag_messages"], row["lag_bytes"]) for row in described["partitions"]]
    assert lag == [(0, 0, 0), (1, 0, 0)]
    assert topic in succeeding("groups", "describe", topic, *at).out

    moved = succeeding("groups", "reset", topic, "--topic", topic, "--to", "earliest", "--yes", *at)
    assert [line.split("\t")[:3] for line in moved.out.splitlines()[1:]] == [[topic, "0", "0"], [topic, "1", "0"]]
    described = succeeding("groups", "describe", topic, "--json", *at).json
    assert [row["lag_messages"] for row in described["partitions"]] == [3, 1]
    assert sorted(succeeding(*reading, "--timeout", "1").out.split()) == ["a", "b", "c", "d"]


def test_settings_of_a_group(grouped: Server, topic: str) -> None:
    at, session = ("--data", str(grouped.data_dir)), "consumer.session.timeout.ms"
    altered = succeeding("groups", "alter", topic, "--setting", f"{session}=2m", "--json", *at).json
    assert (altered["settings"][session], altered["sources"][session]) == (120_000, "group")
    described = succeeding("groups", "describe", topic, *at).out
    assert "there is no such group yet" in described and f"{session}\t120000\tgroup" in described
    deleted = run("groups", "delete", topic, "--yes", *at)
    assert "there is no group" in deleted.err
    wrong = run("groups", "alter", topic, "--setting", f"{session}=1", *at)
    assert session in wrong.err and "1000" in wrong.err
    assert "default" in succeeding("groups", "alter", topic, "--unset", session, *at).out
    assert "there is no group" in run("groups", "describe", topic, *at).err
    assert run("groups", "alter", topic, *at).status == 2


def test_positions_go_to_a_file_and_back(grouped: Server, topic: str, tmp_path: Path) -> None:
    at = ("--data", str(grouped.data_dir))
    other, file = f"{topic}-other", tmp_path / "positions.json"
    succeeding("topics", "create", topic, "--partitions", "2", *at)
    succeeding("produce", topic, "--partition", "0", *at, stdin=b"a\nb\nc\n")
    for group in (topic, other):
        succeeding("groups", "reset", group, "--topic", topic, "--to", "latest", "--new", *at)
    positions = succeeding("groups", "export", other, topic, *at)
    file.write_text(positions.out)
    assert [row["group"] for row in positions.json["groups"]] == [topic, other], "in a stable order"
    exported = {row["partition"]: row["offset"] for row in positions.json["groups"][0]["offsets"]}
    assert exported[0] > 0 == exported[1]
    assert {topic, other} <= {row["group"] for row in succeeding("groups", "export", *at).json["groups"]}

    succeeding("groups", "reset", topic, "--topic", topic, "--to", "earliest", "--yes", *at)
    succeeding("groups", "delete", other, "--yes", *at)
    importing = ("groups", "import", str(file), *at)
    tried = succeeding(*importing, "--dry-run", "--json").json
    assert {(row["group"], row["partition"]): row["before"] for row in tried} == {
        (topic, 0): 0, (topic, 1): 0, (other, 0): None, (other, 1): None
    }  # fmt: skip
    assert run(*importing).status == 2, "nobody can be asked"
    assert offsets_of(grouped, topic) == {0: 0, 1: 0}
    succeeding(*importing, "--yes", "--group", topic)
    assert offsets_of(grouped, topic) == exported
    assert run("groups", "export", other, *at).status == 66, "it is gone"
    succeeding("groups", "import", "-", *at, stdin=positions.out.encode())
    assert offsets_of(grouped, other) == exported
    assert run(*importing, "--group", "nobody").status == 66


def test_positions_are_refused_where_they_would_do_harm(grouped: Server, topic: str, tmp_path: Path) -> None:
    at, file = ("--data", str(grouped.data_dir)), tmp_path / "positions.json"
    succeeding("topics", "create", topic, *at)
    succeeding("groups", "reset", topic, "--topic", topic, "--to", "latest", "--new", *at)
    positions = succeeding("groups", "export", topic, *at).json
    importing = ("groups", "import", str(file), "--yes", *at)
    for change, status, says in (
        ({"version": 2}, 65, "groups export"),
        ({"groups": positions["groups"] * 2}, 65, "twice"),
        ({"groups": [{**positions["groups"][0], "offsets": positions["groups"][0]["offsets"] * 2}]}, 65, "twice"),
        ({"more": 1}, 65, "more"),
    ):
        file.write_text(json.dumps(positions | change))
        said = run(*importing)
        assert said.status == status and says in said.err, said
    file.write_text(json.dumps(positions))
    with GroupConsumer(grouped.native, topic) as consumer:
        consumer.create_message_streams({topic: 1})
        wait_for(lambda: len(consumer.owned) == 1, "a member to own the partition")
        said = run(*importing)
        assert said.status == 65 and "has 1 running member:" in said.err
    positions["groups"][0]["offsets"][0]["offset"] = 1 << 40
    file.write_text(json.dumps(positions))
    assert "outside of" in succeeding(*importing).err
    succeeding("topics", "delete", topic, "--yes", *at)
    assert run(*importing).status == 66
    succeeding("topics", "create", topic, *at)
    said = run(*importing)
    assert said.status == 65 and "another one now" in said.err


def test_a_time_is_at_an_offset(grouped: Server, topic: str) -> None:
    at = ("--data", str(grouped.data_dir))
    succeeding("topics", "create", topic, "--partitions", "2", *at)
    succeeding("produce", topic, "--partition", "0", *at, stdin=b"a\nb\nc\n")
    said = succeeding("consume", topic, "--from", "earliest", "--max", "1", "--json", *at)
    first, empty = succeeding("offsets", topic, "--at", "-1h", "--json", *at).json
    assert (first["topic"], first["partition"], first["start"]) == (topic, 0, 0)
    assert 0 < first["offset"] == said.json["offset"], "the first of three messages"
    assert empty["offset"] == empty["end"] == 0
    (after,) = succeeding("offsets", topic, "--at", "2999-01-01", "--partition", "0", "--json", *at).json
    assert after["offset"] == first["end"]
    assert succeeding("offsets", topic, *at).out.splitlines()[1].split("\t")[:3] == [topic, "0", str(first["end"])]
    assert run("offsets", topic, "--at", "4711", *at).status == 2
    assert run("offsets", f"{topic}-gone", *at).status == 66


def offsets_of(server: Server, group: str) -> dict[int, int]:
    with Admin(server.native) as admin:
        return {partition: offset for (_, partition), offset in admin.offsets(group).items()}


def test_what_one_member_reads(grouped: Server, topic: str) -> None:
    """Its id is completed, in the shell and by the scripts of bash, zsh and fish, which ask the same function."""
    at = ("--data", str(grouped.data_dir))
    succeeding("topics", "create", topic, "--partitions", "2", *at)
    describe = ("groups", "describe", topic, "--member")
    with GroupConsumer(grouped.native, topic) as consumer, GroupConsumer(grouped.native, topic) as other:
        for one in (consumer, other):
            one.create_message_streams({topic: 1})
        wait_for(lambda: len(consumer.owned) == len(other.owned) == 1, "both to own a partition")
        id = consumer.consumer_id
        line = f"groups describe {topic} --data {grouped.data_dir} --member "
        assert {value for value, _, _ in completions(tree(), line)} == {id, other.consumer_id}
        assert [value for value, _, _ in completions(tree(), line + id[:-1])] == [id]
        (part,) = consumer.owned
        found = succeeding(*describe, id, "--json", *at).json
        assert [row["id"] for row in found["members"]] == [id]
        assert [(row["topic"], row["partition"]) for row in found["partitions"]] in ([part], [])
        wrong = run(*describe, f"{id}x", *at)
        assert wrong.status == 66 and f"did you mean {id!r}?" in wrong.err


def test_what_is_run(grouped: Server, topic: str) -> None:
    at = ("--data", str(grouped.data_dir))
    succeeding("topics", "create", topic, "--partitions", "2", *at)
    reset = ("groups", "reset", "g", "--topic")
    for words, status, says in [
        (("groups", "describe", "nobody"), 66, "groups list"),
        (("consume", "no-such-topic", "--group", "g", "--timeout", "0.1"), 66, "topics list"),
        (("consume", topic, "--group", "g", "--from", "5"), 2, "groups reset"),
        ((*reset, topic, "--to", "5"), 2, "--partition"),
        ((*reset, topic, "--to", "whenever"), 2, "earliest, latest"),
        ((*reset, "no-such-topic", "--to", "latest"), 66, "topics list"),
    ]:
        said = run(*words, *at)
        assert (said.status, said.out) == (status, ""), said
        assert says in said.err, said


def test_resetting_says_what_it_did_and_makes_no_group_by_a_typo(grouped: Server, topic: str) -> None:
    at = ("--data", str(grouped.data_dir))
    succeeding("topics", "create", topic, *at)
    succeeding("produce", topic, *at, stdin=b"a\nb\nc\n")
    reset = ("groups", "reset", topic, "--topic", topic, "--partition", "0", "--to")
    said = run(*reset, "earliest", *at)
    assert said.status == 66 and "--new" in said.err
    assert topic not in {row["group"] for row in succeeding("groups", "list", "--json", *at).json}
    assert succeeding(*reset, "earliest", "--new", *at).err == ""
    end = succeeding("topics", "describe", topic, "--json", *at).json["partitions"][0]["end"]
    assert run(*reset, "999999", *at).status == 2, "nobody can be asked"
    said = succeeding(*reset, "999999", "--yes", "--json", *at)
    assert said.json == [{"topic": topic, "partition": 0, "offset": end, "before": 0}]
    assert f"offset 999999 is outside of 0 to {end}" in said.err
    described = succeeding("groups", "describe", topic, *at).out
    assert described.startswith(f"{topic}: empty, no members, last commit ")


def test_why_a_group_stands_still_is_said_in_words(grouped: Server, topic: str) -> None:
    """Goal: from one command, who reads a partition, since when, and when it has committed last."""
    at = ("--data", str(grouped.data_dir))
    succeeding("topics", "create", topic, "--partitions", "2", *at)
    succeeding("produce", topic, "--partition", "0", *at, stdin=b"a\nb\nc\n")
    reset = ("groups", "reset", topic, "--topic", topic, "--to", "earliest", "--new")
    succeeding(*reset, "--json", *at)
    lines = succeeding("groups", "describe", topic, *at).out.splitlines()
    assert lines[0].startswith(f"{topic}: empty, no members, last commit ")
    assert lines[1].startswith(f"  {topic}-0: a program that is no member of the group has committed ")
    assert lines[2] == f"  {topic}-1: all is read"
    with GroupConsumer(grouped.native, topic) as consumer:
        consumer.create_message_streams({topic: 1})
        wait_for(lambda: len(consumer.owned) == 2, "the partitions")
        described = succeeding("groups", "describe", topic, "--json", *at).json
        (member,) = described["members"]
        assert 0 <= member["silent_s"] < 60
        first = described["partitions"][0]
        assert first["owned_ms"] >= first["committed_ms"] > 0, "it was moved before it was read"
        assert first["why"].endswith("reads it and commits: it is behind, and goes on"), first
        said = succeeding("groups", "describe", topic, *at).out
        assert ", native protocol, 1 member, last commit " in said and ", last change of owners " in said


def test_a_group_is_deleted_when_somebody_agrees(grouped: Server, topic: str) -> None:
    at = ("--data", str(grouped.data_dir))
    succeeding("topics", "create", topic, *at)
    succeeding("produce", topic, *at, stdin=b"a\n")
    succeeding("consume", topic, "--group", topic, "--max", "1", *at)
    delete = ("groups", "delete", topic)
    assert run(*delete, *at).status == 2
    assert succeeding(*delete, "--dry-run", "--json", *at).json == [{"group": topic, "topics": [topic], "offsets": 1}]
    assert run(*delete, "nobody", "--yes", *at).status == 66
    assert topic in succeeding("groups", "list", *at).out
    succeeding(*delete, "--yes", *at)
    assert topic not in succeeding("groups", "list", *at).out
    with GroupConsumer(grouped.native, topic) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        next(stream.messages(60))
        said = run(*delete, "--yes", *at)
        assert said.status == 65 and "stop them first" in said.err


def test_without_zookeeper_groups_are_not_possible_for_now(appliance: Server, topic: str) -> None:
    at = ("--data", str(appliance.data_dir))
    succeeding("topics", "create", topic, *at)
    said = run("consume", topic, "--group", "g", "--timeout", "0.1", *at)
    assert said.status == 75 and "zookeeper.nodes" in said.err
    said = run("groups", "list", *at)
    assert said.status == 65 and "zookeeper.nodes" in said.err


def test_what_goes_before_a_group_has_read_it_is_said_before_and_after(grouped: Server, topic: str) -> None:
    """Before: by the commands that remove it.  After: as lost, which is not lag, until the group commits beyond."""
    at = ("--data", str(grouped.data_dir))
    succeeding("topics", "create", topic, "--partitions", "2", *at)
    for partition in ("0", "1"):
        succeeding("produce", topic, "--partition", partition, *at, stdin=b"a\nb\nc\n")
    group = f"{topic} reports"
    with Admin(grouped.native) as admin:
        ends = {row["partition"]: row["end"] for row in admin.topics([topic])[0]["partitions"]}
        admin.commit(group, {(topic, 0): 0, (topic, 1): ends[1]})
    trim = ("topics", "trim", topic, "--before", "latest", "--partition", "0", "--partition", "1")
    first, second = succeeding(*trim, "--dry-run", "--json", *at).json
    assert (first["unread"], second["unread"]) == ({group: ends[0]}, {})
    assert (first["messages"], second["messages"]) == (3, 3)
    (row,) = succeeding("topics", "delete", topic, "--dry-run", "--json", *at).json
    assert row["unread"] == {group: ends[0]}

    succeeding(*trim, "--yes", *at)
    about = f"of {topic} were removed before group {group} had read them"
    lost = {row["partition"]: row for row in succeeding("groups", "describe", group, "--json", *at).json["partitions"]}
    assert [lost[number]["lost_bytes"] for number in (0, 1)] == [ends[0], 0]
    assert [lost[number]["lag_bytes"] for number in (0, 1)] == [0, 0]
    (row,) = (row for row in succeeding("doctor", "--json", *at).json if about in row["what"])
    (again, _) = succeeding(*trim, "--dry-run", "--json", *at).json
    assert (again["unread"], again["messages"]) == ({}, 0), "it cannot be lost twice"
    with Remedy(row) as remedy:
        remedy.run("appliance groups reset")
    assert about not in succeeding("doctor", *at).out
    assert succeeding("groups", "describe", group, "--json", *at).json["partitions"][0]["lost_bytes"] == 0
