"""appliance.processes.supervisor.inspection: changed files are read, however many have changed at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from appliance.log import Log
from appliance.log.files import log_path
from appliance.names import TopicPartition
from appliance.processes.control import Channel
from appliance.processes.messages import TO_SUPERVISOR, Damaged, Inspected, Stop
from appliance.processes.supervisor import inspection
from appliance.processes.supervisor.inspection import LOOK_S, Inspector
from appliance.records.batch import HEADER_BYTES
from appliance.shared import memory
from appliance.shared.table import TABLE_BYTES, SegmentTable

from ...support.log_batches import RAWS, filled, overwrite

WEB = TopicPartition("web", 0)
CHANGED_AT, STOPPED_AT = 20, 200


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = filled(tmp_path / "web-0", 3 * RAWS)
    yield log
    log.close()


@pytest.fixture
def table(log: Log) -> Iterator[str]:
    """The name of the segment table of ``log``."""
    name, mapped = memory.create("inspectiontest", "table", TABLE_BYTES)
    with mapped, memoryview(mapped) as view, view.cast("Q") as cells:
        SegmentTable(cells).publish(*log.summary)
    yield name
    memory.unlink(name)


class Clock:
    """A clock by which a look is due whenever it is asked.  After ``CHANGED_AT`` times it lets ``change`` happen."""

    def __init__(self, supervisor: Channel, change: Callable[[], None]) -> None:
        self._supervisor, self._change, self._asked = supervisor, change, 0

    def __call__(self) -> float:
        self._asked += 1
        if self._asked == CHANGED_AT:
            self._change()
        if self._asked == STOPPED_AT:
            self._supervisor.send(Stop())
        return self._asked * LOOK_S


def test_of_more_changed_segments_than_may_wait_each_is_read_in_the_end(
    log: Log, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a chmod of all of them: the damaged one is the last, for which there is no room at first."""
    monkeypatch.setattr(inspection, "REPORTS_MAX", 1)
    *sealed, _ = log.bases
    assert len(sealed) >= 4

    def change() -> None:
        for base in sealed:
            log_path(log.path, base).chmod(0o400)
        overwrite(log_path(log.path, sealed[-1]), HEADER_BYTES, b"\xa5")

    supervisor, inspectors_end = Channel.pair()
    with closing(supervisor), closing(inspectors_end):
        row = Inspected(WEB, "id", table, offline=False, away=False)
        Inspector(log.path.parent, [row], inspectors_end, Clock(supervisor, change)).run()
        messages = [message for message, _ in supervisor.receive(TO_SUPERVISOR)]
    found = {place[:3:2] for message in messages if isinstance(message, Damaged) for place in message.places}
    assert found == {(sealed[-1], log_path(log.path, sealed[-1]).name)}
