"""Ships files to an appliance, here or elsewhere, from a command: the engine of the input ``files`` without a service.

With a directory of positions a later call goes on where this one has ended, also after a kill; without one, everything
is read from its beginning.  A position belongs to a file, a topic and a cluster, so there is a store of positions for
each topic (as it is given, also a template) of each cluster: ``DIRECTORY/CLUSTER/TOPIC/positions.sqlite``.

A last line without a line break may be one that is being written.  It is sent when nobody is to go on from there;
else it waits in its file for the rest of it, and the caller is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ..client import Admin
from ..client.cluster_client import Cluster
from ..config import Config
from ..errors import BadValue, InvalidRequest, RequestTimedOut, ZooKeeperAway
from ..input_settings import Files, fault_of
from ..processes.messages import InputStats
from ..shared.heartbeats import alone
from .files import FilesInput, files_input
from .guard import Guard
from .ledger import Ledger
from .machinery import Machinery
from .outlet import DELIVERY_TIMEOUT_MS, Outlet, make_producer
from .positions import PositionStore
from .rotation import Patterns

CLIENT: Final = "appliance-ship"
STORE: Final = "positions.sqlite"
LOOK_S: Final = 0.2
NAME: Final = "ship"


class Shipment(NamedTuple):
    """What to ship: files, or patterns of them, to ``topic`` of the appliance at ``address``.

    ``positions``: a directory, which is made; None: nobody goes on from where this call ends.
    ``patience_s``: how long something may be in the way without any progress; with ``follow`` it never gives up.
    ``data_dir``: that of the appliance, if it is on this host: its files are not read.
    """

    address: str
    files: Iterable[str]
    topic: str
    positions: Path | None
    ledger_topic: str
    follow: bool
    patience_s: float = 60.0
    data_dir: Path | None = None


class Shipped(NamedTuple):
    """What was shipped; ``unfinished``: bytes of last lines without a break that wait for a later call, by file."""

    stats: InputStats
    unfinished: dict[str, int]


async def ship(shipment: Shipment, on_progress: Callable[[InputStats], None]) -> Shipped:
    """Ship; return when everything is flushed, with ``follow`` when it is cancelled.

    What was read until it is cancelled is flushed and noted, and in the ledger.

    Raises:
        BadValue: the positions cannot be where they are to be.
        ApplianceError: nothing more could be sent for ``patience_s``; the message has the reason.
    """
    settings = _settings(shipment)
    with (
        _store_path(shipment) as path,
        contextlib.closing(PositionStore(path)) as store,
        make_producer(
            shipment.address,
            CLIENT,
            DELIVERY_TIMEOUT_MS if shipment.follow else int(1000 * shipment.patience_s),
        ) as producer,
        Admin(shipment.address) as admin,
    ):
        host = socket.gethostname()
        ledger = Ledger(NAME, host, shipment.ledger_topic, store, producer, shipment.address)
        outlet = Outlet(producer, admin)
        guard = Guard(shipment.data_dir)
        source = files_input(settings, Machinery(NAME, Config(), store, outlet, ledger, {}, guard, alone()))
        await ledger.recover()
        reading = source.run() if shipment.follow else source.read_all(is_last=shipment.positions is None)
        running = asyncio.create_task(reading)
        try:
            await _watch(running, source, ledger, store, shipment, on_progress)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await source.drain()
            store.commit()
            await ledger.publish(everything=True)
            await ledger.note_ends()
        return Shipped(ledger.stats(), source.unfinished())


@contextlib.contextmanager
def _store_path(shipment: Shipment) -> Iterator[Path]:
    """Where the positions of this shipment are; one that nobody goes on from has them as long as it lasts."""
    directory = shipment.positions
    if directory is None:
        with tempfile.TemporaryDirectory() as scratch:
            yield Path(scratch) / STORE
        return
    of_topic = directory / _cluster_id(shipment) / shipment.topic
    try:
        of_topic.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadValue(f"--positions {directory}: must be a directory, or none yet: {error.strerror}") from error
    yield of_topic / STORE


def _cluster_id(shipment: Shipment) -> str:
    with contextlib.closing(Cluster(shipment.address, client_name=CLIENT)) as cluster:
        known = cluster.refresh(()).cluster_id
    if not known:
        raise ZooKeeperAway("the appliance is of no cluster yet, since it has not reached ZooKeeper: try again")
    return known


async def _watch(
    running: asyncio.Task[None],
    source: FilesInput,
    ledger: Ledger,
    store: PositionStore,
    shipment: Shipment,
    on_progress: Callable[[InputStats], None],
) -> None:
    """Note what is flushed until the work is done."""
    clock = asyncio.get_running_loop().time
    messages, moved_s = 0, clock()
    while not running.done():
        await asyncio.wait({running}, timeout=LOOK_S)
        store.commit()
        stats = ledger.stats()
        on_progress(stats)
        if stats.messages != messages:
            messages, moved_s = stats.messages, clock()
        elif stats.trouble and not shipment.follow and clock() - moved_s > shipment.patience_s:
            raise RequestTimedOut(f"nothing was sent for {shipment.patience_s:.0f} s: {stats.trouble}")
    running.result()


def total_bytes(files: Iterable[str]) -> int:
    """How much there is now; raises InvalidRequest: there is nothing to ship."""
    paths = Patterns(_patterns(files), ()).paths()
    if not paths:
        raise InvalidRequest(f"no such file: {', '.join(files)}")
    return sum(Path(path).stat().st_size for path in paths)


def check(shipment: Shipment) -> None:
    """Raise InvalidRequest when no topic has the name that is given, whatever the files are called."""
    if fault := fault_of("files", _settings(shipment)):
        raise InvalidRequest(fault)


def _settings(shipment: Shipment) -> Files:
    return Files(include=_patterns(shipment.files), topic=shipment.topic, rotate_ms=1_000)


def _patterns(files: Iterable[str]) -> tuple[str, ...]:
    return tuple(str(Path(file).absolute()) for file in files)
