"""Runs the broker's ZooKeeper session in the coordinator's loop, and reports changes of brokers, topics and its state.

There is one :class:`~appliance.zookeeper.session.Session` per broker.  kazoo's threads only enqueue and ring the
session's eventfd; the loop polls the session then, and when the session's next deadline comes.  Every question has a
deadline of QUESTION_MS_MAX, which includes the wait for a connection: without ZooKeeper it raises
:class:`ZooKeeperAway` and never hangs.

Without ZooKeeper by configuration (``zookeeper.nodes = 0`` and no ``connect``), ``enabled`` is false and every question
raises :class:`InvalidRequest`; the rest of the coordinator then uses only the catalog.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from ...config import Config
from ...errors import ApplianceError, BadValue, InvalidRequest, ZooKeeperAway
from ...zookeeper import group_settings_nodes, security_nodes
from ...zookeeper.broker_registry import BrokerRegistry
from ...zookeeper.group_registry import GroupRegistry
from ...zookeeper.login import ZooKeeperLogin
from ...zookeeper.operations import Operation
from ...zookeeper.paths import BrokerInfo, TopicInfo
from ...zookeeper.session import Session, SessionState

QUESTION_MS_MAX: Final = 5_000
RIVAL_TIMEOUTS: Final = 2
"""A registration of our broker.id by another instance is an earlier run's for so many timeouts of a session."""
RIVAL_S_MIN: Final = 5.0
REGISTER_DELAY_S: Final = 0.05
"""Delay of a registration, so that a burst of new partitions changes it once."""

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionStateChanged:
    """The connect string, or the state of the session."""

    connect: str
    state: str


@dataclass(frozen=True, slots=True)
class SessionWorks:
    """It works, perhaps again, and perhaps it is another one: changes may have been missed."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """A broker has come, gone or changed."""


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A topic was found, has changed, or (None) is not registered any more."""

    name: str
    info: TopicInfo | None


@dataclass(frozen=True, slots=True)
class SecurityChanged:
    """Users, access rules or quotas."""


@dataclass(frozen=True, slots=True)
class GroupSettingsChanged:
    """What groups set themselves."""


@dataclass(frozen=True, slots=True)
class RivalReplaced:
    """This broker's own registration has replaced that of another instance."""


RegistryEvent = (
    SessionStateChanged
    | SessionWorks
    | BrokersChanged
    | TopicChanged
    | SecurityChanged
    | GroupSettingsChanged
    | RivalReplaced
)


class RegistrySession:
    """The session as coroutines.  ``brokers``: the live brokers as last seen, also while ZooKeeper is away."""

    def __init__(
        self,
        config: Config,
        instance: str,
        *,
        describe: Callable[[], BrokerInfo | None],
        login: Callable[[], ZooKeeperLogin | None],
        on_event: Callable[[RegistryEvent], None],
        clock_s: Callable[[], float],
    ) -> None:
        """
        Args:
            instance: unique name of the owner of this data directory.
            describe: returns the registration of this broker, called after each :meth:`announce`; None while it does
                not serve yet.
            login: returns how to log in; called when the address of the ensemble is known.
            on_event: called with what has happened, from the loop.
            clock_s: seconds since 1970.
        """
        self.enabled = bool(config.zookeeper.connect or config.zookeeper.nodes)
        self.external = bool(config.zookeeper.connect)
        self.brokers: dict[int, BrokerInfo] = {}
        self.hosts: dict[int, str] = {}
        """The hosts of all brokers that were ever seen."""
        self.revision = 0  # grows with every change of a broker
        self._revised_s = -math.inf
        self.topics = BrokerRegistry()
        self.groups = GroupRegistry()
        self.connect_string = config.zookeeper.connect
        self.instance = instance
        self._broker_id = config.broker.id
        self._timeout_ms = config.zookeeper.session_timeout_ms
        self._describe, self._on_event = describe, on_event
        self._find_login = login
        self._clock_s = clock_s
        self._rival: tuple[BrokerInfo, float] | None = None
        """Another instance that is registered under our id, and since when we know it."""
        self._loop = asyncio.get_running_loop()
        self._session: Session | None = None
        self._started = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._announcing: asyncio.TimerHandle | None = None

    @property
    def state(self) -> str:
        if not self.enabled:
            return "off"
        return SessionState.CONNECTING.value if self._session is None else self._session.state.value

    @property
    def session_id(self) -> int:
        """The id of the present session; 0 before the first one."""
        return 0 if self._session is None else self._session.session_id

    @property
    def settled(self) -> bool:
        """Whether every broker that lives knows the same ones: a session that has not heard of a change for so long is
        over.
        """
        return self._loop.time() - self._revised_s > self._timeout_ms / 1000

    @property
    def leased(self) -> bool:
        """Whether the session's ephemeral nodes certainly still exist, by its lease."""
        return self._session is not None and self._session.lease_left_ms > 0

    @property
    def lease_left_ms(self) -> int:
        """For how long the session's ephemeral nodes are certain to stay."""
        return 0 if self._session is None else self._session.lease_left_ms

    @property
    def rival(self) -> tuple[BrokerInfo, float] | None:
        """Another appliance with our id, and since when it is known; None for an earlier run, whose session ends."""
        rival = self._rival
        return rival if rival is not None and self._clock_s() - rival[1] >= self._rival_s else None

    @property
    def _rival_s(self) -> float:
        """How long the session of an earlier run may outlive it."""
        return max(RIVAL_S_MIN, RIVAL_TIMEOUTS * self._timeout_ms / 1000)

    # ---- life

    def connect(self, connect: str) -> None:
        """Begin to connect to an ensemble, or move to its new address."""
        assert self.enabled
        self.connect_string = connect
        if self._session is not None:
            self._session.set_connect(connect)
        else:
            login = None
            try:
                login = self._find_login()
            except (ApplianceError, OSError) as error:  # checked at the start, so it was changed since
                log.error("ZooKeeper will refuse us: %s", error)
            session = Session(connect, self._timeout_ms, name=f"of broker {self._broker_id}", login=login)
            session.on_state(self._state_changed)
            session.start()
            self._session = session
            self._loop.add_reader(session.fileno(), self._poll)
            self.topics.watch_topics(session, lambda name, info: self._on_event(TopicChanged(name, info)))
            self.topics.watch_brokers(session, self._broker_changed)
            session.watch_value(security_nodes.REVISION, lambda _: self._on_event(SecurityChanged()))
            session.watch_value(group_settings_nodes.GROUPS, lambda _: self._on_event(GroupSettingsChanged()))
            self._started.set()
            self.announce()
            self._poll()
        self._on_event(SessionStateChanged(connect, self.state))

    def announce(self) -> None:
        """Register this broker, or its changes, after REGISTER_DELAY_S."""
        if self.enabled and self._announcing is None:
            self._announcing = self._loop.call_later(REGISTER_DELAY_S, self._announce)

    def close(self, *, leave_nodes: bool) -> None:
        """End the session, and the registration with it; wait at most 1 s for ZooKeeper.

        Args:
            leave_nodes: leave its ephemeral nodes until its time-out is over, or the next life of this broker takes
                them over.
        """
        for timer in (self._timer, self._announcing):
            if timer is not None:
                timer.cancel()
        session, self._session = self._session, None
        if session is not None:
            self._loop.remove_reader(session.fileno())
        if session is not None and not leave_nodes:
            session.close(1_000)  # its ephemeral nodes go with it

    # ---- questions

    async def ask(self, operation: Operation[T], *, session_id: int | None = None) -> T:
        """Carry an operation out; with ``session_id`` only in that session.

        Raises:
            InvalidRequest: this appliance runs without ZooKeeper.
            ZooKeeperAway: no answer within QUESTION_MS_MAX; a change may or may not have been made.
            ApplianceError: raised by the operation.
        """
        if not self.enabled:
            operation.close()
            raise InvalidRequest("this appliance runs without ZooKeeper (zookeeper.nodes = 0): it has no groups")
        begun = self._loop.time()
        try:
            if not self._started.is_set():
                async with asyncio.timeout(QUESTION_MS_MAX / 1000):
                    await self._started.wait()
        except TimeoutError:
            operation.close()
            raise ZooKeeperAway("the local ZooKeeper ensemble is not up yet: try again") from None
        if self._session is None:
            operation.close()
            raise ZooKeeperAway("this appliance is stopping")
        answer: asyncio.Future[T] = self._loop.create_future()

        def done(result: T | ApplianceError) -> None:
            if answer.done():
                return  # the caller was cancelled
            if isinstance(result, ApplianceError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        left_ms = QUESTION_MS_MAX - int((self._loop.time() - begun) * 1000)
        self._session.submit(operation, done, timeout_ms=max(1, left_ms), session_id=session_id)
        return await answer

    async def live_brokers(self) -> set[int]:
        """Ids of the brokers that are registered at this moment.

        Raises:
            BadValue: another appliance is registered under our id.
            ZooKeeperAway: an earlier run is, perhaps of another place or host: its session is about to end.
        """
        registered = await self.ask(self.topics.brokers())
        info = registered.get(self._broker_id)
        if info is None or info.instance == self.instance:
            return set(registered)
        self._note_rival(info)
        who = f"broker.id = {self._broker_id} is registered by {info.host} ({info.native})"
        if self.rival is None:
            raise ZooKeeperAway(f"{who}: waiting for at most {self._rival_s:.0f} s, until its session is over")
        raise BadValue(
            f"{who} in the ensemble {self.connect_string}, and stays so: another appliance has this id; stop one of"
            " the two, or give it another id and an empty directory"
        )

    # ---- events of the session

    def _poll(self) -> None:
        if self._session is None:
            return
        try:
            self._session.poll()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(max(1, self._session.wait_ms()) / 1000, self._poll)

    def _state_changed(self, state: SessionState) -> None:
        self._on_event(SessionStateChanged(self.connect_string, state.value))
        if state is SessionState.CONNECTED:
            self._on_event(SessionWorks())

    def _broker_changed(self, broker_id: int, info: BrokerInfo | None) -> None:
        self.revision += 1
        self._revised_s = self._loop.time()
        if info is not None:
            self.brokers[broker_id] = info
            self.hosts[broker_id] = info.host
        if broker_id == self._broker_id and info is not None:
            if info.instance != self.instance:
                self._note_rival(info)
            elif self._rival is not None:
                self._rival = None
                self._on_event(RivalReplaced())
        if info is None and broker_id != self._broker_id and self.brokers.pop(broker_id, None) is not None:
            log.warning("broker %d is gone", broker_id)
        self._on_event(BrokersChanged())

    def _note_rival(self, info: BrokerInfo) -> None:
        if self._rival is not None and self._rival[0].instance == info.instance:
            return
        self._rival = info, self._clock_s()
        log.info("broker.id = %d is registered by %s: an earlier run, whose session ends", self._broker_id, info.host)
        self._loop.call_later(self._rival_s, self._on_event, BrokersChanged())

    def _announce(self) -> None:
        self._announcing = None
        described = self._describe()
        if self._session is not None and described is not None:
            self.topics.register(self._session, self._broker_id, described)
