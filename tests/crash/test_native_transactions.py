"""Groups that commit in transactions of native producers, while processes of every role are killed and stopped.

Three copiers copy what keeps coming; a reader of committed messages looks on.  Nothing that it has seen may change or
go, nothing of an aborted transaction may be seen, nothing may be missing or there twice at the end, and no transaction
may stay open.  ``TRANSACTION_FAULTS=500`` sets how many faults strike, ``TRANSACTION_SEED`` which.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import pytest

from appliance.client import Admin, Producer
from appliance.errors import ApplianceError

from ..support.long import chosen_size
from ..support.server import Server, stopped, wait_for
from ..support.transactional_copier import Copier, read_all

FAULTS: Final = chosen_size("TRANSACTION_FAULTS", 5, 30)
SEED: Final = int(os.environ.get("TRANSACTION_SEED", "0"))
ROLES: Final = ("writer", "network", "coordinator", "coordinator", "zookeeper")
PARTITIONS: Final = 3
COPIERS: Final = 3
AT_ONCE: Final = 20
DEADLINE_S: Final = 180.0
SOURCE, COPY = "source", "copy"


class Bed:
    """An appliance, copiers, and what is sent and seen."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server, self.chance = server, random.Random(seed)
        self.copiers: list[Copier] = []
        self.sent: list[bytes] = []
        self.seen: dict[tuple[int, int], bytes] = {}
        self.faults: Counter[str] = Counter()

    def send(self, producer: Producer) -> None:
        values = [b"%d" % number for number in range(len(self.sent), len(self.sent) + AT_ONCE)]
        for value in values:
            producer.send(SOURCE, value, partition=self.chance.randrange(PARTITIONS))
        producer.flush(DEADLINE_S)
        assert producer.failure is None, producer.failure
        self.sent += values

    def look(self) -> bool:
        """Read what is committed by now; whether it is everything."""
        try:
            found = dict(read_all(self.server, COPY, PARTITIONS))
        except ApplianceError:  # a process of the appliance is being started
            return False
        for at, value in self.seen.items():
            assert found.get(at) == value, f"{at}: {value!r} was seen, and is {found.get(at)!r} now"
        twice = [value for value, count in Counter(found.values()).items() if count > 1]
        assert not twice, f"copied twice, after {self.faults}: {twice[:5]}"
        self.seen = found
        return len(found) == len(self.sent)

    def strike(self) -> None:
        """One fault of one process."""
        what = self.chance.choice(("kill", "kill", "stop", "copier", "copier stops"))
        role = self.chance.choice(ROLES)
        self.faults[what if "copier" in what else f"{what} {role}"] += 1
        copier = self.chance.choice(self.copiers)
        if what == "copier":
            copier.kill()
            copier.start()
        elif what == "copier stops":
            self._stop(copier.process.pid, self.chance.choice((1.0, 6.0)))  # its transactions may take 4 s
        else:
            pids = self.server.pids(role)
            with contextlib.suppress(ProcessLookupError):
                pid = self.chance.choice(pids)
                self._stop(pid, 1.0) if what == "stop" else os.kill(pid, signal.SIGKILL)

    def _stop(self, pid: int, seconds: float) -> None:
        with stopped(pid, may_die=True):
            threading.Event().wait(seconds)


@pytest.mark.long
def test_copies_are_exact_whatever_dies(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"zookeeper.nodes": 1})
    server.wait_for_zookeeper()
    bed = Bed(server, SEED)
    with Admin(server.native) as admin:
        admin.create_topic(SOURCE, PARTITIONS)
        admin.create_topic(COPY, PARTITIONS)
    with ExitStack() as stack:
        producer = stack.enter_context(Producer(server.native))
        for number in range(COPIERS):
            bed.copiers.append(Copier(server, SOURCE, number, COPY))
            stack.callback(bed.copiers[-1].kill)
        for _ in range(FAULTS):
            bed.send(producer)
            bed.strike()
            before = len(bed.seen)
            wait_for(lambda before=before: bed.look() or len(bed.seen) > before, f"progress: {bed.faults}", DEADLINE_S)
        wait_for(bed.look, f"everything is copied: {bed.faults}", DEADLINE_S)
    assert Counter(bed.seen.values()) == Counter(bed.sent)
    with Admin(server.native) as admin:
        wait_for(
            lambda: all(row["open_ms"] is None for row in admin.transactions()), "all transactions end", DEADLINE_S
        )
    assert dict(read_all(server, COPY, PARTITIONS)) == bed.seen
