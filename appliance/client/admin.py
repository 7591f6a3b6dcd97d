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

from ..names import OFFSET_MAX, TopicPartition
from ..security.scram import check_password, encode_verifiers
from ..wire.requests import EARLIEST
from . import arguments
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

    def abort(self) -> None:
        """Have every present and later request fail with BrokerAway at once.  Any thread may call it."""
        self._cluster.abort()

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
        created: dict[str, Any] = self._ask(
            "create_topic", name=name, settings=arguments.mapping("settings", settings), **count
        )
        return created

    def ensure_topic(self, name: str) -> dict[str, Any]:
        """The topic; created with the defaults if it does not exist and the appliance creates topics automatically."""
        topic: dict[str, Any] = self._ask("ensure_topic", name=name)
        return topic

    def alter_topic(
        self, name: str, settings: Mapping[str, str | int | None] | None = None, partitions: int | None = None
    ) -> dict[str, Any]:
        """Change these settings (None: back to the default), raise the number of partitions."""
        altered: dict[str, Any] = self._ask(
            "alter_topic", name=name, settings=arguments.mapping("settings", settings), partitions=partitions
        )
        return altered

    def delete_topic(self, name: str) -> int:
        """Delete a topic.  Returns for how many ms it can be brought back; 0: not at all."""
        kept_ms: int = self._ask("delete_topic", name=name)["trash_ms"]
        return kept_ms

    def trash(self) -> list[dict[str, Any]]:
        """The deleted topics that can be brought back."""
        trashed: list[dict[str, Any]] = self._ask("trash")
        return trashed

    def undelete_topic(self, name: str, new_name: str = "") -> dict[str, Any]:
        """Bring a deleted topic back: the last one of that name, or the one with that id.

        Raises:
            UnknownPartition: it is not in the trash.
            TopicExists: there is a topic of that name: give another ``new_name``.
        """
        brought_back: dict[str, Any] = self._ask("undelete_topic", name=name, new_name=new_name)
        return brought_back

    def restore_topic(
        self, name: str, topic_id: str, partitions: int, settings: Mapping[str, str | int] | None = None
    ) -> dict[str, Any]:
        """Bring back a topic that no catalog knows, from the files in the trash of the appliance that is asked."""
        kept = arguments.mapping("settings", settings)
        brought_back: dict[str, Any] = self._ask(
            "restore_topic", name=name, id=topic_id, partitions=partitions, settings=kept
        )
        return brought_back

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the messages of a partition before this offset.  When it returns, nobody reads them any more."""
        position = {"name": topic, "partition": arguments.partition_number(partition)}
        position["offset"] = arguments.whole("before", before, EARLIEST, OFFSET_MAX)
        self._cluster.refresh([arguments.topic_name(topic)])
        self._cluster.admin("delete_records", position, broker_id=self._cluster.leader(topic, partition))

    def topics(self, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """These topics, or all, with their settings and partitions."""
        topics: list[dict[str, Any]] = self._ask(
            "topics", names=None if names is None else list(arguments.several("names", names))
        )
        return topics

    def repair_partition(self, topic: str, partition: int, *, cut: bool = False) -> dict[str, Any]:
        """Repair the damaged log of a partition of this appliance while the others serve: see ``appliance log repair``.

        Takes as long as reading the log takes, so ``request_timeout_ms`` should be long.

        Raises:
            InvalidRequest: nothing is damaged.
        """
        repairs: dict[str, Any] = self._ask("repair", name=topic, partition=partition, cut=cut)
        return repairs

    def report_damage(self, topic: str, partition: int, start: int, stop: int) -> list[dict[str, Any]]:
        """Report that the messages from offset ``start`` to ``stop`` could not be read; returns all known damage.

        The appliance that has the partition reads them itself, and believes nobody.  See ``appliance status``.
        """
        name, number = arguments.part((topic, partition))
        return self._cluster.report_damage(name, number, start, stop)

    # ---- the appliance

    def status(self) -> dict[str, Any]:
        """What ``appliance status --json`` prints."""
        status: dict[str, Any] = self._ask("status")
        return status

    def clients(self) -> dict[str, Any]:
        """What ``appliance clients --json`` prints: see :mod:`appliance.connected_clients`."""
        clients: dict[str, Any] = self._ask("clients")
        return clients

    def accept_clock(self) -> int:
        """Believe the clock after a jump.  Returns by how many ms it had jumped; 0: not at all."""
        jump_ms: int = self._ask("accept_clock")["jump_ms"]
        return jump_ms

    def init_producer(self) -> dict[str, int]:
        """A new, unique producer id."""
        producer: dict[str, int] = self._ask("init_producer")
        return producer

    # ---- users, access rules

    def users(self) -> list[dict[str, Any]]:
        """The users that can log in, with their mechanisms, their roles, and what else is decided of them."""
        users: list[dict[str, Any]] = self._ask("users")
        return users

    def put_user(self, name: str, password: str, *, new: bool = True) -> None:
        """Add a user, or with ``new=False`` change the password of one.  The password stays here: verifiers are sent.

        Raises:
            UserExists, UnknownUser: see ``new``.
        """
        checked = arguments.text("password", password)
        check_password(checked)
        self._ask("put_user", name=arguments.text("name", name), verifiers=encode_verifiers(checked.encode()), new=new)

    def alter_user(
        self,
        name: str,
        *,
        locked: bool | None = None,
        expires_ms: int | None = None,
        kick: bool = False,
        without_password: bool = False,
    ) -> None:
        """Lock a user or unlock one, let one expire, and end all connections of one; None leaves it as it is.

        Args:
            name: the user; of a certificate its subject, of a token what its claim says.
            locked: whether logins are refused; locking ends all connections, too.
            expires_ms: when the user expires, since 1970; 0: never.
            kick: end all connections; the client may connect again.
            without_password: also a user without a password here.

        Raises:
            UnknownUser: see ``without_password``.
        """
        self._ask(
            "alter_user",
            name=arguments.text("name", name),
            **{"locked": locked, "expires_ms": expires_ms, "kick": kick, "without_password": without_password},
        )

    def delete_user(self, name: str) -> None:
        """Delete a user, whose connections end; its access rules and roles, a lock and a time to expire stay."""
        self._ask("delete_user", name=name)

    def acls(self, selected: Mapping[str, str | None] | None = None) -> list[dict[str, Any]]:
        """The access rules that a filter selects, or all: see FILTER and ACL in ``wire/native_admin.py``."""
        rules: list[dict[str, Any]] = self._ask("acls", **_words(selected))
        return rules

    def add_acls(self, rules: Iterable[Mapping[str, str]]) -> None:
        """Add access rules.  What is left out of one is its usual value: any host, allow, this very name."""
        self._ask("add_acls", acls=[arguments.mapping("rule", rule) for rule in arguments.several("rules", rules)])

    def delete_acls(self, selected: Mapping[str, str | None], *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Delete the access rules that a filter selects.  Returns them; with ``dry_run`` they stay."""
        deleted: list[dict[str, Any]] = self._ask("delete_acls", **_words(selected), dry_run=dry_run)
        return deleted

    # ---- roles

    def roles(self) -> list[dict[str, Any]]:
        """The roles, each with its users and access rules."""
        roles: list[dict[str, Any]] = self._ask("roles")
        return roles

    def create_role(self, name: str) -> None:
        """Make a role without users.  Its rules are those for the principal ``Role:NAME``: see :meth:`add_acls`."""
        self._ask("create_role", name=arguments.text("name", name))

    def alter_role(
        self, name: str, *, grant: Iterable[str] = (), revoke: Iterable[str] = (), without_password: bool = False
    ) -> None:
        """Give a role to users, and take it from others.

        Args:
            without_password: also give it to users without a password here: the subject of a certificate, or the
                claim of a token.

        Raises:
            UnknownUser: see ``without_password``; or a user did not have the role.
        """
        users = {"grant": arguments.several("grant", grant), "revoke": arguments.several("revoke", revoke)}
        self._ask("alter_role", name=name, **users, without_password=without_password)

    def delete_role(self, name: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Delete a role with its rules.  Returns its ``users`` and ``rules``; with ``dry_run`` all stays."""
        had: dict[str, Any] = self._ask("delete_role", name=name, dry_run=dry_run)
        return had

    # ---- quotas

    def quotas(self) -> list[dict[str, Any]]:
        """The limits of users and client ids: see ``wire/native_admin.py``."""
        quotas: list[dict[str, Any]] = self._ask("quotas")
        return quotas

    def put_quota(
        self, limits: Mapping[str, float | None], *, user: str | None = None, client_id: str | None = None
    ) -> None:
        """Set limits per second of a user, a client id or both; None removes one.  "": who has no quota of its own.

        Raises:
            InvalidRequest: no such limit, or nobody is named.
        """
        self._ask("put_quota", user=user, client_id=client_id, limits=arguments.mapping("limits", limits))

    # ---- groups

    def groups(self) -> list[dict[str, Any]]:
        """All groups of both listeners: group, protocol, state, number of members."""
        groups: list[dict[str, Any]] = self._ask("groups")
        return groups

    def group_names(self) -> list[str]:
        """The names of all groups: much less work than :meth:`groups`."""
        names: list[str] = self._ask("group_names")
        return names

    def group(self, group: str) -> dict[str, Any]:
        """Members, offsets, and lag in messages, bytes and seconds.  Raises UnknownGroup if there is no such group."""
        described: dict[str, Any] = self._ask("group", group=arguments.group_name(group))
        return described

    def transactions(self) -> list[dict[str, Any]]:
        """All transactional ids, with the state of each: see ``wire/native_admin.py``."""
        transactions: list[dict[str, Any]] = self._ask("transactions")
        return transactions

    def transaction(self, transactional_id: str) -> dict[str, Any]:
        """One transactional id, with the partitions and offsets of its transaction.

        Raises:
            UnknownTransactionalId: there is none.
        """
        described: dict[str, Any] = self._ask("transaction", id=transactional_id)
        return described

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort an open transaction and fence its producer, as when its time is up.

        Raises:
            UnknownTransactionalId: there is none.
            InvalidTransactionState: it is not open, or ends already.
        """
        self._ask("abort_transaction", id=transactional_id)

    def hanging_transactions(self, topic: str, partition: int) -> list[dict[str, Any]]:
        """The transactions that are open in a partition's log and that no coordinator knows of: nobody will end them.

        Each has ``producer_id`` and ``epoch``, the offset ``first`` from which it is open, and ``last_ms``, the largest
        timestamp of its last batch, in ms since 1970.

        Raises:
            UnknownPartition: there is none.
            ZooKeeperAway: it is not known now which transactions are open; try again.
        """
        hanging: list[dict[str, Any]] = self._ask("hanging_transactions", name=topic, partition=partition)
        return hanging

    def abort_hanging(self, topic: str, partition: int) -> None:
        """End the transactions that are open in a partition's log and that no coordinator knows of.

        Raises:
            UnknownPartition: there is none.
            ZooKeeperAway: it is not known now which transactions are open; try again.
        """
        self._ask("abort_hanging", name=topic, partition=partition)

    def alter_group(self, group: str, settings: Mapping[str, str | int | None]) -> dict[str, Any]:
        """Change settings of a group, there or not (None: back to the appliance's value): group, settings, sources."""
        altered: dict[str, Any] = self._ask(
            "alter_group", group=arguments.group_name(group), settings=arguments.mapping("settings", settings)
        )
        return altered

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """The committed offset of each partition."""
        return {
            (topic, partition): offset
            for topic, partition, offset in self._ask("offsets", group=arguments.group_name(group))
        }

    def offsets_at(self, timestamp: int, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The offsets of these partitions for EARLIEST, LATEST or a time in ms since 1970."""
        arguments.whole("timestamp", timestamp, EARLIEST, OFFSET_MAX)
        asked = arguments.parts(partitions)
        self._cluster.refresh({topic for topic, _ in asked})
        return self._cluster.offsets(dict.fromkeys(asked, timestamp))

    def commit(
        self, group: str, offsets: Mapping[tuple[str, int], int] | Mapping[TopicPartition, int], note: str = ""
    ) -> None:
        """Set the committed offsets of a group.  Running members continue where they are until they are restarted.

        ``note``: what is kept with each of them, as Kafka's metadata, of at most 4096 bytes.
        """
        rows = [[topic, partition, offset] for (topic, partition), offset in arguments.offsets(offsets).items()]
        text = arguments.text("note", note)
        self._ask("commit", group=arguments.group_name(group), offsets=rows, **({"note": text} if text else {}))

    def delete_offsets(self, group: str, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Delete the group's offsets of these partitions; without partitions, the whole group."""
        chosen = {} if partitions is None else {"partitions": arguments.parts(partitions)}
        self._ask("delete_offsets", group=arguments.group_name(group), **chosen)

    def _ask(self, verb: str, **arguments: Any) -> Any:
        return self._cluster.admin(verb, arguments)


def _words(selected: Any) -> dict[str, Any]:
    """A filter of access rules.

    Raises:
        InvalidRequest: it is none.
    """
    words = arguments.mapping("selected", selected)
    return {arguments.text("selected", word): value for word, value in words.items()}
