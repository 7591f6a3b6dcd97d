"""The paper's consumer: the members of a group divide the partitions among themselves and commit their offsets.

Example::

    with GroupConsumer("127.0.0.1:9091", "reports") as consumer:
        streams = consumer.create_message_streams({"logs": 2})  # {"logs": [stream, stream]}
        for message in streams["logs"][0]:  # one thread per stream; never ends
            ...

Every message is delivered to one member of the group, at least once, and in order within its partition.  The members
agree through ZooKeeper, without a master: see ``zookeeper/rebalance.py``.  Offsets are committed to ZooKeeper every
``auto_commit_ms`` and whenever partitions change owners, or by :meth:`commit` alone (``auto_commit=False``).  A
partition without a committed offset begins at ``start``: "earliest", "latest" or a time in ms.

An automatic commit covers messages whose reader has requested the next one.  :meth:`commit` and :meth:`close` cover all
messages that were handed out; leaving the ``with`` block through an exception does not.  When a partition is revoked
while a reader works on one of its messages, the reader gets ``handover_ms_max`` to finish.  After that the next owner
gets the message again.

A group consumer has two threads: one keeps the membership (ZooKeeper's session, rebalances, commits), one fetches from
all brokers.  The threads that read the streams decode.  When the session's lease is over nothing more is handed out:
another member may own the partition by then.  If one of the two threads ends by an unexpected error, the streams,
:meth:`commit` and :meth:`close` raise :class:`~appliance.errors.ClientBroken`.  If the membership's thread ends, the
session ends too, and the other members take over.

Not fork-safe: make consumers after forking.

Errors: ZooKeeperAway from :meth:`commit`, retriable; InvalidRequest where the group belongs to the Kafka listener;
CorruptBatch from a stream (``on_corrupt="skip"`` skips damaged batches and counts them).
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ..errors import ApplianceError, BadValue, ClientBroken, InvalidRequest, NotLeader, OutOfResources, ZooKeeperAway
from ..names import OFFSET_MAX, TopicPartition
from ..records.decode import BYTES_MAX
from ..wire.requests import EARLIEST, LATEST
from ..zookeeper import patterns
from ..zookeeper.paths import STREAMS_MAX, Subscription
from .client_security import ClientSecurity
from .cluster_client import Cluster
from .consumer import MEBIBYTE
from .damage_reports import DamageReports
from .decoder import Decoder
from .fetcher import Fetcher, FetchOptions, reads_committed
from .group_fetching import GroupFetching, NewlyOwned
from .streams import MessageStream, OwnedPartitions
from .threads import Threads
from .troubles import Trouble

if TYPE_CHECKING:
    from ..zookeeper.rebalance import Gained, GroupMember
    from ..zookeeper.session import Session

logger = logging.getLogger(__name__)

MEMBER_WAIT_MS: Final = 200
JOIN_S: Final = 2.0
"""How long joining may take before it is reported as a trouble."""
COMMIT_TIMEOUT_MS: Final = 2_000
CLOSE_S_MAX: Final = 10.0


class Whitelist(NamedTuple):
    """Every topic whose whole name matches; commas separate alternatives, as in the paper's implementation."""

    pattern: str


class Blacklist(NamedTuple):
    """Every topic whose whole name does not match."""

    pattern: str


class GroupConsumer:
    """See the module's docstring."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        group: str,
        *,
        start: str | int = "earliest",
        auto_commit: bool = True,
        auto_commit_ms: int = 5_000,
        zookeeper: str | None = None,
        session_timeout_ms: int = 6_000,
        handover_ms_max: int = 1_000,
        client_name: str = "",
        fetch_bytes_max: int = 4 * MEBIBYTE,
        partition_bytes_max: int = MEBIBYTE,
        buffer_bytes_max: int = 2 * MEBIBYTE,
        total_bytes_max: int = 64 * MEBIBYTE,
        wait_ms_max: int = 500,
        request_timeout_ms: int = 30_000,
        isolation: str = "read_uncommitted",
        on_corrupt: str = "raise",
        check_crc: bool = True,
        unpacked_bytes_max: int = BYTES_MAX,
        security: ClientSecurity | None = None,
        clock_ms: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000,
    ) -> None:
        self._start = _start_timestamp(start)
        self.group = group
        self.consumer_id = f"{group}_{socket.gethostname()}-{time.time_ns() // 1_000_000}-{secrets.token_hex(4)}"
        self._auto_commit_ms = auto_commit_ms if auto_commit else None
        self._session_timeout_ms = session_timeout_ms
        self._handover_s_max = handover_ms_max / 1000
        self._clock_ms = clock_ms
        committed = reads_committed(isolation)
        self._cluster = Cluster(
            bootstrap, security, client_name=client_name, request_timeout_ms=request_timeout_ms, committed=committed
        )
        self._zookeeper = zookeeper
        options = FetchOptions(
            bytes_max=fetch_bytes_max,
            partition_bytes_max=partition_bytes_max,
            buffer_bytes_max=buffer_bytes_max,
            total_bytes_max=total_bytes_max,
            wait_ms_max=wait_ms_max,
            bytes_min=1,
            request_timeout_ms=request_timeout_ms,
            reset="latest" if self._start == LATEST else "earliest",
            committed=committed,
            skips_damage=on_corrupt == "skip",
        )
        reports = DamageReports(self._cluster, time.monotonic)
        self._decoder = Decoder(reports, unpacked_bytes_max, check_crc=check_crc, on_corrupt=on_corrupt)
        self._fetcher = Fetcher(self._cluster, options)
        self._owned = OwnedPartitions(self._alive)
        self._streams: dict[str | None, list[MessageStream]] = {}
        self._session: Session | None = None
        self._member: GroupMember | None = None
        self._threads = Threads("group consumer", self._owned.finish)
        self._closing = threading.Event()
        self._closed = False
        self._fetching = GroupFetching(self._cluster, self._fetcher, self._owned, self._start, self._closing)

    def __enter__(self) -> GroupConsumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close(processed=kind is None)
        except ClientBroken as error:
            if kind is None:
                raise
            logger.error("%s", error)  # it must not replace the exception under way

    # ---- the paper's interface

    def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Join the group.  Returns for each topic the given number of streams, which share its partitions.

        Returns at once; messages come after the rebalance.  Call it once for each consumer.
        """
        if not topics or not all(isinstance(count, int) and count >= 1 for count in topics.values()):
            raise BadValue(f"topics {dict(topics)!r}: give at least one topic, and one stream or more for each")
        _check_count(sum(topics.values()))
        streams: dict[str | None, list[MessageStream]] = {
            topic: [MessageStream(self._owned, self._decoder, topic, i) for i in range(count)]
            for topic, count in topics.items()
        }
        self._join(Subscription(topics=dict(topics)), streams)
        return {topic: streams[topic] for topic in topics}

    def create_message_streams_by_filter(
        self, wanted: Whitelist | Blacklist | str, streams: int = 1
    ) -> list[MessageStream]:
        """Join the group for all topics, present and future, that a pattern admits.  A text is a whitelist.

        Raises:
            BadValue: it is no pattern (see ``zookeeper/patterns.py``).
        """
        _check_count(streams)
        exclude = isinstance(wanted, Blacklist)
        text = wanted if isinstance(wanted, str) else wanted.pattern
        pattern = text.strip().replace(",", "|")
        patterns.parse(pattern)
        if not pattern:
            raise BadValue("an empty pattern matches no topic: '.*' matches all")
        made = [MessageStream(self._owned, self._decoder, None, i) for i in range(streams)]
        self._join(Subscription(pattern=pattern, streams=streams, exclude=exclude), {None: made})
        return made

    def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        """Commit offsets now: of everything handed out, or ``offsets`` ((topic, partition) -> next offset).

        Partitions that this member does not own, or another one owns by now, are left out.

        Raises:
            BadValue: what is given is no offset; nothing is stored.
            ZooKeeperAway: the offsets may not be stored; try again.
            ClientBroken: a thread of this consumer has ended.
        """
        self._threads.check()
        if self._member is None:
            raise InvalidRequest("this consumer has no streams yet: create them first")
        if self._closed:
            raise InvalidRequest("this consumer is closed")
        if offsets is None:
            self._commit(self._owned.to_commit(in_hand=True))
        else:
            _check_offsets(offsets)
            owned = self.owned
            self._commit({part: offset for part, offset in offsets.items() if part in owned})

    def close(self, *, processed: bool = True, timeout: float = CLOSE_S_MAX) -> None:
        """Stop, commit and leave the group: the others take over at once.  Closing twice does nothing.

        Args:
            processed: whether all messages that were handed out count as processed.  Stop reading first.
            timeout: seconds for each of the two threads to end.  Their requests to brokers are aborted.

        Raises:
            ClientBroken: a thread of this consumer has failed, or did not end.  If it failed, everything is closed.
        """
        if self._closed:
            return
        self._closed = True
        if processed:
            self._owned.mark_processed()
        self._owned.finish()
        self._closing.set()
        self._fetcher.wake()
        self._cluster.abort()
        if self._session is not None:
            self._session.deliver(lambda: None)
        running = self._threads.join(timeout)
        if running:
            raise ClientBroken(f"{', '.join(running)} did not end within {timeout:g} s: left behind")
        self._fetcher.close()
        self._cluster.close()
        self._threads.check()

    # ---- state

    @property
    def owned(self) -> dict[tuple[str, int], int]:
        """The owned partitions, each with the number of the stream that reads it."""
        with self._owned.changed:
            return {part: owned.stream.number for part, owned in self._owned.partitions.items()}

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """The offset after the last message handed out, of each owned partition."""
        with self._owned.changed:
            return {part: owned.handed_out for part, owned in self._owned.partitions.items() if owned.handed_out >= 0}

    def troubles(self) -> list[Trouble]:
        """What this consumer waits for at the moment, the oldest first: brokers, partitions, ZooKeeper."""
        return self._fetcher.troubles.current()

    @property
    def corrupt_batches(self) -> int:
        return self._decoder.corrupt_batches + self._fetcher.withheld

    @property
    def large_batches(self) -> int:
        return self._decoder.large_batches

    # ---- called by the rebalance, in the membership thread

    def _stop(self, parts: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        with self._owned.changed:
            leaving = [self._owned.partitions[part] for part in parts if part in self._owned.partitions]
        offsets = self._owned.revoke(parts, self._handover_s_max)
        self._fetching.drop(leaving)
        if self._auto_commit_ms is None:
            return {}
        return {TopicPartition(*part): offset for part, offset in offsets.items()}

    def _gained(self, gained: Sequence[Gained]) -> None:
        begun: list[NewlyOwned] = []
        for topic, partition, stream, stored in gained:
            streams = self._streams.get(topic) or self._streams[None]
            owned = self._owned.add((topic, partition), streams[stream])
            begun.append(NewlyOwned(owned, None if stored is None else stored.offset))
        self._fetching.begin(begun)

    # ---- the membership thread

    def _join(self, subscription: Subscription, streams: dict[str | None, list[MessageStream]]) -> None:
        if self._closed or self._member is not None:
            raise InvalidRequest("a consumer makes its streams once: make another consumer")
        connect = self._zookeeper or self._cluster.refresh([]).zookeeper
        if not connect:
            raise ZooKeeperAway("this appliance runs without ZooKeeper, which groups need: set zookeeper.nodes")
        # kazoo loads slowly, and only groups need it.
        from ..zookeeper.rebalance import GroupMember
        from ..zookeeper.session import Session
        from .ensemble_login import ensemble_login

        self._streams = streams
        login = ensemble_login(self._cluster)
        self._session = Session(
            connect, self._session_timeout_ms, name=self.consumer_id, login=login, clock_ms=self._clock_ms
        )
        self._member = GroupMember(
            self._session,
            self.group,
            self.consumer_id,
            subscription,
            _Streams(self._gained, self._stop),
            clock_ms=self._clock_ms,
            failed=self._leave_with,
        )
        self._threads.start("fetch", self._fetching.run)  # first: a member without it would own what nobody reads
        self._session.start()
        try:
            self._threads.start("member", self._run_member)
        except OutOfResources:
            self._session.close()
            raise

    def _leave_with(self, trouble: ApplianceError) -> None:
        """Leave the group, which this member may not be in: what it has registered would be in the way of others."""
        self._owned.finish(trouble)
        self._closing.set()

    def _run_member(self) -> None:
        member, session = self._member, self._session
        assert member is not None and session is not None
        try:
            member.join()
            self._keep_membership(member)
            member.leave()
        finally:
            session.close()  # after an error, too: the other members must not wait for us

    def _keep_membership(self, member: GroupMember) -> None:
        commit_due_ms = self._clock_ms() + (self._auto_commit_ms or 0)
        patient_until_s = time.monotonic() + JOIN_S
        while not self._closing.is_set():
            member.poll(MEMBER_WAIT_MS)
            if time.monotonic() > patient_until_s:
                self._note_membership(member)
            if self._auto_commit_ms is not None and self._clock_ms() >= commit_due_ms:
                commit_due_ms = self._clock_ms() + self._auto_commit_ms
                try:
                    self._commit(self._owned.to_commit(in_hand=False))
                    self._fetcher.troubles.end("committing offsets")
                except ZooKeeperAway as error:
                    self._fetcher.troubles.begin("committing offsets", error)

    def _note_membership(self, member: GroupMember) -> None:
        """Note a trouble while nothing is handed out because of the membership."""
        troubles, rebalancer = self._fetcher.troubles, member.rebalancer
        group = f"group {self.group}"
        if not self._alive():
            troubles.begin(group, ZooKeeperAway("ZooKeeper is away: nothing is handed out meanwhile"))
        elif rebalancer.in_the_way:
            theirs = ", ".join(f"{topic}-{partition}" for topic, partition in rebalancer.in_the_way[:5])
            troubles.begin(group, NotLeader(f"other members still own {theirs}"))
        else:
            troubles.end(group)

    def _commit(self, offsets: Mapping[tuple[str, int], int]) -> None:
        assert self._member is not None
        if offsets:
            values = {TopicPartition(*part): offset for part, offset in offsets.items()}
            refused = set(self._member.commit(values, timeout_ms=COMMIT_TIMEOUT_MS))
            self._owned.on_committed({part: offset for part, offset in values.items() if part not in refused})

    def _alive(self) -> bool:
        return self._session is not None and self._session.lease_left_ms > 0


class _Streams(NamedTuple):
    """The consumer's side of a rebalance: ``zookeeper.rebalance.Streams``."""

    start: Callable[[Sequence[Gained]], None]
    stop: Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]]


def _start_timestamp(start: str | int) -> int:
    if isinstance(start, int) and start >= 0:
        return start
    if start in ("earliest", "latest"):
        return EARLIEST if start == "earliest" else LATEST
    raise BadValue(f"start={start!r}: give 'earliest', 'latest' or a time in ms since 1970")


def _check_offsets(offsets: Mapping[tuple[str, int], int]) -> None:
    for part, offset in offsets.items():
        if not isinstance(offset, int) or not 0 <= offset <= OFFSET_MAX:
            raise BadValue(f"offset {offset!r} of {part!r}: give a number from 0 to {OFFSET_MAX}")


def _check_count(streams: int) -> None:
    if not 1 <= streams <= STREAMS_MAX:
        raise BadValue(f"{streams} streams: give 1 to {STREAMS_MAX}")
