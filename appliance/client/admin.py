"""Administrates a cluster over any of its appliances: one method for each admin verb.

Example::

    with Admin("127.0.0.1:9091") as admin:
        admin.create_topic("logs", partitions=4, settings={"retention.ms": "7d"})

Results are JSON-like (``wire/native_admin.py`` describes them with the verbs).  Errors are the classes of
``errors.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..names import TopicPartition
from .client_security import ClientSecurity
from .cluster_client import Cluster


class Admin:
    """See the module's docstring.  Thread-safe; not to be used across a fork."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_name: str = "",
        request_timeout_ms: int = 30_000,
        security: ClientSecurity | None = None,
    ) -> None:
        self._cluster = Cluster(bootstrap, security, client_name=client_name, request_timeout_ms=request_timeout_ms)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._cluster.close()

    # ---- topics

    def create_topic(
        self, name: str, partitions: int | None = None, settings: Mapping[str, str | int] | None = None
    ) -> dict[str, Any]:
        """Create a topic.  When it returns, the topic can be produced to.

        Args:
            partitions: how many; by default ``topics.partitions`` of the appliance.

        Raises:
            TopicExists, InvalidTopic, InvalidPartitions, InvalidSetting: see the message.
        """
        count = {} if partitions is None else {"partitions": partitions}
        found: dict[str, Any] = self._ask("create_topic", name=name, settings=dict(settings or {}), **count)
        return found

    def ensure_topic(self, name: str) -> dict[str, Any]:
        """The topic; created with the defaults if it does not exist and the appliance creates topics automatically."""
        found: dict[str, Any] = self._ask("ensure_topic", name=name)
        return found

    def alter_topic(
        self, name: str, settings: Mapping[str, str | int | None] | None = None, partitions: int | None = None
    ) -> dict[str, Any]:
        """Change these settings (None: back to the default), raise the number of partitions."""
        found: dict[str, Any] = self._ask(
            "alter_topic", name=name, settings=dict(settings or {}), partitions=partitions
        )
        return found

    def delete_topic(self, name: str) -> int:
        """Delete a topic.  Returns for how many ms it can be brought back; 0: not at all."""
        kept_ms: int = self._ask("delete_topic", name=name)["trash_ms"]
        return kept_ms

    def trash(self) -> list[dict[str, Any]]:
        """The deleted topics that can be brought back."""
        found: list[dict[str, Any]] = self._ask("trash")
        return found

    def undelete_topic(self, name: str, new_name: str = "") -> dict[str, Any]:
        """Bring a deleted topic back: the last one of that name, or the one with that id.

        Raises:
            UnknownPartition: it is not in the trash.
            TopicExists: there is a topic of that name: give another ``new_name``.
        """
        found: dict[str, Any] = self._ask("undelete_topic", name=name, new_name=new_name)
        return found

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the messages of a partition before this offset.  When it returns, nobody reads them any more."""
        self._cluster.refresh([topic])
        arguments = {"name": topic, "partition": partition, "offset": before}
        self._cluster.admin("delete_records", arguments, broker_id=self._cluster.leader(topic, partition))

    def topics(self, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """These topics, or all, with their settings and partitions."""
        found: list[dict[str, Any]] = self._ask("topics", names=None if names is None else list(names))
        return found

    def repair_partition(self, topic: str, partition: int, *, cut: bool = False) -> dict[str, Any]:
        """Repair the damaged log of a partition of this appliance while the others serve: see ``appliance log repair``.

        Takes as long as reading the log takes, so ``request_timeout_ms`` should be long.

        Raises:
            InvalidRequest: nothing is damaged.
        """
        found: dict[str, Any] = self._ask("repair", name=topic, partition=partition, cut=cut)
        return found

    def report_damage(self, topic: str, partition: int, start: int, stop: int) -> list[dict[str, Any]]:
        """Report that the messages from offset ``start`` to ``stop`` could not be read; returns all known damage.

        The appliance that has the partition reads them itself, and believes nobody.  See ``appliance status``.
        """
        return self._cluster.report_damage(topic, partition, start, stop)

    # ---- the appliance

    def status(self) -> dict[str, Any]:
        """What ``appliance status --json`` prints."""
        found: dict[str, Any] = self._ask("status")
        return found

    def clients(self) -> dict[str, Any]:
        """What ``appliance clients --json`` prints: see :mod:`appliance.connected_clients`."""
        found: dict[str, Any] = self._ask("clients")
        return found

    def accept_clock(self) -> int:
        """Believe the clock after a jump.  Returns by how many ms it had jumped; 0: not at all."""
        found: int = self._ask("accept_clock")["jump_ms"]
        return found

    def init_producer(self) -> dict[str, int]:
        """A new, unique producer id."""
        found: dict[str, int] = self._ask("init_producer")
        return found

    # ---- groups

    def groups(self) -> list[dict[str, Any]]:
        """All groups of both listeners: group, protocol, state, number of members."""
        found: list[dict[str, Any]] = self._ask("groups")
        return found

    def group_names(self) -> list[str]:
        """The names of all groups: much less work than :meth:`groups`."""
        found: list[str] = self._ask("group_names")
        return found

    def group(self, group: str) -> dict[str, Any]:
        """Members, offsets, and lag in messages, bytes and seconds.  Raises UnknownGroup if there is no such group."""
        found: dict[str, Any] = self._ask("group", group=group)
        return found

    def transactions(self) -> list[dict[str, Any]]:
        """All transactional ids, with the state of each: see ``wire/native_admin.py``."""
        found: list[dict[str, Any]] = self._ask("transactions")
        return found

    def transaction(self, transactional_id: str) -> dict[str, Any]:
        """One transactional id, with the partitions and offsets of its transaction.

        Raises:
            UnknownTransactionalId: there is none.
        """
        found: dict[str, Any] = self._ask("transaction", id=transactional_id)
        return found

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort an open transaction and fence its producer, as when its time is up.

        Raises:
            UnknownTransactionalId: there is none.
            InvalidTransactionState: it is not open, or ends already.
        """
        self._ask("abort_transaction", id=transactional_id)

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """The committed offset of each partition."""
        return {(topic, partition): offset for topic, partition, offset in self._ask("offsets", group=group)}

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int] | Mapping[TopicPartition, int]) -> None:
        """Set the committed offsets of a group.  Running members continue where they are until they are restarted."""
        rows = [[topic, partition, offset] for (topic, partition), offset in offsets.items()]
        self._ask("commit", group=group, offsets=rows)

    def delete_offsets(self, group: str, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Delete the group's offsets of these partitions; without partitions, the whole group."""
        chosen = {} if partitions is None else {"partitions": [list(part) for part in partitions]}
        self._ask("delete_offsets", group=group, **chosen)

    def _ask(self, verb: str, **arguments: Any) -> Any:
        return self._cluster.admin(verb, arguments)
