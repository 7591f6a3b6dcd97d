"""appliance.processes.coordinator.retention_enforcer: orders what retention has decided, from real files and tables."""

from __future__ import annotations

import os
from pathlib import Path

from appliance import config as configs
from appliance.log.files import log_path
from appliance.partition_states import OFFLINE
from appliance.processes.messages import Reload

from ...support.coordinator_fixture import Rig


def start(tmp_path: Path, *settings: str) -> Rig:
    keys = ["zookeeper.nodes=0", "disk.check_ms=100", "disk.free_bytes_min=0", "disk.free_bytes_warn=0", *settings]
    return Rig(tmp_path, configs.load(overrides=keys))


def fill(rig: Rig, topic: str, sizes: list[int], ages_s: list[int] | None = None) -> None:
    """Segments of so many bytes, the last is the active one; files of that size, written so long ago."""
    base, bases = 0, []
    now_s = rig.data_dir.stat().st_mtime
    for size, age_s in zip(sizes, ages_s or [0] * len(sizes), strict=True):
        path = log_path(rig.data_dir / f"{topic}-0", base)
        path.write_bytes(bytes(size))
        os.utime(path, (now_s - age_s, now_s - age_s))
        bases.append(base)
        base += size
    table = rig.tables[topic, 0]
    table.publish(bases, 0, base, 1)
    table.set_log_end_offset(base)


def test_old_segments_are_cut(tmp_path: Path) -> None:
    with start(tmp_path, "topics.retention.ms=1h") as rig:
        rig.admin("create_topic", name="logs")
        fill(rig, "logs", [1000, 1000, 1000], [7200, 60, 0])
        rig.until(lambda: rig.cuts)
        assert set(rig.cuts) == {("logs", 0, 1000)}


def test_a_topics_own_size_and_the_cap_for_all(tmp_path: Path) -> None:
    with start(tmp_path, "disk.bytes_max=80KiB") as rig:
        rig.admin("create_topic", name="small", settings={"retention.bytes": "4KiB"})
        fill(rig, "small", [4096, 4096, 4096])
        rig.admin("create_topic", name="large")
        fill(rig, "large", [40960, 40960, 4096])
        rig.until(lambda: len(set(rig.cuts)) == 2)
        assert set(rig.cuts) == {("small", 0, 8192), ("large", 0, 40960)}


def test_an_active_segment_that_is_all_there_is_goes_by_age_and_is_sealed_for_room(tmp_path: Path) -> None:
    with start(tmp_path, "disk.bytes_max=1MiB", "topics.retention.ms=1h") as rig:
        rig.admin("create_topic", name="old")
        fill(rig, "old", [1000], [7200])
        rig.admin("create_topic", name="large")
        fill(rig, "large", [3 << 20])
        rig.until(lambda: rig.cuts and rig.rolls)
        assert set(rig.cuts) == {("old", 0, 1000)} and set(rig.rolls) == {("large", 0)}


def test_an_offline_partition_is_left_alone(tmp_path: Path) -> None:
    with start(tmp_path, "topics.retention.ms=1h") as rig:
        for name in ("broken", "logs"):
            rig.admin("create_topic", name=name)
            fill(rig, name, [1000, 1000], [7200, 7200])
        rig.tables["broken", 0].set_state(OFFLINE)
        rig.cuts.clear()
        rig.until(lambda: len(rig.cuts) >= 3)
        assert {topic for topic, _, _ in rig.cuts[1:]} == {"logs"}


def test_limits_follow_a_reload_and_an_altered_topic(tmp_path: Path) -> None:

    with start(tmp_path) as rig:
        for name in ("logs", "other"):
            rig.admin("create_topic", name=name)
            fill(rig, name, [1000, 1000], [7200, 0])
        rig.admin("alter_topic", name="other", settings={"retention.ms": "1h"})
        assert rig.settings["other", 0]["retention.ms"] == "3600000"
        rig.until(lambda: rig.cuts)
        assert set(rig.cuts) == {("other", 0, 1000)}
        changed = configs.load(overrides=["zookeeper.nodes=0", "topics.retention.ms=2m", "disk.check_ms=100"])
        rig.channel.send(Reload(changed))
        rig.until(lambda: ("logs", 0, 1000) in rig.cuts)
        assert rig.settings["logs", 0]["retention.ms"] == "120000"
        assert rig.settings["other", 0]["retention.ms"] == "3600000"
        assert rig.metadata("logs")["topics"][0]["settings"]["retention.ms"] == "120000"


def test_what_was_removed_is_counted_once_by_reason(tmp_path: Path) -> None:
    """An order that is repeated, because the writer has not followed it yet, is not counted again."""
    with start(tmp_path, "topics.retention.ms=1h") as rig:
        rig.admin("create_topic", name="old")
        fill(rig, "old", [1000, 500, 0], [7200, 7200, 0])
        rig.until(lambda: rig.cuts)
        rig.admin("create_topic", name="large", settings={"retention.bytes": "4KiB"})
        fill(rig, "large", [4096, 4096, 4096])
        rig.until(lambda: rig.cuts.count(("old", 0, 1500)) > 2 and ("large", 0, 8192) in rig.cuts)
        assert rig.shown["retention"] == {"age": 1500, "size": 8192, "room": 0}
