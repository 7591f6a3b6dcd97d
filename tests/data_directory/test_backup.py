"""appliance.data_directory.backup: whatever was flushed before a backup began is there after a restore."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.client import EARLIEST, Consumer, Producer
from appliance.config import TopicSettings
from appliance.data_directory import back_up, copy_topic
from appliance.data_directory.backup import STAGING, _Copy
from appliance.errors import AlreadyRunning, BadValue, DiskFull, NoDirectory
from appliance.log import Log, partition_directory
from appliance.log.files import log_path, sizes
from appliance.records.encode import encode_values

from ..support.command_line import run, succeeding
from ..support.log_batches import place_all
from ..support.native_peer import Peer
from ..support.server import Server, wait_for

SMALL = ("--setting", "segment.bytes=64KiB")
LINE = "line %08d " + 300 * "x"


def restored(backup: Path, server: Server) -> Server:
    """What systemd/README.md describes: the copy of a backup in the place of the data directory, of a stopped one."""
    server.stop()
    server.data_dir.rename(server.data_dir.with_name("old"))
    subprocess.run(["cp", "-a", str(backup), str(server.data_dir)], check=True)
    return server.start()


def lines(server: Server, topic: str, *options: str) -> list[str]:
    at = ("--data", str(server.data_dir))
    return succeeding("consume", topic, "--from", "earliest", "--timeout", "1", *options, *at).out.splitlines()


def test_a_backup_under_load_has_what_was_acknowledged(make_appliance: Callable[..., Server], tmp_path: Path) -> None:
    server = make_appliance()
    at = ("--data", str(server.data_dir))
    succeeding("topics", "create", "web", *SMALL, *at)
    acknowledged, ended = 0, threading.Event()
    lock, enough = threading.Lock(), threading.Event()

    def count(*_: object) -> None:
        nonlocal acknowledged
        with lock:
            acknowledged += 1
            if acknowledged == 2_000:
                enough.set()

    def load() -> None:
        number = 0
        with Producer(server.native, linger_ms=1) as producer:
            while not ended.is_set():
                producer.send("web", (LINE % number).encode()).add_done_callback(count)
                number += 1

    loader = threading.Thread(target=load)
    loader.start()
    try:
        assert enough.wait(60)
        before = acknowledged
        made = succeeding("backup", str(tmp_path / "copy"), "--json", *at).json
    finally:
        ended.set()
        loader.join()
    assert made["partitions"] == 1 and made["left_out"] == 0
    sealed, active = sorted(sizes(tmp_path / "copy" / "web-0")[0])[:-1], max(sizes(tmp_path / "copy" / "web-0")[0])
    assert len(sealed) > 3 and made["linked_bytes"] > 3 * 60_000
    for base in sealed:
        ours, theirs = log_path(tmp_path / "copy" / "web-0", base), log_path(server.data_dir / "web-0", base)
        assert ours.samefile(theirs), "a sealed segment is copied"
    assert not log_path(tmp_path / "copy" / "web-0", active).samefile(log_path(server.data_dir / "web-0", active))

    succeeding("topics", "delete", "web", "--yes", *at)  # the accident that the backup is for
    restored(tmp_path / "copy", server)
    found = lines(server, "web")
    assert len(found) >= before
    assert found == [LINE % number for number in range(len(found))]
    succeeding("produce", "web", *at, stdin=b"and on it goes\n")
    assert lines(server, "web")[-1] == "and on it goes"
    assert [row["state"] for row in succeeding("log", "verify", "--json", *at).json] == ["sound"]


def test_committed_offsets_come_back_with_the_logs(make_appliance: Callable[..., Server], tmp_path: Path) -> None:
    server = make_appliance(**{"zookeeper.nodes": 1})
    server.wait_for_zookeeper()
    at = ("--data", str(server.data_dir))
    succeeding("topics", "create", "web", *at)
    succeeding("produce", "web", *at, stdin=b"".join(b"%d\n" % number for number in range(10)))
    group = ("web", "--group", "reports", "--from", "earliest", "--timeout", "60", "--max")
    assert succeeding("consume", *group, "4", *at).out.split() == ["0", "1", "2", "3"]
    succeeding("backup", str(tmp_path / "copy"), *at)
    assert succeeding("consume", *group, "6", *at).out.split() == ["4", "5", "6", "7", "8", "9"]
    restored(tmp_path / "copy", server)
    server.wait_for_zookeeper()
    assert succeeding("consume", *group, "6", *at).out.split() == ["4", "5", "6", "7", "8", "9"]


def test_what_was_open_when_the_logs_were_copied_is_aborted(
    make_appliance: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when ZooKeeper's files have been copied before, with the decision to commit the transaction before."""
    server = make_appliance(**{"zookeeper.nodes": 1})
    server.wait_for_zookeeper()
    succeeding("topics", "create", "web", "--data", str(server.data_dir))
    copy_partition = _Copy.copy_partition

    def copied_later(copy: _Copy, name: str) -> None:
        producer.send("web", b"open")
        producer.flush()
        copy_partition(copy, name)

    monkeypatch.setattr(_Copy, "copy_partition", copied_later)
    with Producer(server.native, transactional_id="billing") as producer:
        with producer.transaction():
            producer.send("web", b"committed")
        with suppress(InterruptedError), producer.transaction():
            back_up(server.data_dir, tmp_path / "copy")
            raise InterruptedError
    restored(tmp_path / "copy", server)
    server.wait_for_zookeeper()
    with Producer(server.native, transactional_id="billing") as producer, producer.transaction():
        producer.send("web", b"later")
    with Consumer(server.native, isolation="read_committed") as consumer:
        consumer.assign({("web", 0): EARLIEST})
        values: list[bytes | None] = []
        while b"later" not in values:
            values += [message.value for message in consumer.poll(60)]
    assert values == [b"committed", b"later"]


@pytest.fixture(scope="module")
def some_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a stopped appliance with one partition of several segments; not to be changed."""
    path = tmp_path_factory.mktemp("backup") / "data"
    with Server(path):
        at = ("--data", str(path))
        succeeding("topics", "create", "web", *SMALL, *at)
        for _ in range(5):
            values = b"".join(os.urandom(150).hex().encode() + b"\n" for _ in range(220))
            succeeding("produce", "web", *at, stdin=values)
    assert len(sizes(path / "web-0")[0]) > 3
    return path


@pytest.fixture
def stopped(some_data: Path, tmp_path: Path) -> Path:
    shutil.copytree(some_data, tmp_path / "data")
    return tmp_path / "data"


def test_segments_that_retention_removes_meanwhile(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition is started over: the backup has no hole, and its start is that of its first segment."""
    link, partition, seen = os.link, stopped / "web-0", 0
    bases = sorted(sizes(partition)[0])

    def removing(source: Path, target: Path) -> None:
        nonlocal seen
        seen += source.suffix == ".log"
        if seen == 2 and source.suffix == ".log":  # the first segment is in the backup, the second is not
            log = Log.open(partition, TopicSettings(), lambda: 0)
            log.retire_before(bases[2])
            assert log.unlink_retired() == 4  # two segments and their indexes
            log.close()
        link(source, target)

    monkeypatch.setattr(os, "link", removing)
    made = back_up(stopped, tmp_path / "copy")
    assert (made.partitions, made.left_out) == (1, 0)
    assert sorted(sizes(tmp_path / "copy" / "web-0")[0]) == sorted(sizes(partition)[0]) == bases[2:]
    log = Log.open(tmp_path / "copy" / "web-0", TopicSettings(), lambda: 0)
    assert (log.start, log.bases) == (bases[2], bases[2:])


def test_segments_that_are_sealed_meanwhile_are_in_the_backup(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction may have removed messages from others because of theirs."""
    link, partition, seen = os.link, stopped / "web-0", 0

    def sealing(source: Path, target: Path) -> None:
        nonlocal seen
        seen += 1
        if seen == 2:
            log = Log.open(partition, TopicSettings(), lambda: 0)
            for _ in range(2):
                log.append(place_all(log.end_offset, [encode_values([b"later"], 0)]))
                log.roll()
            log.close()
        link(source, target)

    monkeypatch.setattr(os, "link", sealing)
    made = back_up(stopped, tmp_path / "copy")
    assert (made.partitions, made.left_out) == (1, 0)
    logs = sizes(partition)[0]
    assert sizes(tmp_path / "copy" / "web-0")[0] == logs
    for base in logs:
        assert log_path(tmp_path / "copy" / "web-0", base).read_bytes() == log_path(partition, base).read_bytes()


def test_a_partition_that_is_deleted_meanwhile_is_left_out(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(source: Path, target: Path) -> None:
        shutil.rmtree(source.parent, ignore_errors=True)
        raise FileNotFoundError(2, "gone", str(source))

    monkeypatch.setattr(os, "link", gone)
    made = back_up(stopped, tmp_path / "copy")
    assert (made.partitions, made.left_out) == (0, 1) and not (tmp_path / "copy" / "web-0").exists()


def test_another_file_system_gets_copies(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    segment = log_path(stopped / "web-0", next(iter(sizes(stopped / "web-0")[0])))
    os.truncate(segment, segment.stat().st_size - 100)
    os.truncate(segment, 8 << 20)  # as compaction leaves it: of most of it nothing is on the disk
    with segment.open("r+b") as file:
        file.seek(4 << 20)
        file.write(b"in the middle")
    monkeypatch.setattr(os, "link", elsewhere)
    made = back_up(stopped, tmp_path / "copy")
    assert (tmp_path / "copy" / "web-0" / segment.name).stat().st_blocks <= segment.stat().st_blocks + 16
    assert made.copied_bytes < 4 << 20
    copied = {path.name: path.read_bytes() for path in (tmp_path / "copy" / "web-0").glob("*.log")}
    assert made.linked_bytes == 0
    assert copied == {path.name: path.read_bytes() for path in (stopped / "web-0").glob("*.log")}


def test_nothing_is_left_of_a_backup_that_fails(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "sendfile", full)
    said = run("backup", str(tmp_path / "copy"), "--data", str(stopped))
    assert said.status == 75 and "No space left" in said.err
    assert not list(tmp_path.glob("copy*"))


def test_wrong_targets_are_refused(stopped: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "half.partial").mkdir()
    for target in (tmp_path / "there", tmp_path / "half", stopped / "inside"):
        with pytest.raises(BadValue, match=r"new directory|delete it|beside it"):
            back_up(stopped, target)
    with pytest.raises(NoDirectory):
        back_up(tmp_path / "there", tmp_path / "copy")
    assert run("backup", str(tmp_path / "copy")).status == 2


# ---- one topic


def test_one_topic_comes_back_into_a_running_appliance_and_nothing_else_changes(
    make_appliance: Callable[..., Server], tmp_path: Path
) -> None:
    """Under its name after it was deleted, under another beside the present one; producers are known as before."""
    server = make_appliance(**{"topics.trash_ms": 0})
    at = ("--data", str(server.data_dir))
    for topic in ("web", "app"):
        succeeding("topics", "create", topic, "--partitions", "2", "--setting", "retention.bytes=1000000", *SMALL, *at)
    kept = [LINE % number for number in range(600)]
    for topic in ("web", "app"):
        succeeding("produce", topic, "--partition", "1", *at, stdin="\n".join(kept).encode())
    batch = encode_values([b"once"], 1_000, producer_id=77, producer_epoch=0, base_sequence=0)
    with Peer(server.native) as peer:
        first = peer.produce("web", batch, acks=-1)
        assert first[0] == 0
    succeeding("backup", str(tmp_path / "copy"), *at)
    for topic in ("web", "app"):
        succeeding("produce", topic, "--partition", "1", *at, stdin=b"later\n")

    said = succeeding("topics", "restore", str(tmp_path / "copy"), "web", "--as", "web-of-then", *at)
    assert said.out == "web-of-then is back with 2 partitions\n" and "`appliance groups reset GROUP ...`" in said.err
    succeeding("topics", "delete", "web", "--yes", *at)
    succeeding("topics", "restore", str(tmp_path / "copy"), "web", "--setting", "retention.ms=-1", *at)
    for topic in ("web", "web-of-then"):
        assert lines(server, topic, "--partition", "1") == kept
        with Peer(server.native) as peer:
            assert peer.produce(topic, batch, acks=-1) == first, "a repeat is taken for a new batch"
            assert peer.end(topic) == first[2]
    assert lines(server, "app") == [*kept, "later"]
    settings = {row["name"]: row["settings"] for row in succeeding("topics", "list", "--json", *at).json}
    assert settings["web-of-then"] == settings["app"]
    assert settings["web"] == settings["app"] | {"retention.ms": "-1"}
    for _ in range(2):
        assert {row["state"] for row in succeeding("log", "verify", "--json", *at).json} == {"sound"}
        left = sorted(path.name for path in server.data_dir.iterdir() if path.is_dir())
        assert left == [f"{topic}-{number}" for topic in ("app", "web", "web-of-then") for number in range(2)]
        server.stop()
        server.start()
    assert "what=restore_topic topic=web-of-then partitions=2" in server.log()


def directories(data_dir: Path) -> list[str]:
    """Those of partitions, and what a restore leaves.  Files of the whole appliance come and go meanwhile."""
    return sorted(path.name for path in data_dir.iterdir() if path.is_dir())


def test_a_topic_that_cannot_be_restored_leaves_nothing(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(stopped) as server:
        at = ("--data", str(stopped))
        succeeding("backup", str(tmp_path / "copy"), *at)
        succeeding("topics", "delete", "web", "--yes", *at)
        (row,) = succeeding("topics", "trash", "--json", *at).json
        before = directories(stopped)

        def refused(*words: str) -> str:
            said = run("topics", "restore", *words, *at)
            assert said.status and directories(stopped) == before, said
            return said.err

        assert "it has web" in refused(str(tmp_path / "copy"), "app")
        assert "no backup" in refused(str(tmp_path), "web")
        assert "retention.ms" in refused(str(tmp_path / "copy"), "web", "--setting", "retention.ms=soon")
        assert "use only letters" in refused(str(tmp_path / "copy"), "web", "--as", "a b")
        (stopped / "taken-0").mkdir()
        before = directories(stopped)
        assert "taken-0 is in the way" in refused(str(tmp_path / "copy"), "web", "--as", "taken")
        (stopped / "taken-0").rmdir()
        before.remove("taken-0")
        with monkeypatch.context() as broken:
            broken.setattr("appliance.data_directory.backup.give", no_room)
            assert "no room" in refused(str(tmp_path / "copy"), "web")
        succeeding("topics", "create", "web", *at)
        before = directories(stopped)
        assert "--as" in refused(str(tmp_path / "copy"), "web")
        (tmp_path / "copy" / "web-0").rename(tmp_path / "elsewhere")
        assert "has not web-0, which was on broker 0" in refused(str(tmp_path / "copy"), "web", "--as", "other")
        assert row["id"] in {one["id"] for one in succeeding("topics", "trash", "--json", *at).json}
        assert server.state["state"] == "serving"


def no_room(*_: object) -> None:
    raise DiskFull("no room")


def test_two_restores_at_a_time_and_what_an_interrupted_one_has_left(stopped: Path, tmp_path: Path) -> None:
    back_up(stopped, tmp_path / "copy")
    staging = stopped / STAGING
    (staging / "web-0").mkdir(parents=True)
    (staging / "web-0" / "left").write_text("of an interrupted one")
    holder = os.open(staging, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(AlreadyRunning, match="another topic"):
        copy_topic(tmp_path / "copy", stopped, "web", "a" * 32)
    assert (staging / "web-0" / "left").exists()
    os.close(holder)
    copy_topic(tmp_path / "copy", stopped, "web", "a" * 32)
    (found,) = partition_directory.trashed_directories(stopped)
    assert found[0] == "a" * 32 and not (found[1] / "left").exists() and not staging.exists()
    assert partition_directory.topic_id_of(found[1]) == "a" * 32


def test_a_backup_has_nothing_of_the_trash_and_its_restore_says_so(
    make_appliance: Callable[..., Server], tmp_path: Path
) -> None:
    server = make_appliance(**{"disk.check_ms": 100})
    at = ("--data", str(server.data_dir))
    succeeding("topics", "create", "web", *at)
    succeeding("topics", "delete", "web", "--yes", *at)
    succeeding("backup", str(tmp_path / "copy"), *at)
    assert len(succeeding("topics", "trash", "--json", *at).json) == 1
    restored(tmp_path / "copy", server)
    wait_for(lambda: succeeding("topics", "trash", "--json", *at).json == [], "the topic to be forgotten")
    assert "the deleted topic web cannot be brought back" in server.log()
