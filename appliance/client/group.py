"""The paper's consumer: the members of a group divide the partitions among themselves and commit their offsets.

Example::

    with GroupConsumer("127.0.0.1:9091", "reports") as consumer:
        streams = consumer.create_message_streams({"logs": 2})  # {"logs": [stream, stream]}
        for message in streams["logs"][0]:  # one thread per stream; never ends
            ...

Every message is delivered to one member of the group, at least once, and in order within its partition.  The members
agree without a master, as in the paper: see :mod:`.rebalance`.  The group's coordinator registers them in ZooKeeper, so
they need the right to read the group and its topics, and no more.  Offsets are committed every ``auto_commit_ms`` and
whenever partitions change owners, or by :meth:`~GroupConsumer.commit` alone (``auto_commit=False``).  A partition
without a committed offset begins at ``start``: "earliest", "latest" or a time in ms.

An automatic commit covers messages whose reader has requested the next one.  :meth:`~GroupConsumer.commit` and
:meth:`~GroupConsumer.close` cover all messages that were handed out; leaving the ``with`` block through an exception
does not.  When a partition is revoked while a reader works on one of its messages, the reader gets ``handover_ms_max``
to finish.  After that the next owner gets the message again.

A group consumer has two threads: one keeps the membership (:mod:`.group_member`: session, rebalances, commits), one
fetches from all brokers.  The threads that read the streams decode.  When the session's lease is over nothing more is
handed out: another member may own the partition by then.  If one of the two threads ends by an unexpected error, the
streams, :meth:`~GroupConsumer.commit` and :meth:`~GroupConsumer.close` raise :class:`~appliance.errors.ClientBroken`.
If the membership's thread ends, the session ends too, and the other members take over.

Not fork-safe: make consumers after forking.

Errors: ZooKeeperAway from :meth:`~GroupConsumer.commit`, retriable; InvalidRequest where the group belongs to the Kafka
listener; CorruptBatch from a stream (``on_corrupt="skip"`` skips damaged batches and counts them).
"""

from __future__ import annotations

import functools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..errors import (
    ApplianceError,
    BadValue,
    ClientBroken,
    IllegalGeneration,
    InvalidRequest,
    NotLeader,
    ZooKeeperAway,
)
from ..names import OFFSET_MAX, TopicPartition
from ..records.decode import BYTES_MAX
from ..wire.bounds import STREAMS_MAX
from ..wire.requests import EARLIEST, LATEST
from ..zookeeper import patterns
from ..zookeeper.paths import Subscription
from . import arguments
from .arguments import check_functions, check_truth, check_whole
from .client_security import ClientSecurity
from .cluster_client import Cluster
from .consumer import MEBIBYTE
from .damage_reports import DamageReports
from .decoder import ChunkDecoder
from .fetcher import Fetcher, FetchOptions, reads_committed
from .group_fetching import GroupFetching, NewlyOwned
from .group_member import GroupMember, MemberIdentity, MemberSession
from .lifetime import inherited, refuse_in_children
from .rebalance import Gained, Streams
from .streams import MessageStream, OwnedPartitions
from .threads import Threads
from .troubles import Trouble

logger = logging.getLogger(__name__)

MEMBER_WAIT_MS: Final = 2_000
"""How long a turn of the membership may wait for a change at the coordinator, which is told of them at once."""
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

    _closed = False
    _inherited = False
    """Whether this is a child of its process."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        group: str,
        *,
        start: str | int = "earliest",
        auto_commit: bool = True,
        auto_commit_ms: int = 5_000,
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
        _check_options(auto_commit, auto_commit_ms, session_timeout_ms, handover_ms_max, clock_ms)
        self._start, self.group = _start_timestamp(start), arguments.group_name(group)
        self._identity = MemberIdentity(group, f"{socket.gethostname()}-{time.time_ns() // 1_000_000}")
        self.consumer_id = self._identity.member
        self._auto_commit_ms = auto_commit_ms if auto_commit else None
        self._session_timeout_ms, self._handover_s_max = session_timeout_ms, handover_ms_max / 1000
        self._clock_ms = clock_ms
        committed = reads_committed(isolation)
        cluster = functools.partial(Cluster, bootstrap, security, client_name=client_name, committed=committed)
        self._cluster, self._coordinators = (cluster(request_timeout_ms=request_timeout_ms) for _ in range(2))
        """The second one outlives the first: whoever closes leaves the group, while nothing else is asked any more."""
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
        self._decoder = ChunkDecoder(reports, unpacked_bytes_max, check_crc=check_crc, on_corrupt=on_corrupt)
        self._fetcher = Fetcher(self._cluster, options)
        self._owned = OwnedPartitions(self._alive)
        self._streams: dict[str | None, list[MessageStream]] = {}
        self._member: GroupMember | None = None
        self._threads = Threads("group consumer", self._owned.finish)
        self._closing = threading.Event()
        refuse_in_children(self)
        self._committed_only = committed
        stable = self._stable_offsets if committed else None
        self._fetching = GroupFetching(self._cluster, self._fetcher, self._owned, self._start, self._closing, stable)

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
        self._check_open()
        if not arguments.mapping("topics", topics):
            raise InvalidRequest(f"topics {arguments.shown(topics)}: give at least one topic, and how many streams")
        for topic, count in topics.items():
            arguments.topic_name(topic)
            _check_count(count)
        _check_count(sum(topics.values()))
        streams: dict[str | None, list[MessageStream]] = {
            topic: [MessageStream(self._owned, self._decoder, topic, i) for i in range(count)]
            for topic, count in topics.items()
        }
        self._join(Subscription(topics=dict(topics)), streams)
        return {topic: streams[topic] for topic in topics}

    def create_message_streams_by_filter(
        self, topic_filter: Whitelist | Blacklist | str, streams: int = 1
    ) -> list[MessageStream]:
        """Join the group for all topics, present and future, that a pattern admits.  A text is a whitelist.

        Raises:
            BadValue: it is no pattern (see ``zookeeper/patterns.py``).
        """
        self._check_open()
        _check_count(streams)
        exclude = isinstance(topic_filter, Blacklist)
        text = topic_filter.pattern if isinstance(topic_filter, Whitelist | Blacklist) else topic_filter
        pattern = arguments.text("pattern", text).strip().replace(",", "|")
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
            InvalidRequest: what is given is no offset; nothing is stored.
            ZooKeeperAway: the offsets may not be stored; try again.
            ClientBroken: a thread of this consumer has ended.
        """
        self._check_open()
        self._threads.raise_error()
        checked = None if offsets is None else arguments.offsets(offsets)
        if self._member is None:
            raise InvalidRequest("this consumer has no streams yet: create them first")
        if checked is None:
            self._commit(self._owned.uncommitted(in_hand=True))
        else:
            owned = self.owned
            self._commit({part: offset for part, offset in checked.items() if part in owned})

    # ---- where to read

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue a partition with the first message at or after ``offset``, or at EARLIEST or LATEST.

        The next commit stores it, also where it lies before what is committed.

        Raises:
            InvalidRequest: this consumer does not own the partition now.
        """
        arguments.whole("offset", offset, EARLIEST, OFFSET_MAX)
        (part,) = self._chosen([(topic, partition)])
        if offset < 0:
            offset = self._cluster.offsets({part: offset})[part]
        with self._owned.changed:
            self._chosen([part])  # others may have got it meanwhile
            owned = self._owned.renew(part, offset)
        if not owned.paused:
            self._fetching.restart([NewlyOwned(owned, offset, goes_on=True)])

    def pause(self, *parts: tuple[str, int]) -> None:
        """Hand out nothing of these owned partitions, or of all, until :meth:`resume`: what has arrived is dropped.

        A paused partition stays owned, and its positions are committed.  A pause ends with the ownership.
        """
        with self._owned.changed:
            pausing = [part for part in self._chosen(parts) if not self._owned.partitions[part].paused]
            for part in pausing:
                self._owned.renew(part).paused = True
        self._fetching.stop(pausing)

    def resume(self, *parts: tuple[str, int]) -> None:
        """Hand out these partitions again, or all that are paused, from where they were."""
        begun: list[NewlyOwned] = []
        with self._owned.changed:
            for part in self._chosen(parts):
                owned = self._owned.partitions[part]
                if owned.paused:
                    owned.paused = False
                    begun.append(NewlyOwned(owned, owned.next_offset, goes_on=owned.begun >= 0))
        self._fetching.restart(begun)

    def paused(self) -> set[tuple[str, int]]:
        """The owned partitions that are paused."""
        with self._owned.changed:
            return {part for part, owned in self._owned.partitions.items() if owned.paused}

    def committed(self, parts: Iterable[tuple[str, int]] | None = None) -> dict[tuple[str, int], int]:
        """The offsets that the group has committed of these partitions, by default of the owned ones; asks for them.

        Partitions without one are left out.
        """
        self._check_open()
        asked = set(self.owned) if parts is None else set(arguments.parts(parts))
        rows = self._cluster.admin("offsets", {"group": self.group})
        return {(topic, partition): offset for topic, partition, offset in rows if (topic, partition) in asked}

    def offsets_at(self, timestamp: int, parts: Iterable[tuple[str, int]] | None = None) -> dict[tuple[str, int], int]:
        """Offsets for EARLIEST, LATEST or a time in ms; by default of the owned partitions."""
        self._check_open()
        arguments.whole("timestamp", timestamp, EARLIEST, OFFSET_MAX)
        asked = list(self.owned) if parts is None else arguments.parts(parts)
        self._cluster.refresh({topic for topic, _ in asked})
        return self._cluster.offsets(dict.fromkeys(asked, timestamp))

    def _chosen(self, parts: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """These partitions, or all that are owned.

        Raises:
            InvalidRequest: one of them is not.
        """
        self._check_open()
        chosen = arguments.parts(parts)
        for topic, partition in chosen:
            if (topic, partition) not in self._owned.partitions:
                raise InvalidRequest(f"{topic}-{partition} is not owned by this consumer now")
        return chosen or list(self._owned.partitions)

    # ---- for the transactions of a producer

    def check_transactional(self) -> None:
        """
        Raises:
            InvalidRequest: it commits by itself, or reads what transactions may still take back.
        """
        if self._auto_commit_ms is not None or not self._committed_only:
            raise InvalidRequest('transactions need GroupConsumer(..., auto_commit=False, isolation="read_committed")')

    def proof(self) -> dict[str, Any]:
        """What shows the coordinator which member of the group this is."""
        return self._identity.proof()

    def handed_out(self) -> dict[tuple[str, int], int]:
        """The next offset of each partition that has handed out anything since the last commit.

        Raises:
            IllegalGeneration: such a partition was given up meanwhile; its next owner reads that again.
        """
        with self._owned.changed:
            if self._owned.lost:
                lost = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(self._owned.lost)[:5])
                raise IllegalGeneration(f"group {self.group!r} has given away {lost}: another member reads it again")
        return self._owned.uncommitted(in_hand=True)

    def on_committed(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """A transaction has committed these offsets."""
        self._owned.on_committed(offsets)

    def rewind(self) -> None:
        """Hand out again what was handed out since the last commit."""
        begun: list[NewlyOwned] = []
        with self._owned.changed:
            again = [
                partition for partition in self._owned.partitions.values() if partition.handed_out > partition.committed
            ]
            self._owned.revoke([partition.topic_partition for partition in again], 0)
            self._owned.lost.clear()
            for partition in again:
                stored = partition.begun if partition.begun >= 0 else None
                owned = self._owned.add_partition(partition.topic_partition, partition.stream, stored)
                owned.paused = partition.paused
                if not owned.paused:
                    begun.append(NewlyOwned(owned, stored))
        self._fetching.restart(begun)

    def _stable_offsets(self, parts: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        rows = self._cluster.admin("offsets", {"group": self.group, "stable": [list(part) for part in parts]})
        return {(topic, partition): offset for topic, partition, offset in rows}

    def close(self, *, processed: bool = True, timeout: float = CLOSE_S_MAX) -> None:
        """Stop, commit and leave the group: the others take over at once.  Closing twice does nothing.

        Args:
            processed: whether all messages that were handed out count as processed.  Stop reading first.
            timeout: seconds for each of the two threads to end.  Their requests to brokers are aborted.

        Raises:
            ClientBroken: a thread of this consumer has failed, or did not end.  If it failed, everything is closed.
        """
        wait_s = arguments.seconds(timeout)
        arguments.truth("processed", processed)
        if self._closed or self._inherited:
            return
        self._closed = True
        if processed:
            self._owned.mark_processed()
        self._owned.finish()
        self._closing.set()
        self._fetcher.wake()
        self._cluster.abort()
        if self._member is not None:
            self._member.wake()
        running = self._threads.join(wait_s)
        if running:
            raise ClientBroken(f"{', '.join(running)} did not end within {timeout:g} s: left behind")
        self._fetcher.close()
        self._cluster.close()
        self._coordinators.close()
        self._threads.raise_error()

    def disown(self) -> None:
        """In a forked child: refuse every call, and leave connections, session and offsets to the parent."""
        self._inherited = True
        self._owned.disown(inherited("consumer", self._cluster.pid))

    def _check_open(self) -> None:
        if self._inherited:
            raise inherited("consumer", self._cluster.pid)
        if self._closed:
            raise InvalidRequest("this consumer is closed")

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
        for topic, partition, stream, offset in gained:
            streams = self._streams.get(topic) or self._streams[None]
            owned = self._owned.add_partition((topic, partition), streams[stream], offset)
            begun.append(NewlyOwned(owned, offset))
        self._fetching.begin(begun)

    # ---- the membership thread

    def _join(self, subscription: Subscription, streams: dict[str | None, list[MessageStream]]) -> None:
        if self._member is not None:
            raise InvalidRequest("a consumer makes its streams once: make another consumer")
        membership = MemberSession(
            self._identity,
            subscription,
            Streams(self._gained, self._stop),
            session_ms=self._session_timeout_ms,
            clock_ms=self._clock_ms,
        )
        member = GroupMember(self._coordinators, membership)
        member.raise_error()
        self._streams, self._member = streams, member
        self._threads.start("fetch", self._fetching.run)  # first: a member without it would own what nobody reads
        self._threads.start("member", self._run_member)

    def _leave_with(self, trouble: ApplianceError) -> None:
        """Leave the group, which this member may not be in: what it has registered would be in the way of others."""
        self._owned.finish(trouble)
        self._closing.set()

    def _run_member(self) -> None:
        member = self._member
        assert member is not None
        try:
            self._keep_membership(member)
        except ApplianceError as error:
            self._leave_with(error)
        finally:
            try:
                member.leave()  # after a bug, too: the other members must not wait for the session's end
            finally:
                member.close()

    def _keep_membership(self, member: GroupMember) -> None:
        """
        Raises:
            ApplianceError: this member cannot be in the group.
        """
        commit_due_ms = self._clock_ms() + (self._auto_commit_ms or 0)
        patient_until_s = time.monotonic() + JOIN_S
        while not self._closing.is_set():
            member.poll(min(MEMBER_WAIT_MS, self._auto_commit_ms or MEMBER_WAIT_MS))
            if time.monotonic() > patient_until_s:
                self._note_membership(member)
            if self._auto_commit_ms is not None and self._clock_ms() >= commit_due_ms:
                commit_due_ms = self._clock_ms() + self._auto_commit_ms
                try:
                    self._commit(self._owned.uncommitted(in_hand=False))
                    self._fetcher.troubles.note_progress("committing offsets")
                except ApplianceError as error:
                    self._fetcher.troubles.note_trouble("committing offsets", error)

    def _note_membership(self, member: GroupMember) -> None:
        """Note a trouble while nothing is handed out because of the membership."""
        troubles, rebalancer = self._fetcher.troubles, member.membership.rebalancer
        group = f"group {self.group}"
        if not self._alive():
            why = member.membership.trouble or "it does not answer"
            troubles.note_trouble(group, ZooKeeperAway(f"nothing is handed out while its coordinator is away: {why}"))
        elif rebalancer.in_the_way:
            theirs = ", ".join(f"{topic}-{partition}" for topic, partition in rebalancer.in_the_way[:5])
            troubles.note_trouble(group, NotLeader(f"other members still own {theirs}"))
        else:
            troubles.note_progress(group)

    def _commit(self, offsets: Mapping[tuple[str, int], int]) -> None:
        assert self._member is not None
        if offsets:
            values = {TopicPartition(*part): offset for part, offset in offsets.items()}
            refused = set(self._member.commit(values, timeout_ms=COMMIT_TIMEOUT_MS))
            self._owned.on_committed({part: offset for part, offset in values.items() if part not in refused})

    def _alive(self) -> bool:
        return self._member is not None and self._member.lease_left_ms > 0


def _start_timestamp(start: str | int) -> int:
    if type(start) is int and 0 <= start <= OFFSET_MAX:
        return start
    if isinstance(start, str) and start in ("earliest", "latest"):
        return EARLIEST if start == "earliest" else LATEST
    raise BadValue(f"start={arguments.shown(start)}: give 'earliest', 'latest' or a time in ms since 1970")


def _check_options(
    auto_commit: bool, auto_commit_ms: int, session_timeout_ms: int, handover_ms_max: int, clock_ms: Callable[[], int]
) -> None:
    check_truth(auto_commit=auto_commit)
    check_whole(1, auto_commit_ms=auto_commit_ms, session_timeout_ms=session_timeout_ms)
    check_whole(0, handover_ms_max=handover_ms_max)
    check_functions(clock_ms=clock_ms)


def _check_count(streams: int) -> None:
    arguments.whole("streams", streams, 1, STREAMS_MAX)
