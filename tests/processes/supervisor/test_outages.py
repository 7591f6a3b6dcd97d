"""appliance.processes.supervisor.outages: orders to repair, in each state of a partition, with anyone dying in it.

The partition may be deleted and made again in each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import StorageFault, UnknownPartition
from appliance.names import TopicPartition
from appliance.processes.messages import NewPartition, OrderDone, RepairDone, Stop
from appliance.processes.supervisor.actions import Actions
from appliance.processes.supervisor.child_events import Orders
from appliance.processes.supervisor.children import Restarts
from appliance.processes.supervisor.hosted import Hosted, HostedPartition
from appliance.processes.supervisor.outages import AGAIN_MS_MAX, Outages
from appliance.processes.supervisor.removal import Removals

from .test_roles import NotedChildren

WEB = TopicPartition("web", 0)
STEPS = ["order", "gone", "offline", "wait", "writer ends", "opens", "does not open", "repaired", "repairer killed"]
DELETION = ["deleted", "removed", "made again"]


class Deaf:
    """Stands for a part of the supervisor that is told something and has no answer."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_: None


class NotedWriters(set[TopicPartition]):
    def set_aside(self, _: TopicPartition) -> None:
        """The writer is asked to end; when it does is a step."""

    drop = set_aside


class NotedOpening(Deaf):
    def __init__(self, hosted: Hosted) -> None:
        self._hosted = hosted

    def add_partition(self, partition: TopicPartition, topic_id: str, settings: dict[str, str], new: bool) -> None:
        row = self._hosted[partition] = HostedPartition(topic_id, settings)
        row.table = "table"
        self.open_all([partition])

    def drop(self, partition: TopicPartition) -> None:
        self._hosted.pop(partition, None)

    def open_all(self, partitions: list[TopicPartition]) -> None:
        self._hosted.opening.update(dict.fromkeys(partitions, 1))


class NotedCoordinator:
    def __init__(self) -> None:
        self.sent: list[RepairDone] = []

    def send(self, message: RepairDone | OrderDone) -> None:
        if isinstance(message, RepairDone):
            self.sent.append(message)


class Rig:
    """One partition.  What the supervisor's other parts would do is a step of the test."""

    def __init__(self) -> None:
        self.hosted, self.now = Hosted(), 0
        row = self.hosted[WEB] = HostedPartition("id", {})
        row.table = "table"
        self.coordinator = NotedCoordinator()
        writers: Any = NotedWriters([WEB])
        self.writers: set[TopicPartition] = writers
        self.actions = Actions(lambda: None, lambda: self.now)
        deaf: Any = Deaf()
        children: Any = NotedChildren()
        children.restarts = Restarts()
        coordinator: Any = self.coordinator
        opening: Any = NotedOpening(self.hosted)
        self.outages = Outages(
            Path("/nowhere"),
            self.hosted,
            children,
            self.actions,
            deaf,
            coordinator,
            lambda: None,
            writers,
            opening,
            deaf,
            deaf,
        )
        self.removals = Removals(
            Path("/nowhere"), self.hosted, children, self.actions, writers, [self.outages.repairers]
        )
        self.orders = Orders(self.hosted, opening, writers, self.removals, self.outages, deaf, coordinator)
        self.topic_ids = {"id"}
        self.repaired_id = ""
        """Of the topic whose log the repairer has been forked for."""

    def take(self, step: str, token: int) -> None:
        outages, repairer = self.outages, self.outages.repairers.child(WEB)
        match step:
            case "order":
                outages.repair(token, WEB, False)
            case "gone":
                outages.on_gone(WEB, "id", "its file is missing")
            case "offline" if WEB in self.hosted and not self.hosted.opening:
                self.hosted[WEB].offline = "EIO"
                outages.on_offline(WEB)
            case "wait":
                self.now += AGAIN_MS_MAX
            case "writer ends":
                self.writers.discard(WEB)
            case "opens" | "does not open" if WEB in self.hosted.opening:
                error = "" if step == "opens" else StorageFault.__name__
                del self.hosted.opening[WEB]
                if WEB in self.hosted:
                    self.hosted[WEB].offline = error
                    outages.on_opened([(WEB, error, error)])
            case "repaired" | "repairer killed" if repairer is not None:
                if step == "repaired":
                    outages.on_repaired(WEB, "", "", {})
                outages.on_repairer_end(repairer)
            case "deleted" if WEB in self.hosted:
                self.orders.delete(token, [WEB], self.hosted[WEB].topic_id, False)
            case "removed" if removers := list(self.removals.removers):
                self.removals.on_removed([(WEB, "", "")])
                child: Any = self.removals.removers.child(removers[0])
                self.removals.on_remover_end(child)
            case "made again" if WEB not in self.hosted:
                topic_id = f"id {len(self.topic_ids)}"
                self.topic_ids.add(topic_id)
                self.orders.create(token, [NewPartition(WEB, topic_id, {}, True)])
        self.actions.run_due()
        self.removals.start_remover()
        outages.go_on()
        self.actions.run_due()
        self.check()

    def check(self) -> None:
        """Nobody else writes to the files of a partition that is repaired, or to those of another topic."""
        repairer = self.outages.repairers.child(WEB)
        if repairer is None:
            self.repaired_id = ""
            return
        assert WEB not in self.writers | self.hosted.opening.keys()
        assert not list(self.removals.removers)
        if WEB in self.hosted:
            self.repaired_id = self.repaired_id or self.hosted[WEB].topic_id
            assert self.repaired_id == self.hosted[WEB].topic_id


@settings(max_examples=500)
@given(st.lists(st.sampled_from([*STEPS, *DELETION]), max_size=30))
def test_every_order_is_answered_once_and_the_partition_comes_back(steps: list[str]) -> None:
    rig = Rig()
    for token, step in enumerate(steps):
        rig.take(step, token)
    for _ in range(3):  # an order may follow an opener, which follows a writer
        for step in ("wait", "writer ends", "opens", "repaired", "opens"):
            rig.take(step, -1)
    orders = Counter(token for token, step in enumerate(steps) if step == "order")
    assert Counter(answer.token for answer in rig.coordinator.sent) == orders, steps
    assert rig.outages.repairers.all_gone and not rig.hosted.opening
    if WEB in rig.hosted:
        assert rig.hosted[WEB].offline == "", steps


def test_no_topic_is_made_where_a_repairer_writes_that_was_killed_and_has_not_ended() -> None:
    """It works by path: it would repair the log of the next topic of this name, which has a writer."""
    rig = Rig()
    for step in ("order", "writer ends", "deleted", "made again"):
        rig.take(step, 7)
    repairer: Any = rig.outages.repairers.child(WEB)
    assert repairer.sent == [Stop()] and WEB not in rig.hosted and not list(rig.removals.removers)
    (answer,) = rig.coordinator.sent
    assert (answer.token, answer.error) == (7, UnknownPartition.__name__)
    for step in ("repaired", "removed", "made again", "opens"):
        rig.take(step, 8)
    assert rig.hosted[WEB].topic_id == "id 2" and not rig.hosted[WEB].offline and not rig.hosted.opening


def test_an_order_waits_for_the_opener_that_tries_an_offline_partition_again() -> None:
    """`log repair` is what the doctor advises, and it is typed at any moment."""
    rig = Rig()
    for step in ("offline", "writer ends", "wait", "order", "does not open"):
        rig.take(step, 7)
    assert not rig.coordinator.sent and rig.outages.repairers.child(WEB) is not None
    for step in ("repaired", "opens"):
        rig.take(step, 0)
    (answer,) = rig.coordinator.sent
    assert answer.token == 7 and answer.error == "" and rig.hosted[WEB].offline == ""
