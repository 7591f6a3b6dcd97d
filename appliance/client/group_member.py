"""One member of a native group: it joins, keeps its session alive, rebalances and commits.

States, and what leads from one to the next::

    state      event                                                    next
    outside    the coordinator answers the join                         joined     what is running and kept is claimed
                                                                                   again, the rest is stopped
    joined     an attempt is due                                        joined     :mod:`.rebalance`
    joined     nothing is due                                           joined     waits at the coordinator for a change
    joined     "unknown member": another coordinator, or it was silent  outside    the streams go on within the lease
    any        leave, or an error that cannot be retried                -          everything is stopped

The lease is what counts for the streams: it ends ``lease_ms`` after the sending of the last request that was answered.
While it is over nothing is handed out.  An answer under the same epoch shows that the coordinator has kept everything,
and the answer to a join says what it has kept: those streams go on, the others begin anew.

:class:`MemberSession` is this machine.  It yields calls (:class:`.rebalance.CoordinatorCall`) and is told the time;
tests run it against a coordinator in memory.  :class:`GroupMember` carries it out, in one thread, with a connection to
the group's coordinator.  Another thread may commit at the same time, over a connection of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..errors import ApplianceError, BrokerAway, NotCoordinator, UnknownMember, ZooKeeperAway, from_code
from ..names import TopicPartition, member_suffix
from ..wire.bounds import CHANGE_WAIT_MS_MAX
from ..wire.native import ADMIN
from ..zookeeper.assignment import Stream
from ..zookeeper.paths import Subscription
from .broker_connection import BrokerConnection
from .cluster_client import Cluster
from .rebalance import SYNC_MS, Calls, CoordinatorCall, Rebalancer, Streams, T

CALL_MS: Final = 5_000
"""How long an answer may take, besides the time that it is asked to wait for a change."""
RETRY_MS: Final = 100

log = logging.getLogger(__name__)


class MemberIdentity:
    """Who a member is.  The coordinator checks the secret by the id: nobody else can ask in the member's name."""

    def __init__(self, group: str, place: str) -> None:
        self.group, self.secret = group, secrets.token_hex(16)
        self.member = f"{group}_{place}{member_suffix(self.secret)}"
        self._sequence = itertools.count(1)

    def proof(self) -> dict[str, Any]:
        """What shows the coordinator who asks."""
        return {"group": self.group, "member": self.member, "secret": self.secret}

    def arguments(self) -> dict[str, Any]:
        return {**self.proof(), "sequence": next(self._sequence)}


class MemberSession:
    """See the module's docstring."""

    def __init__(
        self,
        identity: MemberIdentity,
        subscription: Subscription,
        streams: Streams,
        *,
        session_ms: int,
        clock_ms: Callable[[], int],
        sync_ms: int = SYNC_MS,
    ) -> None:
        self.identity, self.subscription = identity, subscription
        self.rebalancer = Rebalancer(identity.group, identity.member, streams, sync_ms=sync_ms)
        self.epoch = ""
        """"" outside."""
        self.trouble: ApplianceError | None = None
        """Why the last turn has not done what was due."""
        self._session_ms, self._clock_ms = session_ms, clock_ms
        self._lease_end_ms = 0

    @property
    def lease_left_ms(self) -> int:
        return max(0, self._lease_end_ms - self._clock_ms())

    @property
    def is_unknown(self) -> bool:
        """Whether no coordinator has anything of this member: none was asked to let it join, or it was refused."""
        return not self._lease_end_ms and (self.trouble is None or not self.trouble.retriable)

    def turn(self, wait_ms: int) -> Calls[None]:
        """Do what is due, or wait for a change for up to ``wait_ms``.

        Raises:
            ApplianceError: one that is not retriable.
        """
        try:
            if not self.epoch:
                yield from self._join()
            elif self.rebalancer.due_ms(self._clock_ms()) == 0:
                yield from self._rebalance()
            else:
                yield from self._await_change(wait_ms)
            self.trouble = None
        except UnknownMember:
            self.epoch = ""
        except ApplianceError as error:
            self.trouble = error
            if not error.retriable:
                raise

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Calls[list[TopicPartition]]:
        """See :meth:`.rebalance.Rebalancer.commit`."""
        return self._call_in_session(self.rebalancer.commit(offsets))

    def leave(self) -> Calls[None]:
        if self.epoch:
            yield from self._call_in_session(self.rebalancer.leave())

    def _join(self) -> Calls[None]:
        subscription = self.subscription
        about: dict[str, Any] = {"topics": subscription.topics} if subscription.topics else {}
        if subscription.pattern:
            about = {"pattern": subscription.pattern, "streams": subscription.streams, "exclude": subscription.exclude}
        sent_ms = self._clock_ms()
        answer = yield CoordinatorCall(
            "join_group", {**self.identity.arguments(), "session_ms": self._session_ms, **about}
        )
        self.rebalancer.joined({TopicPartition(*part) for part in answer["kept"]})
        self._extend(sent_ms, answer)
        self.epoch = answer["epoch"]

    def _rebalance(self) -> Calls[None]:
        result: bool | ApplianceError = False
        try:
            result = yield from self._call_in_session(self.rebalancer.attempt())
        except ApplianceError as error:
            result = error
            raise
        finally:
            self.rebalancer.finished(result, self._clock_ms())

    def _await_change(self, wait_ms: int) -> Calls[None]:
        due_ms = self.rebalancer.due_ms(self._clock_ms())
        wait_ms = min(wait_ms, self._session_ms // 3, CHANGE_WAIT_MS_MAX, *([] if due_ms is None else [due_ms]))
        seen = self.rebalancer.revision
        answer = yield from self._call_in_session(
            _make_call(CoordinatorCall("await_change", {"revision": seen, "wait_ms": wait_ms}))
        )
        if answer["revision"] != seen:
            self.rebalancer.revision = answer["revision"]
            self.rebalancer.trigger()

    def _call_in_session(self, calls: Calls[T]) -> Calls[T]:
        """Say in each call who asks; its answer extends the lease."""
        try:
            call = next(calls)
            while True:
                sent_ms = self._clock_ms()
                arguments = {**self.identity.arguments(), "epoch": self.epoch, **call.arguments}
                try:
                    result = yield CoordinatorCall(call.verb, arguments)
                except ApplianceError as error:
                    call = calls.throw(error)
                    continue
                if result is not None:
                    self._extend(sent_ms, result)
                call = calls.send(result)
        except StopIteration as finished:
            value: T = finished.value
            return value
        finally:
            calls.close()

    def _extend(self, sent_ms: int, answer: Mapping[str, Any]) -> None:
        self._lease_end_ms = max(self._lease_end_ms, sent_ms + answer["lease_ms"])


def _make_call(call: CoordinatorCall) -> Calls[dict[str, Any]]:
    return (yield call)


class GroupCoordinatorLink:
    """A connection to the coordinator of a group, one request at a time.  Any thread may use it."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster, self._group = cluster, group
        self._connection: BrokerConnection | None = None
        self._lock = threading.Lock()

    def call(self, verb: str, arguments: Mapping[str, Any], timeout_ms: int = CALL_MS) -> Any:
        """Carry out a verb.  Raises the error of the reply; after any failure the next call connects again."""
        with self._lock:
            connection = self._connection or self._connect()
            usable = False
            try:
                result = _ask(connection, verb, arguments, timeout_ms)
                usable = True
                return result
            except ApplianceError as error:
                usable = not connection.awaited and not isinstance(error, NotCoordinator)
                raise
            finally:
                if not usable:
                    self._drop()

    def interrupt(self) -> None:
        """Have the call in progress, if any, fail with BrokerAway."""
        connection = self._connection
        if connection is not None:
            connection.shutdown()

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _connect(self) -> BrokerConnection:
        with contextlib.ExitStack() as closed_on_failure:
            connection = closed_on_failure.enter_context(contextlib.closing(self._cluster.open()))
            broker_id = _ask(connection, "group_coordinator", {"group": self._group}, CALL_MS)
            if broker_id == connection.broker_id:
                closed_on_failure.pop_all()
                self._connection = connection
                return connection
        self._cluster.refresh([])
        self._connection = self._cluster.open(broker_id)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _ask(connection: BrokerConnection, verb: str, arguments: Mapping[str, Any], timeout_ms: int) -> Any:
    header = connection.call(ADMIN, verb, dict(arguments), timeout_s=timeout_ms / 1000).header
    if header[1]:
        raise from_code(header[1], header[2], about="" if header[2] else verb)
    return header[3]


class GroupMember:
    """Carries out a :class:`MemberSession`.  The owner's thread calls ``poll`` again and again: it does all the work.

    Any thread may call ``commit``.
    """

    def __init__(self, cluster: Cluster, membership: MemberSession) -> None:
        self.membership = membership
        self._requests, self._commits = (GroupCoordinatorLink(cluster, membership.identity.group) for _ in range(2))
        self._closing = threading.Event()

    @property
    def owned(self) -> dict[TopicPartition, Stream]:
        """The partitions that the streams read now."""
        return dict(self.membership.rebalancer.running)

    @property
    def lease_left_ms(self) -> int:
        """How long the coordinator certainly keeps what is owned; 0: nothing may be handed out."""
        return self.membership.lease_left_ms

    def raise_error(self) -> None:
        """Raise what is certain to keep this member out of the group: a missing right, no ZooKeeper.

        Raises:
            ApplianceError: the group's coordinator, or why it cannot be reached.
        """
        with contextlib.ExitStack() as closed_on_failure:
            closed_on_failure.callback(self.close)
            self._requests.call("group_coordinator", {"group": self.membership.identity.group})
            closed_on_failure.pop_all()

    def poll(self, wait_ms: int) -> None:
        """Do what is due, and wait for changes for up to ``wait_ms``.

        Raises:
            ApplianceError: one that is not retriable; this member is out.
        """
        drive(self.membership.turn(wait_ms), self._requests, wait_ms)
        if self.membership.trouble is not None:
            self._closing.wait(RETRY_MS / 1000)

    def commit(self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int = CALL_MS) -> list[TopicPartition]:
        """Commit offsets and wait for it.  Returns the partitions that another consumer owns by now: not stored.

        Raises:
            ZooKeeperAway: no reply in time, or the coordinator does not know this member now.  Some offsets may have
                been stored.
        """
        if not self.membership.epoch or not self.lease_left_ms:
            raise ZooKeeperAway("the group's coordinator is away: offsets can be committed after the next rebalance")
        try:
            return drive(self.membership.commit(offsets), self._commits, timeout_ms=timeout_ms)
        except ApplianceError as error:
            if error.retriable or isinstance(error, UnknownMember):
                raise ZooKeeperAway(f"the offsets may not be stored; try again: {error}") from None
            raise

    def wake(self) -> None:
        """Have a ``poll`` that waits return.  Any thread may call it."""
        self._closing.set()
        self._requests.interrupt()

    def leave(self) -> None:
        """Stop the streams, commit, and leave the group, so that the others need not wait for the session's end."""
        try:
            if not self.lease_left_ms and not self.membership.is_unknown:
                raise BrokerAway("the group's coordinator does not answer")
            try:
                drive(self.membership.leave(), self._requests)
            except BrokerAway:  # the connection that ``wake`` has cut
                drive(self.membership.leave(), self._requests)
        except ApplianceError as error:
            identity = self.membership.identity
            log.warning("group %s: %s leaves without its coordinator: %s", identity.group, identity.member, error)
        self.membership.rebalancer.lost()

    def close(self) -> None:
        self._requests.close()
        self._commits.close()


def drive(calls: Calls[T], link: GroupCoordinatorLink, wait_ms: int = 0, *, timeout_ms: int = CALL_MS) -> T:
    """Carry out calls over a connection.  ``wait_ms``: for how long the coordinator may be asked to wait.

    Raises:
        ApplianceError: of a call, where the calls do not go on after it.
    """
    try:
        call = next(calls)
        while True:
            try:
                result = link.call(call.verb, call.arguments, timeout_ms + wait_ms)
            except ApplianceError as error:
                call = calls.throw(error)
            else:
                call = calls.send(result)
    except StopIteration as finished:
        value: T = finished.value
        return value
    finally:
        calls.close()
