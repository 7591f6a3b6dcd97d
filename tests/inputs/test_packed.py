"""Lines of files that rotation has compressed before they were read: each once, or in a gap."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.inputs import generation_reader, packed, unpacking
from appliance.inputs.packed import PACKED_WAIT_MS

from .files_rig import NO_TOPIC, PACKERS, Rig


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Rig]:
    """No pattern of the input names what rotation makes."""
    made = Rig(tmp_path, "*.log")
    yield made
    made.close()


KINDS = pytest.mark.parametrize("kind", PACKERS)


@KINDS
@pytest.mark.parametrize("ends", ["runs", "stop", "kill"])
@pytest.mark.parametrize("include", ["*.log", "*.log*"])
def test_a_file_that_is_compressed_before_its_end_was_read_is_read_to_its_end(
    tmp_path: Path, kind: str, ends: str, include: str
) -> None:
    """With a second one that came, and was compressed, before anybody has seen it."""
    rig = Rig(tmp_path, include)
    rig.write("app.log", 500, 20)
    rig.look()
    rig.write("app.log", 500, 20)
    if ends != "runs":
        getattr(rig, ends)()
    rig.path("app.log").rename(rig.path("app.log.2"))
    rig.compress("app.log.2", kind)
    rig.write("app.log", 700, 20)
    rig.path("app.log").rename(rig.path("app.log.1"))
    rig.compress("app.log.1", kind)
    rig.write("app.log", 3)
    rig.settle()
    rig.stop()
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])
    for life in (rig.written[:1000], rig.written[1000:1700]):
        assert [value for value in rig.log.values if value in set(life)] == life
    assert set(rig.log.keys) == {str(rig.path("app.log")).encode()}
    rig.close()


@KINDS
def test_a_copy_that_is_compressed_has_what_was_written_after_the_last_look(narrow: Rig, kind: str) -> None:
    narrow.write("app.log", 3)
    narrow.look()
    narrow.write("app.log", 2)
    narrow.copy("app.log", "app.log.1")
    narrow.truncate("app.log")
    narrow.compress("app.log.1", kind)
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


@KINDS
@pytest.mark.parametrize("has_dates", [True, False])
def test_files_of_olddir_and_with_dates_are_known(tmp_path: Path, kind: str, has_dates: bool) -> None:
    """``include`` names the directory that rotation moves files to."""
    rig = Rig(tmp_path, "**")
    rig.path("old").mkdir()
    rig.write("app.log", 60, 20)
    rig.settle()
    rig.write("app.log", 60, 20)
    rig.stop()
    rig.path("app.log").rename(rig.path("moved"))
    name = "app.log-20261127" if has_dates else "app.log.1"
    rig.compress("moved", kind, f"old/{name}.{kind}")
    rig.write("app.log", 3)
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])
    rig.close()


@KINDS
@pytest.mark.parametrize("ends", ["runs", "kill"])
def test_lines_that_were_seen_and_could_not_be_sent_are_read_in_the_compressed_file(
    narrow: Rig, kind: str, ends: str
) -> None:
    narrow.write("app.log", 300, 20)
    narrow.settle()
    narrow.log.fault = NO_TOPIC
    narrow.write("app.log", 300, 20)
    narrow.look(20_000)
    if ends == "kill":
        narrow.kill()
    narrow.copy("app.log", "app.log.1")
    narrow.truncate("app.log")
    narrow.compress("app.log.1", kind)
    for _ in range(4):
        narrow.look(20_000)
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


@KINDS
def test_a_kill_in_the_middle_of_a_compressed_file_doubles_and_loses_nothing(
    narrow: Rig, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "UNPACKED_BYTES", 4_000)
    monkeypatch.setattr(generation_reader, "READ_BYTES", 4_000)
    monkeypatch.setattr(generation_reader, "TURN_BYTES", 8_000)
    narrow.look()
    narrow.write("app.log", 3_000, 40)
    narrow.path("app.log").rename(narrow.path("app.log.1"))
    narrow.compress("app.log.1", kind)
    counts = []
    for turn in range(60):
        for _ in range(3):
            narrow.now_ms += 20_000
            narrow.engine.scan()
        for _ in range(turn):
            narrow.run(narrow.engine.work())
        counts.append(len(narrow.log.values))
        if turn % 3 == 2:
            narrow.commit()
        narrow.kill()
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])
    assert len(set(counts)) > 3, "it was killed in the middle"


@KINDS
def test_a_file_that_is_half_written_is_waited_for(narrow: Rig, kind: str) -> None:
    """Its packer stood still for long."""
    narrow.look()
    narrow.write("app.log", 3_000, 40)
    narrow.path("app.log").rename(narrow.path("app.log.1"))
    data = narrow.compress("app.log.1", kind).read_bytes()
    path = narrow.path(f"app.log.1.{kind}")
    for part in (0, 100, len(data) // 2, len(data) - 3):
        path.write_bytes(data[:part])
        narrow._touch(path)
        for _ in range(3):
            narrow.look(PACKED_WAIT_MS / 8)
    path.write_bytes(data)
    narrow._touch(path)
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


@KINDS
def test_of_a_damaged_file_comes_what_can_be_unpacked_and_the_rest_is_a_gap_told_once(
    tmp_path: Path, kind: str
) -> None:
    """Of bzip2 nothing before the end of a block can be unpacked, so nothing shows that it is this file."""
    rig = Rig(tmp_path, "*.log", rotate_ms=0)
    rig.write("app.log", 3)
    rig.look()
    rig.stop()
    rig.write("app.log", 100_000, 20)
    rig.path("app.log").rename(rig.path("app.log.1"))
    path = rig.compress("app.log.1", kind)
    data = path.read_bytes()
    times = path.stat()
    path.write_bytes(data[: len(data) * 4 // 5])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    rig.write("app.log", 3)
    for _ in range(3):
        rig.settle()
    rig.stop()
    rig.settle()
    lost = rig.lost()
    first = rig.written.index(lost[0])
    assert (first == 3) == (kind == "bz2") and lost == rig.written[first:100_003] and rig.doubled() == []
    ((name, start, stop, reason),) = rig.gaps
    assert (name, stop, str(path) in reason) == (str(rig.path("app.log")), None, kind != "bz2")
    read = sum(len(line) + 1 for line in rig.written[:first])
    assert read <= start <= read + len(lost[0]), "the gap begins in the first line that is not whole"
    rig.close()


def test_a_bomb_is_a_gap_and_others_go_on_meanwhile(narrow: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "ALWAYS_BYTES", 100_000)
    monkeypatch.setattr(unpacking, "RATIO_MAX", 10)
    narrow.look()
    narrow.append("bomb.log.1", b"boom\n" * 1_000_000)
    narrow.compress("bomb.log.1", "xz")
    narrow.write("app.log", 3)
    for _ in range(4):
        narrow.settle()
    assert (narrow.lost(), narrow.doubled()) == ([], [b"boom"])
    assert narrow.log.values.count(b"boom") < 200_000
    ((name, _, stop, reason),) = narrow.gaps
    assert (name, stop, "times its size" in reason) == (str(narrow.path("bomb.log")), None, True)


@KINDS
def test_archives_from_before_the_first_scan_are_not_read(narrow: Rig, kind: str) -> None:
    """Nor when a file is lost that begins as they do."""
    banner = b"# about me, at length\n" * 100
    narrow.append("app.log", banner + b"old\n")
    narrow.path("app.log").rename(narrow.path("app.log.1"))
    narrow.compress("app.log.1", kind)
    narrow.append("app.log", banner)
    narrow.write("app.log", 3)
    narrow.settle()
    narrow.stop()
    narrow.remove("app.log")
    narrow.settle()
    assert (narrow.lost(), b"old" in narrow.log.values) == ([], False)
    assert len(narrow.gaps) == 1


@KINDS
@pytest.mark.parametrize("is_seen", [True, False])
def test_a_file_that_begins_as_the_one_before_it_is_another_one_when_it_is_compressed(
    narrow: Rig, kind: str, is_seen: bool
) -> None:
    banner = b"# about me, at length\n" * 100
    narrow.look()
    for turn in range(3):
        narrow.append("app.log", banner)
        narrow.write("app.log", 3 + turn)
        if is_seen:
            narrow.look(100)
        narrow.path("app.log").rename(narrow.path(f"app.log.{turn}"))
        narrow.compress(f"app.log.{turn}", kind)
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [banner.splitlines()[0]], [])
    assert narrow.log.values.count(b"# about me, at length") == 300


@KINDS
def test_a_line_that_was_written_to_a_renamed_file_before_it_was_compressed_is_read(narrow: Rig, kind: str) -> None:
    narrow.write("app.log", 30)
    narrow.settle()
    narrow.path("app.log").rename(narrow.path("app.log.1"))
    narrow.settle()
    narrow.stop()
    narrow.write("app.log.1", 2)
    narrow.compress("app.log.1", kind)
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


@KINDS
def test_an_archive_of_what_was_read_is_unpacked_and_no_news(narrow: Rig, kind: str) -> None:
    """Also one that somebody makes of a file that is still written to."""
    narrow.write("app.log", 30)
    narrow.settle()
    narrow.path("app.log.now." + kind).write_bytes(PACKERS[kind](narrow.path("app.log").read_bytes()))
    narrow.path("app.log-20261127." + kind).write_bytes(PACKERS[kind](narrow.path("app.log").read_bytes()))
    narrow._touch(narrow.path("app.log-20261127." + kind))
    narrow.settle()
    narrow.write("app.log", 3)
    narrow.path("app.log").rename(narrow.path("app.log.1"))
    narrow.settle()
    narrow.compress("app.log.1", kind)
    narrow.kill()
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


def test_few_compressed_files_are_open_at_a_time(narrow: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[unpacking.Unpacker] = []
    made = packed.Unpacker

    def counted(*what: object) -> unpacking.Unpacker:
        opened.append(made(*what))  # type: ignore[arg-type]
        return opened[-1]

    monkeypatch.setattr(packed, "Unpacker", counted)
    narrow.look()
    for number in range(20):
        narrow.write(f"app{number}.log", 5)
        narrow.path(f"app{number}.log").rename(narrow.path(f"app{number}.log.1"))
        narrow.compress(f"app{number}.log.1", "xz")
    narrow.log.fault = NO_TOPIC
    for _ in range(4):
        narrow.look(20_000)
        assert len(opened) <= packed.PACKED_OPEN_MAX
    for _ in range(10):
        narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps, len(opened)) == ([], [], [], 20)


def test_what_is_named_as_a_command_names_it_is_read_also_when_it_was_compressed_since(narrow: Rig) -> None:
    """``appliance ship --positions``, which ends when all is read."""
    narrow.write("app.log", 5)
    narrow.run(narrow.engine.read_all(is_last=False))
    narrow.stop()
    narrow.write("app.log", 5)
    narrow.path("app.log").rename(narrow.path("app.log.1"))
    narrow.compress("app.log.1")
    narrow.write("app.log", 5)
    narrow.run(narrow.engine.read_all(is_last=False))
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


def test_a_file_of_utf_16_is_decoded_where_it_goes_on(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "*.log", encoding="utf-16")
    rig.look()
    rig.append("app.log", "\ufeffgrün\nblau\n".encode("utf-16-be"))
    rig.path("app.log").rename(rig.path("app.log.1"))
    rig.path("app.log.1.gz").write_bytes(gzip.compress(rig.path("app.log.1").read_bytes()))
    rig.path("app.log.1").unlink()
    rig.settle()
    assert [value.decode().strip("\ufeff") for value in rig.log.values] == ["grün", "blau"]
    rig.close()
