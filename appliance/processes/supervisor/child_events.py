"""Handles the messages of children (:mod:`appliance.processes.messages`), and their ends.

Orders of the coordinator to create and delete partitions are answered when all of an order are done.  They carry the id
of the topic, so that an order for an earlier topic does not change a later one of that name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, assert_never

from ...errors import OutOfResources, WriterGone
from ...names import TopicPartition
from .. import messages
from ..messages import NewPartition, OrderDone, PartitionOutcome, UnknownMessage
from .actions import REFUSALS, reason_of
from .children import ChildEnd, Children
from .compactions import Compactions
from .coordinator_child import CoordinatorChild
from .fork import Child
from .hosted import Hosted
from .inputs import Inputs
from .inspection import Inspection
from .opening import Opening
from .outages import Outages
from .removal import Removals
from .scrubber import Scrubbing
from .side_processes import SideProcesses
from .status_report import RefusalCounts
from .workers import Workers
from .writers import Writers

RECONNECT_MS: Final = 1_000
"""Delay before a message is sent again to a child that had no descriptor left."""
logger = logging.getLogger(__name__)


class ChildEvents:
    """Passes events on to the parts of the supervisor.

    ``on_change`` is called when ``status`` may have changed.
    """

    def __init__(
        self,
        hosted: Hosted,
        children: Children,
        workers: Workers,
        coordinator: CoordinatorChild,
        writers: Writers,
        opening: Opening,
        removals: Removals,
        outages: Outages,
        compactions: Compactions,
        inspection: Inspection,
        scrubbing: Scrubbing,
        sides: SideProcesses,
        inputs: Inputs,
        on_change: Callable[[], None],
        refusals: RefusalCounts,
    ) -> None:
        self._hosted, self._children = hosted, children
        self._workers, self._coordinator, self._writers = workers, coordinator, writers
        self._opening, self._removals, self._outages, self._sides = opening, removals, outages, sides
        self._inspection, self._scrubbing, self._inputs = inspection, scrubbing, inputs
        self._compactions = compactions
        self._orders = Orders(hosted, opening, writers, removals, outages, compactions, coordinator)
        self._on_change, self._refusals = on_change, refusals

    def handle(self, child: Child, what: messages.FromChild | ChildEnd) -> None:
        """Handle what :meth:`.children.Children.on_event` has yielded."""
        if isinstance(what, ChildEnd):
            self._on_end(child, what.status)
            return
        try:
            self._on_message(child, what)
        except UnknownMessage as bug:
            self._children.end_for_bug(child, bug)

    def _on_message(self, child: Child, message: messages.FromChild) -> None:
        if isinstance(message, messages.FromServer):
            self._on_serving_process(child, message)
        elif isinstance(message, messages.FromLog):
            self._on_log(child, message)
        elif isinstance(message, messages.FromInspector):
            self._on_finding(message)
        elif isinstance(message, messages.PartitionOrder):
            self._on_order(message)
        elif isinstance(message, messages.Unreceivable):
            self._send_again(child, message)
        else:
            assert_never(message)

    def _on_serving_process(self, child: Child, message: messages.FromServer) -> None:
        """Handle what a process that serves needs, counts or has found."""
        match message:
            case messages.WriterNeeded(partition):
                self._writers.on_need(partition)
                return
            case messages.RefusalsReport(counts):
                self._refusals.count_refused(counts)
            case messages.DamageSuspected(partition, start, stop):
                self._inspection.suspect(partition, start, stop)
                return
            case messages.InputStats():
                self._inputs.on_stats(child.key, message)
            case messages.Published():
                self._coordinator.on_published()
                self._workers.snapshot = ()
            case messages.ClientsCounted():
                self._workers.on_clients(child.key, message)
                return
            case messages.WorkerStats():
                self._workers.on_stats(child.key, message)
            case messages.LimitsReached(limits):
                self._workers.on_limits(child.key, limits)
            case messages.Shown(key, value):
                self._coordinator.shown[key] = value
            case messages.CannotStart(reason, todo):
                self._coordinator.on_fault(reason, todo)
            case messages.ZooKeeperState(connect, state):
                self._coordinator.zookeeper = {"connect": connect, "state": state}
            case _:
                assert_never(message)
        self._on_change()

    def _on_log(self, child: Child, message: messages.FromLog) -> None:
        """Handle a message of a process that has logs open."""
        match message:
            case messages.WriterEnded(partition, status):
                self._writers.on_status(partition, status)
                return
            case messages.Idle():
                self._writers.retire(child)
                return
            case messages.LogClosed():
                return
            case messages.Lacking(reason, limit):
                self._on_lacking(child, reason, limit)
                return
            case messages.PartitionsOpened(outcomes):
                self._on_opened(self._opening.on_opened(outcomes))
                return
            case messages.PartitionsRemoved(outcomes):
                self._on_removed(outcomes)
                return
            case messages.LogRepaired(partition, error, text, result):
                self._outages.on_repaired(partition, error, text, result)
                return
            case messages.WriterOpened():
                self._writers.on_opened(child)
                self._coordinator.send(messages.WriterStarted(child.key, child.pid))
            case messages.TransactionStep():
                self._coordinator.send(message)
                return
            case messages.SegmentCompacted():
                self._compactions.on_compacted(child, message)
                return
            case messages.SegmentSwapped():
                self._compactions.on_swapped(message)
                return
            case messages.LogCompacted():
                self._compactions.on_done(child, message)
            case messages.LogFull(reason):
                self._hosted.on_full(child.key, reason)
            case messages.Offline(reason):
                self._writers.on_offline(child, reason)
                self._outages.on_offline(child.key)
            case _:
                assert_never(message)
        self._on_change()

    def _on_lacking(self, child: Child, reason: str, limit: str) -> None:
        match child.role:
            case "writer":
                self._writers.on_lacking(child, reason, limit)
            case "opener":
                self._opening.on_lacking(limit)
            case _:
                raise UnknownMessage(f"a {child.role} lacks {limit}: it opens no log")

    def _on_finding(self, message: messages.FromInspector) -> None:
        """Handle a message of the inspector."""
        match message:
            case messages.Damaged(partition, topic_id, places):
                self._inspection.on_damaged(partition, topic_id, places)
                self._on_change()
            case messages.FilesGone(partition, topic_id, reason):
                self._outages.on_gone(partition, topic_id, reason)
                self._on_change()
            case messages.FilesBack(partition, topic_id):
                self._outages.on_back(partition, topic_id)
            case messages.FilesChanged(partition):
                self._inspection.on_files(partition)
            case messages.Judged(token, error, text, places):
                self._inspection.on_judged(token, error, text, places)
            case messages.Strays(names):
                self._inspection.strays = names
                self._on_change()
            case _:
                assert_never(message)

    def _on_order(self, message: messages.PartitionOrder) -> None:
        """Handle a message of the coordinator about partitions."""
        match message:
            case messages.CreatePartitions(token, rows):
                self._orders.create(token, rows)
            case messages.DeletePartitions(token, partitions, topic_id, trash):
                self._orders.delete(token, partitions, topic_id, trash)
            case messages.CleanUp():
                self._removals.clean()
            case messages.ChangeSettings(partitions, settings):
                for partition in partitions:
                    self._set(partition, settings)
            case messages.DeleteBefore(partition) | messages.Roll(partition) | messages.StoreProducers(partition):
                # Its writer is started for it; the coordinator repeats lost orders.
                self._writers.want(partition)
                self._writers.send(partition, message)
            case (
                messages.OpenTransaction(partition, token)
                | messages.WriteMarker(partition, token)
                | messages.AbortHanging(partition, token)
            ):
                error = self._writers.on_step(message)
                if error:
                    self._coordinator.send(messages.TransactionStep(partition, token, error))
            case messages.TransactionsSent(partition, writer):
                if partition in self._hosted and self._hosted[partition].writer == writer:
                    self._writers.send(partition, message)
            case messages.CompactLog():
                self._compactions.compact(message)
            case messages.RepairLog(token, partition, cut):
                self._outages.repair(token, partition, cut)
                self._on_change()
            case messages.LookAt(token, partition, start, stop):
                self._inspection.report(token, partition, start, stop)
            case _:
                assert_never(message)

    def _set(self, partition: TopicPartition, settings: dict[str, str]) -> None:
        if partition in self._hosted:
            self._hosted[partition].settings = settings
        self._writers.send(partition, messages.ChangeSettings([partition], settings))

    def _on_opened(self, outcomes: list[PartitionOutcome]) -> None:
        self._orders.on_done(outcomes)
        self._outages.on_opened(outcomes)
        for partition, *_ in outcomes:
            self._writers.on_partition_opened(partition)
        self._on_change()

    def _on_removed(self, outcomes: list[PartitionOutcome]) -> None:
        self._removals.on_removed(outcomes)
        self._orders.on_done(outcomes)
        self._on_change()

    def _send_again(self, child: Child, refused: messages.Unreceivable) -> None:
        """Send a message again after RECONNECT_MS, because the child had no descriptor or memory for it."""
        message = refused.message
        self._children.note_lack(child, refused.limit, type(message).__name__)
        match message:
            case messages.WriterChannel(partition):
                self._writers.make_room_for_channel()
                self._writers.connect(partition, child.key, RECONNECT_MS)
            case messages.CoordinatorStreamOpened():
                self._coordinator.connect(child.key, RECONNECT_MS)
            case messages.WorkerChannel(arena):
                index = self._workers.index_of(arena)
                if index is not None:
                    self._writers.connect(child.key, index, RECONNECT_MS)
            case messages.WorkerStreamOpened(index):
                self._coordinator.connect(index, RECONNECT_MS)
            case messages.PartitionTable(partition):
                self._opening.show_again(child, partition, RECONNECT_MS)
            case (
                messages.Handoff() | messages.GivenBack() | messages.ForkWriter()
            ):  # which do not come from or go to this process
                raise UnknownMessage(refused)
            case _:
                assert_never(message)

    def on_worker_started(self, index: int) -> None:
        self._writers.connect_worker(index)
        self._coordinator.connect(index)

    def _on_end(self, child: Child, status: int | None) -> None:
        """Tell the part that has forked a child of its end."""
        match child.role:
            case "network":
                self._workers.on_end(child)
            case "coordinator":
                self._coordinator.role.on_end(child)
            case "writer":
                self._hosted.on_full(child.key, "")
                self._writers.on_end(child)
            case "nursery":
                self._writers.on_nursery_end(child)
            case "opener":
                if outcomes := self._opening.on_opener_end(child):
                    self._on_opened(outcomes)
            case "remover":
                self._on_removed(self._removals.on_remover_end(child))
            case "repairer":
                self._outages.on_repairer_end(child)
                self._on_change()
            case "scrubber":
                self._scrubbing.role.on_end(child)
            case "inspector":
                self._inspection.on_end(child)
            case "compactor":
                self._compactions.on_end(child)
            case "cleaner":
                self._removals.on_cleaner_end(child, status)
            case "input":
                self._inputs.on_end(child)
            case "console" | "metrics" | "alerts":
                self._sides.on_end(child.role, child)
            case _:
                assert_never(child.role)


class Order:
    """One order; ``unfinished``: its partitions without an outcome."""

    def __init__(self, token: int, partitions: Iterable[TopicPartition]) -> None:
        self.token = token
        self.unfinished = set(partitions)
        self.outcomes: list[PartitionOutcome] = []

    def finish(self, partition: TopicPartition, error: str, message: str) -> None:
        self.unfinished.discard(partition)
        self.outcomes.append((partition, error, message))


class Orders:
    """Orders that have not been answered yet, by their tokens."""

    def __init__(
        self,
        hosted: Hosted,
        opening: Opening,
        writers: Writers,
        removals: Removals,
        outages: Outages,
        compactions: Compactions,
        coordinator: CoordinatorChild,
    ) -> None:
        self._hosted, self._opening, self._writers = hosted, opening, writers
        self._removals, self._outages, self._compactions = removals, outages, compactions
        self._coordinator = coordinator
        self._by_token: dict[int, Order] = {}

    def create(self, token: int, rows: list[NewPartition]) -> None:
        """Open partitions, each with the id and the settings of its topic, and make those that are new."""
        order = self._by_token[token] = Order(token, [partition for partition, *_ in rows])
        for partition, topic_id, settings, new in rows:
            row = self._hosted.get(partition)
            if partition in self._removals or (row is not None and row.topic_id != topic_id):
                text = "an earlier topic of this name is still being removed: try again"
                order.finish(partition, WriterGone.__name__, text)
            elif row is None:
                try:
                    self._opening.add_partition(partition, topic_id, settings, new)
                except REFUSALS as error:
                    logger.warning("refused: making %s-%d: %s", *partition, reason_of(error))
                    order.finish(partition, OutOfResources.__name__, reason_of(error))
            elif partition not in self._hosted.opening:
                order.finish(partition, "", "")
        self._answer_if_done(order)

    def delete(self, token: int, partitions: list[TopicPartition], topic_id: str, trash: bool) -> None:
        """Close partitions and free their names, each if it belongs to the topic with this id.

        ``trash``: keep their files.
        """
        order = self._by_token[token] = Order(token, partitions)
        for partition in partitions:
            if self._id_of(partition) not in ("", topic_id):  # a later topic has the name by now
                order.finish(partition, "", "")
                continue
            self._opening.drop(partition)
            self._compactions.drop(partition)
            self._writers.drop(partition)
            self._outages.drop(partition)
            # Without a table too: files may be left of a removal that an earlier instance did not finish.
            self._removals.remove_partition(partition, topic_id, trash)
        self._answer_if_done(order)

    def _id_of(self, partition: TopicPartition) -> str:
        """The id of the topic that has this name, "" when none has."""
        row = self._hosted.get(partition)
        return self._removals.id_of(partition) or (row.topic_id if row is not None else "")

    def on_done(self, outcomes: Iterable[PartitionOutcome]) -> None:
        """Take the outcomes of partitions, and answer the orders that are complete."""
        for partition, error, reason in outcomes:
            for order in list(self._by_token.values()):
                if partition in order.unfinished:
                    order.finish(partition, error, reason)
                    self._answer_if_done(order)

    def _answer_if_done(self, order: Order) -> None:
        if not order.unfinished:
            del self._by_token[order.token]
            self._coordinator.send(OrderDone(order.token, order.outcomes))
