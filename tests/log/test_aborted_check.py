"""appliance.log.aborted_check: a scrub finds wrong indexes of aborted transactions, and mends those that are sealed."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.durable_files import File
from appliance.log import scrub as scrub_module
from appliance.log.aborted_check import AbortedIndexCheck
from appliance.log.files import log_path
from appliance.log.repair import _Repair
from appliance.log.scrub import scrub
from appliance.log.segment import scan
from appliance.log.tools import verify
from appliance.log.transactions import ENTRY_BYTES, Aborted, aborted_path, indexed, read_aborted
from appliance.names import TopicPartition
from appliance.processes.messages import DeleteBefore
from appliance.records.holes import holes
from appliance.records.markers import is_marker

from ..support.committed_reader import Held, read
from ..support.harmed_files import harm
from ..support.server import wait_for
from ..support.transactions import Coordinator, plain, produce, transactional
from ..support.writer_rig import Rig

PRODUCERS = 3


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with filled_rig(tmp_path_factory.mktemp("rig"), transactions=30) as made:
        yield made


@contextmanager
def filled_rig(path: Path, transactions: int) -> Iterator[Rig]:
    """A log of some segments, in which transactions overlap, and half of them are aborted, across segments too."""
    path.mkdir(exist_ok=True)
    with Rig(path, serves=False, segment_bytes=1024) as made:
        coordinator = Coordinator(made)
        for number in range(transactions):
            assert coordinator.open(number % PRODUCERS, 0) == ""
            value = b"%d" % number * 40
            assert produce(made, transactional([value], number % PRODUCERS, 0, number // PRODUCERS)) == 0
            assert produce(made, plain([b"plain %d" % number])) == 0
            if number > 1:
                assert coordinator.end((number - 2) % PRODUCERS, 0, number % 4 < 2) == ""
        yield made


def checked(rig: Rig, start: int = 0, may_write: bool = True) -> AbortedIndexCheck:
    """Scrub from an offset on, as the scrubber does."""
    seen = rig.table.snapshot()
    check = AbortedIndexCheck(directory(rig), seen.bases, seen.high_watermark, lambda: may_write)
    end = seen.high_watermark
    list(scrub(directory(rig), seen.bases, end, start, end, lambda _: None, check.on_batch))
    check.finish()
    return check


def directory(rig: Rig) -> Path:
    return rig.path / "t-0"


def sealed(rig: Rig) -> list[Path]:
    """The indexes of sealed segments."""
    return [
        aborted_path(directory(rig), base) for base in indexed(directory(rig)) if base != rig.table.snapshot().bases[-1]
    ]


def committed(rig: Rig) -> list[tuple[int, bytes]]:
    return read(Held(directory(rig), rig.table), True, 1 << 20)[0]


@given(data=st.data())
def test_whatever_is_wrong_is_mended(rig: Rig, data: st.DataObject) -> None:
    right = {path: path.read_bytes() for path in sealed(rig)}
    messages, harmed = committed(rig), set()
    assert len(right) > 3 and checked(rig).mended == []
    try:
        for _ in range(data.draw(st.integers(1, 3))):
            path = data.draw(st.sampled_from(sorted(right)))
            harmed.add(path)
            harm(path, data, ENTRY_BYTES)
        problems = {problem.path for problem in verify(directory(rig), rig.writer._log.derived).problems}
        assert {wrong.path for wrong in checked(rig).mended} == problems <= harmed
        assert committed(rig) == messages, "also where a flipped bit does not matter"
        assert checked(rig).mended == []
    finally:
        for path, content in right.items():
            path.write_bytes(content)


def test_what_was_wrong_is_said_and_left_alone_while_the_log_is_repaired(rig: Rig) -> None:
    path = sealed(rig)[1]
    right = path.read_bytes()
    path.unlink()
    assert checked(rig, may_write=False).mended == [] and not path.exists()
    (mended,) = checked(rig).mended
    assert mended == (path, [], read_aborted(path)) and path.read_bytes() == right
    assert str(mended).startswith(f"{path}: [] instead of [Aborted(")


def test_nothing_is_concluded_from_a_part_of_a_log(rig: Rig, tmp_path: Path) -> None:
    """A scrub that goes on somewhere, and damage that may hide the beginning of a transaction, or its end."""
    path = sealed(rig)[-1]
    right = path.read_bytes()
    path.unlink()
    first = rig.table.snapshot().bases[0]
    assert checked(rig, start=rig.table.snapshot().bases[1]).mended == []
    with log_path(directory(rig), first).open("r+b") as file:
        file.seek(80)
        byte = file.read(1)
        file.seek(80)
        file.write(bytes([byte[0] ^ 0xFF]))
        file.flush()
        assert checked(rig).mended == []
        file.seek(80)
        file.write(byte)
    assert not path.exists()
    assert [mended.path for mended in checked(rig).mended] == [path] and path.read_bytes() == right


def test_nothing_is_concluded_from_files_of_which_compaction_has_replaced_one(rig: Rig) -> None:
    """What was read of one file and what was read of the next one are of different times."""
    seen, path = rig.table.snapshot(), sealed(rig)[-1]
    right = path.read_bytes()
    path.unlink()
    check = AbortedIndexCheck(directory(rig), seen.bases, seen.high_watermark, lambda: True)
    end, file = seen.high_watermark, log_path(directory(rig), seen.bases[0])
    list(scrub(directory(rig), seen.bases, end, 0, seen.bases[1], lambda _: None, check.on_batch))
    shutil.copy(file, file.with_suffix(".new"))
    file.with_suffix(".new").rename(file)
    list(scrub(directory(rig), seen.bases, end, seen.bases[1], end, lambda _: None, check.on_batch))
    check.finish()
    assert check.mended == [] and not path.exists()
    assert [mended.path for mended in checked(rig).mended] == [path] and path.read_bytes() == right


def test_that_of_the_active_segment_is_named_and_left_to_its_writer(rig: Rig) -> None:
    path = aborted_path(directory(rig), rig.table.snapshot().bases[-1])
    right = path.read_bytes()
    wrong = read_aborted(path)[0]._replace(producer_id=99)
    path.write_bytes(wrong.pack() + right[ENTRY_BYTES:])
    check = checked(rig)
    assert check.mended == [] and check.wrong is not None and check.wrong.was[0] == wrong
    assert b"".join(map(Aborted.pack, check.wrong.right)) == right
    path.write_bytes(right)
    assert checked(rig).wrong is None


@pytest.mark.parametrize("commits", [True, False])
def test_an_index_stays_where_the_marker_of_a_transaction_has_become_a_hole(tmp_path: Path, commits: bool) -> None:
    """By the batches the next abort would end what was committed, or what was aborted would never have ended."""
    with Rig(tmp_path, serves=False, segment_bytes=1024) as made:
        coordinator = Coordinator(made)
        transactions = [(1, 0, b"first", commits), (2, 0, b"other", False), (1, 1, b"second", False)]
        for producer, sequence, value, ends_well in transactions:
            assert coordinator.open(producer, 0) == ""
            assert produce(made, transactional([value * 10], producer, 0, sequence)) == 0
            assert coordinator.end(producer, 0, ends_well) == ""
            for _ in range(6):
                assert produce(made, plain([b"p" * 200])) == 0
        right = {path: read_aborted(path) for path in sealed(made)}
        messages = committed(made)
        assert checked(made).mended == [] and sum(map(len, right.values())) == (2 if commits else 3)
        empty_first_marker(made)
        assert checked(made).mended == []
        _Repair(directory(made), verify(directory(made)), False, False)._write_aborted(
            made.table.snapshot().bases, made.table.snapshot().high_watermark
        )
        assert {path: read_aborted(path) for path in sealed(made)} == right
        assert committed(made) == messages
        last = max(right)
        last.write_bytes(right[last][0]._replace(producer_id=99).pack())
        assert len(checked(made).mended) == 1, "what no hole explains is wrong"


def empty_first_marker(rig: Rig) -> None:
    seen = rig.table.snapshot()
    for base, limit in zip(seen.bases, [*seen.bases[1:], seen.high_watermark], strict=True):
        for position, info, _ in scan(File(log_path(directory(rig), base)), base, 0, limit - base):
            if is_marker(info):
                with log_path(directory(rig), base).open("r+b") as file:
                    file.seek(position)
                    file.write(b"".join(holes(base + position, info.size, "damaged")))
                return


def test_retention_at_any_moment_is_no_fault_and_nothing_of_what_it_removes_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: of a scrub, batch by batch, each step once has retention before it; the sealed indexes are wrong."""
    monkeypatch.setattr(scrub_module, "WINDOW_BYTES", 1)
    for steps in itertools.count(1):
        with filled_rig(tmp_path / str(steps), transactions=10) as rig:
            seen, steps_left = rig.table.snapshot(), steps
            for path in sealed(rig):
                path.unlink()

            def step(size: int = 0) -> bool:
                nonlocal steps_left
                steps_left -= 1
                if steps_left == 0:
                    rig.order(DeleteBefore(TopicPartition("t", 0), seen.bases[-1]))  # noqa: B023
                    wait_for(lambda: rig.writer.turn(0) or rig.table.start == seen.bases[-1], "retention")  # noqa: B023
                return True

            check = AbortedIndexCheck(directory(rig), seen.bases, seen.high_watermark, step)
            end = seen.high_watermark
            assert list(scrub(directory(rig), seen.bases, end, 0, end, step, check.on_batch)) == []
            check.finish()
            if steps_left > 0:
                assert len(check.mended) > 1
                return
            assert all(base >= seen.bases[-1] for base in indexed(directory(rig)))
