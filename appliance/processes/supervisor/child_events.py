"""Handles the messages of children, and their ends.

Control messages (msgpack arrays; ``+fd`` travels with them)::

    to a worker        ["table", topic, partition, shm name]   ["drop", topic, partition]   ["stop"]
                       ["writer", topic, partition] +fd        ["retire", topic, partition]
                       ["coordinator"] +fd                     ["forget", topic, partition]
                       ["damaged", topic, partition, [[start, stop] ...]]          all offsets that are not served
                       ["log_level", level]
    from a worker      ["need", topic, partition]              ["stats", {name: number}]
                       ["limits", [[limit, value, in use] ...]]            all that are reached now
                       ["refusals", {reason: number}]    of clients since its last message; the coordinator, too
                       ["suspect", topic, partition, start, stop]   offsets that cannot be read; the scrubber, too
    from any child     ["refused", ...]   a message of ours for which the child had no descriptors
                       ["refused", "table", topic, partition, limit]      or which it could not map
    to a side process  ["reload", {...}]                       ["stop"]
    to a writer        ["worker", arena name] +fd              ["settings", {...}]
                       ["delete_before", offset]               ["retire"]         ["roll"]
                       ["reload", {...}]                       ["store_producers"]
    to the nursery     see :mod:`.nursery`; for a writer it sends ["forked", pid] or ["lacking", reason, limit]
    from a writer      ["forked", pid]  (:mod:`.children`)     ["opened"]  ["idle"]  ["closed"]
                       ["offline", reason]                     ["lacking", reason, limit]
                       ["full", reason]        of the disk; "" when it has room again
    from an opener     ["opened", [[topic, partition, error, message] ...]]       ["lacking", reason, limit]
    from the remover   ["removed", [[topic, partition, error, message] ...]]
    from the scrubber  ["mended", topic, partition]    index files: readers forget what they know of them
    to it              ["reload", {...}]        ["stop"]       ["soon", topic, partition]
    to the inspector   ["partition", [topic, partition, topic id, table, offline, away]]   known, or opened again
                       ["drop", topic, partition]              ["away", topic, partition]
                       ["report", token, topic, partition, start, stop]           ["stop"]
    from it            ["damaged", topic, partition, topic id, [[start, stop, file, position, reason] ...]]
                       ["gone", topic, partition, topic id, reason]   its files are not those that were opened
                       ["back", topic, partition, topic id]           those of an offline one have changed
                       ["files", topic, partition]                    some have changed    ["strays", [name ...]]
                       ["judged", token, error, message, [[start, stop, file, position, reason] ...]]
    from the repairer  ["repaired", topic, partition, error, message, {what was done}]
    to the coordinator ["table" | "drop" | "forget", ...]         ["worker", index] +fd
                       ["listeners", {...}]  ["zookeeper", connect]
                       ["done", token, [[topic, partition, error, message] ...]]
                       ["repaired", token, error, message, {what was done}]
                       ["judged", token, error, message, [[start, stop, file, position, reason] ...]]
                       ["reload", {...}]        ["stop"]
    from it            ["create", token, [[topic, partition, topic id, settings, new] ...]]
                       ["delete", token, [[topic, partition, topic id] ...]]
                       ["settings", [[topic, partition] ...], {...}]
                       ["delete_before", topic, partition, offset]        ["zookeeper", {...}]
                       ["published"]           a worker has its first snapshot
                       ["disk", [size, used] | nil]    less than disk.free_bytes_warn is free, or enough again
                       ["roll", topic, partition]             ["repair", token, topic, partition, cut]
                       ["report", token, topic, partition, start, stop]
                       ["store_producers", topic, partition]

``error`` is the name of a class of ``errors``, "" after success.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...machine_limits import DESCRIPTORS
from ...names import TopicPartition
from .children import Children
from .coordinator_child import CoordinatorChild
from .fork import Child
from .hosted import Hosted
from .inspection import Inspection
from .opening import Opening, Outcome
from .orders import Orders
from .outages import Outages
from .removal import Removals
from .scrubbing import Scrubbing
from .side_processes import SideProcesses
from .workers import Workers
from .writers import Writers

RECONNECT_MS: Final = 1_000
"""Delay before a message is sent again to a child that had no descriptor left."""


class ChildEvents:
    """Passes events on to the parts of the supervisor.

    ``on_change`` is called when ``status`` may have changed, ``on_refusals`` with clients' refusals by reason.
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
        inspection: Inspection,
        scrubbing: Scrubbing,
        sides: SideProcesses,
        on_change: Callable[[], None],
        on_refusals: Callable[[dict[str, int]], None],
    ) -> None:
        self._hosted, self._children = hosted, children
        self._workers, self._coordinator, self._writers = workers, coordinator, writers
        self._opening, self._removals, self._outages, self._sides = opening, removals, outages, sides
        self._inspection, self._scrubbing = inspection, scrubbing
        self._orders = Orders(hosted, opening, writers, removals, coordinator)
        self._on_change, self._on_refusals = on_change, on_refusals

    def on_message(self, child: Child, message: list[Any]) -> None:
        match message:
            case ["need", topic, number]:
                self._writers.on_need(TopicPartition(topic, number))
            case ["stats", stats]:
                self._workers.on_stats(child.key, stats)
                self._on_change()
            case ["refusals", counts]:
                self._on_refusals(counts)
            case ["idle"]:
                self._writers.retire(child)
            case ["opened"]:
                self._writers.on_opened(child)
                self._on_change()
            case ["lacking", reason, limit]:
                if child.role == "writer":
                    self._writers.on_lacking(child, reason, limit)
                else:
                    self._opening.on_lacking(limit)
            case ["limits", rows]:
                self._workers.on_limits(child.key, rows)
                self._on_change()
            case ["full", reason]:
                self._hosted.on_full(child.key, reason)
                self._on_change()
            case ["offline", reason]:
                self._writers.on_offline(child, reason)
                self._outages.on_offline(child.key)
                self._on_change()
            case ["opened", rows]:
                self._on_opened(self._opening.on_opened(_outcomes(rows)))
            case ["removed", rows]:
                self._on_removed(_outcomes(rows))
            case ["repaired", topic, number, error, message, result]:
                self._outages.on_repaired(TopicPartition(topic, number), error, message, result)
            case ["published"]:
                self._coordinator.published = True
                self._workers.snapshot = ()
            case ["shown", key, value]:
                self._coordinator.shown[key] = value
                self._on_change()
            case ["disk", seen]:
                self._coordinator.on_disk(seen)
                self._on_change()
            case ["suspect", topic, number, start, stop]:
                self._inspection.suspect(TopicPartition(topic, number), start, stop)
            case ["mended", topic, number]:
                self._inspection.on_files(TopicPartition(topic, number))
            case ["zookeeper", state]:
                self._coordinator.zookeeper = state
                self._on_change()
            case ["refused", *refused]:
                self._send_again(child, refused)
            case _:
                self._on_finding(message)

    def _on_finding(self, message: list[Any]) -> None:
        """Handle a message of the inspector."""
        match message:
            case ["damaged", topic, number, topic_id, ranges]:
                self._inspection.on_damaged(TopicPartition(topic, number), topic_id, ranges)
                self._on_change()
            case ["gone", topic, number, topic_id, reason]:
                self._outages.on_gone(TopicPartition(topic, number), topic_id, reason)
                self._on_change()
            case ["back", topic, number, topic_id]:
                self._outages.on_back(TopicPartition(topic, number), topic_id)
            case ["files", topic, number]:
                self._inspection.on_files(TopicPartition(topic, number))
            case ["judged", token, error, message, rows]:
                self._inspection.on_judged(token, error, message, rows)
            case ["strays", names]:
                self._inspection.strays = names
                self._on_change()
            case _:
                self._on_order(message)

    def _on_order(self, message: list[Any]) -> None:
        """Handle a message of the coordinator about partitions."""
        match message:
            case ["create", token, rows]:
                self._orders.create(token, [(TopicPartition(topic, number), *rest) for topic, number, *rest in rows])
            case ["delete", token, rows]:
                self._orders.delete(
                    token, {TopicPartition(topic, number): topic_id for topic, number, topic_id in rows}
                )
            case ["settings", rows, settings]:
                for topic, number in rows:
                    self._set(TopicPartition(topic, number), settings)
            case ["delete_before", topic, number, offset]:
                self._order_writer(TopicPartition(topic, number), ["delete_before", offset])
            case ["roll" | "store_producers" as order, topic, number]:
                self._order_writer(TopicPartition(topic, number), [order])
            case ["repair", token, topic, number, cut]:
                self._outages.repair(token, TopicPartition(topic, number), cut)
                self._on_change()
            case ["report", token, topic, number, start, stop]:
                self._inspection.report(token, TopicPartition(topic, number), start, stop)

    def _set(self, partition: TopicPartition, settings: dict[str, str]) -> None:
        if partition in self._hosted:
            self._hosted[partition].settings = settings
        self._writers.send(partition, ["settings", settings])

    def _order_writer(self, partition: TopicPartition, message: list[Any]) -> None:
        """Send an order to the partition's writer, after starting it; the coordinator repeats lost orders."""
        self._writers.want(partition)
        self._writers.send(partition, message)

    def _on_opened(self, outcomes: list[Outcome]) -> None:
        self._orders.on_done(outcomes)
        self._outages.on_opened(outcomes)
        for partition, *_ in outcomes:
            self._writers.on_partition_opened(partition)
        self._on_change()

    def _on_removed(self, outcomes: list[Outcome]) -> None:
        self._removals.on_removed(outcomes)
        self._orders.on_done(outcomes)
        self._on_change()

    def _send_again(self, child: Child, refused: list[Any]) -> None:
        """Send a message again after RECONNECT_MS, because the child had no descriptor or memory for it."""
        limit = refused.pop() if refused[0] == "table" else DESCRIPTORS
        self._children.note_lack(child, limit, refused)
        match child.role, refused:
            case "network", ["writer", topic, number]:
                self._writers.make_room_for_channel()
                self._writers.connect(TopicPartition(topic, number), child.key, RECONNECT_MS)
            case "network", ["coordinator"]:
                self._coordinator.connect(child.key, RECONNECT_MS)
            case "writer", ["worker", arena]:
                index = self._workers.index_of(arena)
                if index is not None:
                    self._writers.connect(child.key, index, RECONNECT_MS)
            case "coordinator", ["worker", index]:
                self._coordinator.connect(index, RECONNECT_MS)
            case "network" | "coordinator", ["table", topic, number]:
                self._opening.show_again(child.role, child.key, TopicPartition(topic, number), RECONNECT_MS)

    def on_worker_started(self, index: int) -> None:
        self._writers.connect_worker(index)
        self._coordinator.connect(index)

    def on_end(self, child: Child, status: int | None) -> None:
        match child.role:
            case "network":
                self._workers.on_end(child)
            case "coordinator":
                self._coordinator.on_end(child)
            case "writer":
                self._hosted.on_full(child.key, "")
                self._writers.on_end(child)
            case "nursery":
                self._writers.on_nursery_end(child)
            case "opener":
                if outcomes := self._opening.on_opener_end(child):
                    self._on_opened(outcomes)
            case "remover":
                self._on_removed(self._removals.on_remover_end())
            case "repairer":
                self._outages.on_repairer_end(child.key)
                self._on_change()
            case "scrubber":
                self._scrubbing.on_end(child)
            case "inspector":
                self._inspection.on_end(child)
            case "cleaner":
                self._removals.on_cleaner_end(status)
            case role if role in self._sides:
                self._sides.on_end(child)


def _outcomes(rows: list[list[Any]]) -> list[Outcome]:
    return [(TopicPartition(topic, number), error, message) for topic, number, error, message in rows]
