"""Keeps the last metadata of a cluster, and one connection for requests to any of its brokers.

Producer, consumer and admin use a :class:`Cluster`.  It has the bootstrap addresses, the last metadata, and one
blocking connection (the control connection) for metadata and admin requests.  It connects to the first appliance that
answers: each of them knows the whole cluster.  An address that fails is moved behind the others.

Locking: a lock is held during each request, so several threads may make requests.  ``snapshot`` is replaced as a whole
and never changed, so readers need no lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import (
    ApplianceError,
    BadValue,
    BrokerAway,
    ClientFault,
    NotLeader,
    RequestTimedOut,
    UnknownPartition,
    from_code,
)
from ..records.decode import decode_batch
from ..wire.native import ADMIN, FETCH, METADATA, OFFSETS, check_request
from ..wire.requests import EARLIEST, LATEST
from .arguments import check_client_name, check_whole, shown
from .broker_connection import Address, BrokerConnection, ConnectionReply, address_of, parse_bootstrap
from .client_security import ClientSecurity
from .lifetime import inherited, refuse_in_children

NO_BROKER = -1
RETRY_S = 0.1
LOOK_BYTES_MAX: Final = 16 * 1024 * 1024
"""A batch that unpacks to more is not looked into for the first message of a time; its own first one is the answer."""


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """One topic's metadata.  ``leaders[partition]`` is a broker id; :data:`NO_BROKER` while nobody leads it.

    ``id``: 32 digits, others after the topic was deleted and created again; "" if the appliance knows none.
    """

    leaders: tuple[int, ...]
    settings: Mapping[str, str]
    error: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The last metadata, merged with what was known before of other topics."""

    cluster_id: str = ""
    zookeeper: str = ""
    brokers: Mapping[int, Address] = field(default_factory=dict)
    topics: Mapping[str, TopicSnapshot] = field(default_factory=dict)


ABORT_S_MAX = 1.0
"""How long closing waits for a request that was aborted.  A thread that dies with the lock never gives it back."""


class Cluster:
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        security: ClientSecurity | None = None,
        *,
        client_name: str = "",
        connect_timeout_ms: int = 5_000,
        request_timeout_ms: int = 30_000,
        committed: bool = False,
    ) -> None:
        """``security``: by default that of the environment.  ``committed``: logs end at their last stable offsets."""
        check_client_name(client_name)
        check_whole(1, request_timeout_ms=request_timeout_ms)
        if security is not None and not isinstance(security, ClientSecurity):
            raise BadValue(f"security={shown(security)}: give a ClientSecurity")
        listeners = parse_bootstrap(bootstrap)
        self._addresses = [address_of(listener) for listener in listeners]
        security = security or ClientSecurity.from_environment()
        self._tls = security.context() if listeners[0].tls else None
        self._login = security.login() if listeners[0].sasl else None
        self.client_name = client_name or f"python-{os.getpid()}"
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._request_timeout_s = request_timeout_ms / 1000
        self._committed = committed
        self._lock = threading.Lock()
        self._control: BrokerConnection | None = None
        self._dialing: BrokerConnection | None = None
        self._aborted = False
        self.pid, self._inherited = os.getpid(), False
        self.snapshot = ClusterSnapshot()
        refuse_in_children(self)

    def close(self) -> None:
        self.abort()
        held = self._lock.acquire(timeout=ABORT_S_MAX)
        try:
            self._drop()
            if self._dialing is not None:  # its connect was interrupted
                self._dialing.close()
        finally:
            if held:
                self._lock.release()

    def abort(self) -> None:
        """Make every present and later request fail with BrokerAway at once.  Any thread may call it."""
        self._aborted = True
        if self._inherited:
            return  # its connections are those of the parent
        for connection in (self._control, self._dialing):
            if connection is not None:
                connection.shutdown()

    def disown(self) -> None:
        """In a forked child: refuse every request.  Another thread may have held the lock, so it is replaced."""
        self._inherited, self._lock = True, threading.Lock()

    # What is known

    def topic(self, name: str) -> TopicSnapshot:
        """The topic's metadata.  Raises UnknownPartition when the last metadata lack it: refresh first."""
        snapshot = self.snapshot.topics.get(name)
        if snapshot is None:
            raise UnknownPartition(f"no topic {name!r} in this cluster")
        if snapshot.error:
            raise from_code(snapshot.error, about=f"topic {name!r}")
        return snapshot

    def partition(self, topic: str, partition: int) -> TopicSnapshot:
        """The topic's metadata.  Raises UnknownPartition if it does not have this partition."""
        snapshot = self.topic(topic)
        if not 0 <= partition < len(snapshot.leaders):
            raise UnknownPartition(
                f"topic {topic!r} has the partitions 0 to {len(snapshot.leaders) - 1}, not {partition}"
            )
        return snapshot

    def leader(self, topic: str, partition: int) -> int:
        leaders = self.partition(topic, partition).leaders
        if leaders[partition] == NO_BROKER or leaders[partition] not in self.snapshot.brokers:
            raise NotLeader(f"no live appliance holds {topic}-{partition} at the moment")
        return leaders[partition]

    def address(self, broker_id: int) -> Address:
        return self.snapshot.brokers[broker_id]

    # Asking

    def refresh(self, topics: Iterable[str] | None) -> ClusterSnapshot:
        """Request the metadata of these topics (None: all) and merge them into ``snapshot``.

        Raises:
            BrokerAway, RequestTimedOut: no appliance answered.
        """
        reply = self._ask(METADATA, None if topics is None else sorted(topics))
        if reply.header[1]:
            raise from_code(reply.header[1], about="metadata")
        body: dict[str, Any] = reply.header[2]
        fresh = {row["name"]: _topic_snapshot(row) for row in body["topics"]}
        merged = dict(self.snapshot.topics) if topics is not None else {}
        brokers = {broker_id: (host, port) for broker_id, host, port in body["brokers"]}
        self.snapshot = ClusterSnapshot(str(body["cluster"]), body["zookeeper"], brokers, {**merged, **fresh})
        return self.snapshot

    def admin(
        self, verb: str, arguments: Mapping[str, Any], broker_id: int | None = None, timeout_ms: int | None = None
    ) -> Any:
        """Carry out one admin verb.  Raises the error of the reply.

        Args:
            timeout_ms: how long the answer may take; that of the client if not given.
        """
        from ..wire.native_admin import check_arguments  # most clients ask no verb, and its table takes time

        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        check_arguments(verb, arguments)
        reply = self._ask(ADMIN, verb, dict(arguments), broker_id=broker_id, timeout_s=timeout_s)
        _, error, message, result = reply.header
        if error:
            raise from_code(error, message, about="" if message else verb)
        return result

    def report_damage(
        self, topic: str, partition: int, start: int, stop: int, timeout_ms: int | None = None
    ) -> list[dict[str, Any]]:
        """See :meth:`.admin.Admin.report_damage`."""
        self.refresh([topic])
        arguments = {"name": topic, "partition": partition, "start": start, "stop": stop}
        leader = self.leader(topic, partition)
        damage: list[dict[str, Any]] = self.admin("report_damage", arguments, leader, timeout_ms)
        return damage

    def offsets(
        self, timestamps: Mapping[tuple[str, int], int], *, timeout_s: float | None = None
    ) -> dict[tuple[str, int], int]:
        """The offset of a time (EARLIEST, LATEST or ms since 1970) in each partition.

        A time after the last message means the end.  While a leader is away or changing, the request is repeated until
        ``timeout_s`` (by default the request timeout) is over.
        """
        offsets: dict[tuple[str, int], int] = {}
        deadline_s = time.monotonic() + (self._request_timeout_s if timeout_s is None else timeout_s)
        while True:
            unanswered = {part: timestamp for part, timestamp in timestamps.items() if part not in offsets}
            answered, failed = self.try_offsets(unanswered)
            offsets.update(answered)
            if not failed:
                return offsets
            for error in failed.values():
                if not error.retriable or time.monotonic() > deadline_s:
                    raise error
            time.sleep(RETRY_S)
            self.refresh({topic for topic, _ in failed})

    def try_offsets(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], ApplianceError]]:
        """One attempt of :meth:`offsets`: the offsets that were found, and the errors of the other partitions."""
        offsets: dict[tuple[str, int], int] = {}
        failed: dict[tuple[str, int], ApplianceError] = {}
        led: dict[int, dict[tuple[str, int], int]] = {}
        for part, when in timestamps.items():
            try:
                led.setdefault(self.leader(*part), {})[part] = when
            except ApplianceError as error:
                failed[part] = error
        for leader, parts in led.items():
            try:
                self._offsets_of(leader, parts, offsets, failed)
            except ApplianceError as error:
                failed |= {part: error for part in parts if part not in offsets and part not in failed}
        return offsets, failed

    def _offsets_of(
        self,
        leader: int,
        asked: Mapping[tuple[str, int], int],
        offsets: dict[tuple[str, int], int],
        failed: dict[tuple[str, int], ApplianceError],
    ) -> None:
        led = dict(asked)
        while led:
            asked_rows = [[*part, when, -1] for part, when in led.items()]
            rows = self._ask(OFFSETS, asked_rows, *((True,) if self._committed else ()), broker_id=leader)
            for part, (error, offset, _, _) in zip(list(led), rows.header[2], strict=True):
                if error:
                    failed[part] = from_code(error, about=f"{part[0]}-{part[1]}")
                    del led[part]
                elif offset >= 0:
                    when = led.pop(part)
                    offsets[part] = offset if when < 0 else self._first_since(leader, part, offset, when)
            # These partitions have no message of that time or later: request their ends.
            led = dict.fromkeys(led, LATEST)

    def messages_between(self, spans: Mapping[tuple[str, int], tuple[int, int]]) -> dict[tuple[str, int], int]:
        """How many messages are between two offsets of each partition.

        Raises:
            ApplianceError: that of the first partition which cannot be asked about now.
        """
        counts: dict[tuple[str, int], int] = {}
        led: dict[int, list[tuple[str, int]]] = {}
        for part in spans:
            led.setdefault(self.leader(*part), []).append(part)
        for leader, parts in led.items():
            asked_rows = [[*part, EARLIEST, offset] for part in parts for offset in spans[part]]
            answers = iter(self._ask(OFFSETS, asked_rows, broker_id=leader).header[2])
            for part, start, stop in zip(parts, answers, answers, strict=True):
                if error := start[0] or stop[0]:
                    raise from_code(error, about=f"{part[0]}-{part[1]}")
                counts[part] = stop[3] - start[3]
        return counts

    def _first_since(self, leader: int, part: tuple[str, int], offset: int, timestamp: int) -> int:
        """The offset of the first message of that time or later in the batch at ``offset``.

        The broker finds the batch only.
        """
        reply = self._ask(FETCH, 0, 1, 1, [[*part, offset, 1]], broker_id=leader)
        ((error, _, _, size),) = reply.header[2]
        if error or not size:
            return offset
        try:
            records = decode_batch(reply.payload, bytes_max=LOOK_BYTES_MAX)
        except ClientFault:  # the reader of the batch gets the error
            return offset
        return next((record.offset for record in records if record.timestamp >= timestamp), offset)

    def dial(self, address: Address) -> BrokerConnection:
        """Begin to connect.

        Raises:
            BrokerAway: connecting failed at once.
        """
        return BrokerConnection(address, client_name=self.client_name, tls=self._tls, login=self._login)

    def connect(self, address: Address) -> BrokerConnection:
        """Open a connection and wait for the reply to its hello."""
        self._check_open()
        connection = self._dialing = self.dial(address)
        try:
            connection.greet(self._connect_timeout_s)
        finally:
            self._dialing = None
            if not connection.greeted:
                connection.close()
        return connection

    def open(self, broker_id: int | None = None) -> BrokerConnection:
        """Open a connection for the caller's own use, to this broker or to any.

        Raises:
            BrokerAway, RequestTimedOut: it cannot be reached.
        """
        with self._lock:
            self._check_open()
            if broker_id is None:
                return self._connect_any()
            if broker_id not in self.snapshot.brokers:
                raise BrokerAway(f"broker {broker_id} is not known to the cluster")
            return self.connect(self.address(broker_id))

    def _ask(
        self, api: int, *arguments: Any, broker_id: int | None = None, timeout_s: float | None = None
    ) -> ConnectionReply:
        check_request(api, arguments)
        with self._lock:
            self._check_open()
            if broker_id is not None and (self._control is None or self._control.broker_id != broker_id):
                self._drop()
                self._control = self.connect(self.address(broker_id))
            if self._control is not None:
                try:
                    return self._call(api, arguments, timeout_s)
                except BrokerAway:
                    pass  # it was idle; the appliance may have restarted since.  Try again on a new connection.
            self._control = self._connect_any()
            return self._call(api, arguments, timeout_s)

    def _call(self, api: int, arguments: tuple[Any, ...], timeout_s: float | None) -> ConnectionReply:
        """Make one request over the control connection.  After any failure the connection is dropped."""
        self._check_open()
        control = self._control
        assert control is not None
        answered = False
        try:
            reply = control.call(api, *arguments, timeout_s=self._request_timeout_s if timeout_s is None else timeout_s)
            answered = True
            return reply
        finally:
            if not answered:
                self._drop()

    def _check_open(self) -> None:
        if self._inherited:
            raise inherited("client", self.pid)
        if self._aborted:
            raise BrokerAway("this client is closed")

    def _connect_any(self) -> BrokerConnection:
        learnt = [address for address in self.snapshot.brokers.values() if address not in self._addresses]
        failures: list[str] = []
        for address in [*self._addresses, *learnt]:
            try:
                return self.connect(address)
            except (BrokerAway, RequestTimedOut) as error:
                failures.append(str(error))
                if address in self._addresses:
                    self._addresses.remove(address)
                    self._addresses.append(address)
        raise BrokerAway("; ".join(failures) + " (is an appliance running there?)")

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None


def _topic_snapshot(row: Mapping[str, Any]) -> TopicSnapshot:
    partitions = sorted(tuple(pair) for pair in row["partitions"])
    leaders = [NO_BROKER] * (partitions[-1][0] + 1 if partitions else 0)
    for partition, leader in partitions:
        leaders[partition] = leader
    return TopicSnapshot(tuple(leaders), row.get("settings") or {}, row.get("error", 0), row.get("id", ""))
