"""appliance.log.partition_directory: a directory is taken for the log of one topic, and never for that of another."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from appliance.catalog import new_id
from appliance.durable_files import System
from appliance.errors import DiskFull, StorageFault
from appliance.log import partition_directory

OLD, NEW = "0" * 32, "1" * 32


def test_a_claimed_directory_is_ours_and_says_so(tmp_path: Path) -> None:
    directory = partition_directory.directory_of(tmp_path, "logs", 3)
    assert partition_directory.topic_id_of(directory) == ""
    partition_directory.claim(directory, OLD)
    partition_directory.claim(directory, OLD)
    assert partition_directory.topic_id_of(directory) == OLD
    assert (directory / "partition.metadata").read_text() == f"version: 0\ntopic_id: {OLD}\n"


def test_the_log_of_another_topic_is_refused_and_left_alone(tmp_path: Path) -> None:
    directory = partition_directory.directory_of(tmp_path, "logs", 0)
    partition_directory.claim(directory, OLD)
    (directory / "file").write_text("data")
    with pytest.raises(StorageFault, match=f"{OLD}.*{NEW}"):
        partition_directory.claim(directory, NEW)
    partition_directory.set_aside(tmp_path, "logs", 0, NEW)  # an order about a later topic
    assert (directory / "file").read_text() == "data" and partition_directory.topic_id_of(directory) == OLD


def test_a_log_without_an_identity_is_taken_over(tmp_path: Path) -> None:
    directory = partition_directory.directory_of(tmp_path, "logs", 0)
    directory.mkdir()
    (directory / "file").write_text("data")
    partition_directory.claim(directory, NEW)
    assert partition_directory.topic_id_of(directory) == NEW and (directory / "file").exists()


@pytest.mark.parametrize("text", ["", "version: 0\n", "topic_id: ..\n", "topic_id: \xff\n", f"topic_id: {OLD}\n" * 2])
def test_an_identity_that_cannot_be_read_is_refused_by_name(tmp_path: Path, text: str) -> None:
    directory = partition_directory.directory_of(tmp_path, "logs", 0)
    directory.mkdir()
    (directory / "partition.metadata").write_text(text, "latin-1")
    for act in (
        lambda: partition_directory.claim(directory, NEW),
        lambda: partition_directory.set_aside(tmp_path, "logs", 0, NEW),
    ):
        with pytest.raises(StorageFault, match=r"partition\.metadata"):
            act()


def test_what_is_set_aside_frees_the_name_and_is_discarded_under_another(tmp_path: Path) -> None:
    for topic_id in (OLD, NEW):
        partition_directory.claim(partition_directory.directory_of(tmp_path, "logs", 0), topic_id)
        partition_directory.set_aside(tmp_path, "logs", 0, topic_id)
        partition_directory.set_aside(tmp_path, "logs", 0, topic_id)
    (tmp_path / "readme.deleted").mkdir()
    (tmp_path / "logs-0.deleted-0").mkdir()  # partition 0 of a topic of this name
    set_aside = partition_directory.deleted(tmp_path)
    assert [path.name for path in set_aside] == [f"{OLD}-0.deleted", f"{NEW}-0.deleted"]
    for directory in set_aside:
        partition_directory.discard(directory)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs-0.deleted-0", "readme.deleted"]
    with pytest.raises(AssertionError):
        partition_directory.discard(tmp_path / "logs-0.deleted-0")


def test_a_partition_made_in_vain_twice_is_set_aside_twice(tmp_path: Path) -> None:
    """Adding a partition may fail again and again, each time under the id of the topic that stays."""
    for _ in range(2):
        partition_directory.claim(partition_directory.directory_of(tmp_path, "logs", 7), OLD)
        partition_directory.set_aside(tmp_path, "logs", 7, OLD)
    assert len(partition_directory.deleted(tmp_path)) == 1


def test_a_disk_that_refuses_leaves_a_directory_that_can_be_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    topic_id = new_id()
    with monkeypatch.context() as broken:
        broken.setattr("appliance.durable_files.SYSTEM", System(fsync=full))
        with pytest.raises(DiskFull):
            partition_directory.claim(partition_directory.directory_of(tmp_path, "logs", 0), topic_id)
    partition_directory.set_aside(tmp_path, "logs", 0, topic_id)
    assert [path.name for path in tmp_path.iterdir()] == [f"{topic_id}-0.deleted"]
