"""Carries out orders of the coordinator: creates and deletes partitions, and answers when all of an order are done.

An order carries the id of the topic, so that an order for an earlier topic does not change a later one of that name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ...errors import OutOfResources, WriterGone
from ...names import TopicPartition
from ..messages import NewPartition, OrderDone, Outcome
from .actions import REFUSALS, reason_of
from .coordinator_child import CoordinatorChild
from .hosted import Hosted
from .opening import Opening
from .removal import Removals
from .writers import Writers

logger = logging.getLogger(__name__)


class Order:
    """One order; ``left`` are the partitions that are not done yet."""

    def __init__(self, token: int, left: Iterable[TopicPartition]) -> None:
        self.token = token
        self.left = set(left)
        self.outcomes: list[Outcome] = []

    def finish(self, partition: TopicPartition, error: str, message: str) -> None:
        self.left.discard(partition)
        self.outcomes.append((partition, error, message))


class Orders:
    """Orders that have not been answered yet, by their tokens."""

    def __init__(
        self, hosted: Hosted, opening: Opening, writers: Writers, removals: Removals, coordinator: CoordinatorChild
    ) -> None:
        self._hosted, self._opening, self._writers = hosted, opening, writers
        self._removals, self._coordinator = removals, coordinator
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
                    self._opening.add(partition, topic_id, settings, new)
                except REFUSALS as error:
                    logger.warning("refused: making %s-%d: %s", *partition, reason_of(error))
                    order.finish(partition, OutOfResources.__name__, reason_of(error))
            elif partition not in self._hosted.opening:
                order.finish(partition, "", "")
        self._answer_if_done(order)

    def delete(self, token: int, partitions: list[TopicPartition], topic_id: str) -> None:
        """Close partitions and free their names, each if it belongs to the topic with this id."""
        order = self._by_token[token] = Order(token, partitions)
        for partition in partitions:
            if self._id_of(partition) not in ("", topic_id):  # a later topic has the name by now
                order.finish(partition, "", "")
                continue
            self._opening.drop(partition)
            self._writers.drop(partition)
            # Without a table too: files may be left of a removal that an earlier instance did not finish.
            self._removals.add(partition, topic_id)
        self._answer_if_done(order)

    def _id_of(self, partition: TopicPartition) -> str:
        """The id of the topic that has this name, "" when none has."""
        row = self._hosted.get(partition)
        return self._removals.id_of(partition) or (row.topic_id if row is not None else "")

    def on_done(self, outcomes: Iterable[Outcome]) -> None:
        """Take the outcomes of partitions, and answer the orders that are complete."""
        for partition, error, reason in outcomes:
            for order in list(self._by_token.values()):
                if partition in order.left:
                    order.finish(partition, error, reason)
                    self._answer_if_done(order)

    def _answer_if_done(self, order: Order) -> None:
        if not order.left:
            del self._by_token[order.token]
            self._coordinator.send(OrderDone(order.token, order.outcomes))
