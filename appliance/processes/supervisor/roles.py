"""The life of the supervisor's children: one way for all that it forks itself.

A *role* is what processes are for; its children are told apart by their keys: a worker's index, an input's name, the
partitions that an opener opens, "" where there is one only.  Each key is in one of four states::

    state      the supervisor has      leaves it by                             then
    gone       nothing                 start                                    starting
    starting   a wanted action         forked                                   running
                                       the machine refuses                      starting, tried again
                                       not needed any more; retire, stop        gone
    running    a child                 its end, of a role that stays            starting, after a delay, which
                                                                                grows while it dies young
                                       its end, of any other                    gone
                                       retire (a message), kill                 retiring
    retiring   a child that was        its end                                  gone; starting, if it was wanted
               asked to end                                                     meanwhile

An ordered stop asks all roles to end, one after the other (:meth:`.supervisor.Supervisor._stop`).  A role that has been
asked goes on from *starting* to *gone*, from *running* to *retiring*, and forks nobody any more (:meth:`Role.stop`).
Those that do one piece of work and have no other use for their channel end at once, in the middle of it
(:func:`interruptible`): all of them may be killed at any instruction, and their work is begun again at the next start.

The roles::

    role          key         begun                           stays   when one dies by itself
    nursery       ""          before all others               yes     writers go on; those that it was to fork have
                                                                      ended, and are wanted again
    network       index       at the start                    yes     its clients connect to another one
    coordinator   ""          at the start                    yes     the next one is told all that it was told
    inspector     ""          when messages are served        yes     reports that wait are answered by an error
    scrubber      ""          when the appliance is ready     yes     it goes on where it has stored to be
    console,      ""          when messages are served        yes     clients wait at its socket; what was told of
    metrics,                                                          conditions is in a file, and not told again
    alerts
    input         its member  when messages are served;       yes     senders wait at its sockets, files are read
                              when its settings change                on from the ledger
    opener        a batch     when partitions are to be       no      another one opens those that are left, three
                              opened                                  times at most
    remover       partitions  when no process has them open   no      those that are left are reported as interrupted
    cleaner       ""          at the start, after removers    no      another one, a minute later
    repairer      partition   when no process has it open     no      the partition is opened, and the order fails
    compactor     partition   by an order                     no      the coordinator orders it again
    writer        partition   when it is written to, if       yes     what it has not answered fails, connections
                              there is room for one more              that it served end; the next one recovers the log

Writers have a queue besides, with states of its own (:mod:`.writers`), and are forked by the nursery: of them the
table has what their death leaves, no more.  A child whose supervisor has died is killed by the kernel
(:func:`~appliance.processes.child.become_child`), in whatever state, but for writers: they close their logs first.
"""

from __future__ import annotations

import _thread
import os
import select
from collections.abc import Callable, Collection, Hashable, Iterator
from enum import Enum
from typing import Generic, NamedTuple, TypeVar, assert_never

from ...shared.heartbeats import Heart
from ..child import become_child
from ..control import Channel
from ..messages import TO_STOPPABLE, ProcessMessage, Stop
from .actions import Actions
from .children import Children
from .fork import Child, RoleName

Key = TypeVar("Key", bound=Hashable)


class ChildState(Enum):
    GONE = "gone"
    STARTING = "starting"
    RUNNING = "running"
    RETIRING = "retiring"


class Process(NamedTuple):
    """What a child is to do.

    Attributes:
        run: runs in the child, with its end of the control channel and its heart; returns the exit status.
        title: its name in ``ps``.
        keep: what it keeps and others close: :data:`.children.LISTENERS`, :data:`.children.LOCK`, its sockets.
        works: it does one long piece of work and ends.
    """

    run: Callable[[Channel, Heart], int]
    title: str
    keep: Collection[str] = ()
    works: bool = False


def interruptible(work: Callable[[Channel], int]) -> Callable[[Channel, Heart], int]:
    """What such a child runs: ``work``, which may be cut off between any two instructions, until Stop comes.

    It may wait for a disk, or read a log of many gigabytes, so another thread takes the message.
    """

    def run(channel: Channel, _: Heart) -> int:
        _thread.start_new_thread(_end_when_stopped, (channel,))
        return work(channel)

    return run


def _end_when_stopped(channel: Channel) -> None:
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    while not channel.closed:  # else the supervisor is gone
        poll.poll()
        for message, _ in channel.receive(TO_STOPPABLE):
            match message:
                case Stop():
                    os._exit(0)
                case _:
                    assert_never(message)
    os._exit(0)


class Role(Generic[Key]):
    """The children of one role."""

    def __init__(
        self,
        name: RoleName,
        action: str,
        children: Children,
        actions: Actions,
        prepare: Callable[[Key], Process | None],
        *,
        stays: bool = False,
        on_started: Callable[[Key], None] = lambda _: None,
    ) -> None:
        """Define it; nothing is started.

        Args:
            action: the start as ``status`` shows it while the machine refuses: "start the scrubber".
            prepare: what a child is to do; None: none is needed any more.  May raise REFUSALS.
            stays: one that ends by itself is started again.
            on_started: called when a child runs, and takes messages.
        """
        self._name, self._children = name, children
        self._prepare, self._stays, self._on_started = prepare, stays, on_started
        self._pid = os.getpid()
        self._by_key: dict[Key, Child] = {}
        self._again: set[Key] = set()
        """Those that retire and are wanted again."""
        self.stops = False
        """The appliance stops: none is started any more."""
        self._start = actions.define(action, self._fork)

    @property
    def all_gone(self) -> bool:
        return not self._by_key and not self._start.is_wanted

    def __iter__(self) -> Iterator[Key]:
        """The keys of children that run or retire."""
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def state(self, key: Key) -> ChildState:
        child = self._by_key.get(key)
        if child is not None:
            return ChildState.RETIRING if child.stopping else ChildState.RUNNING
        return ChildState.STARTING if key in self._start else ChildState.GONE

    def child(self, key: Key) -> Child | None:
        """The child that runs or retires."""
        return self._by_key.get(key)

    # ---- starting

    def start(self, key: Key, delay_ms: int = 0) -> None:
        """Start a child, now or after a delay; one that runs stays, one that retires is followed by another.

        Once the role has been asked to stop, nothing is done.
        """
        if self.stops:
            return
        child = self._by_key.get(key)
        if child is None:
            self._start.want(key, delay_ms)
        elif child.stopping:
            self._again.add(key)

    def _fork(self, key: Key) -> None:
        if key in self._by_key:
            return
        process = self._prepare(key)
        if process is None:
            return
        pid = self._pid

        def run(channel: Channel, heart: Heart) -> int:
            become_child(process.title, pid)
            return process.run(channel, heart)

        self._by_key[key] = self._children.fork(self._name, key, run, process.keep, work=process.works)
        self._on_started(key)

    # ---- messages

    def send(self, key: Key, message: ProcessMessage, fds: tuple[int, ...] = ()) -> None:
        """Send a control message; to one that is gone nothing is sent.

        Raises:
            OSError: its descriptors could not be sent.
        """
        self._children.send(self._by_key.get(key), message, fds)

    def send_all(self, message: ProcessMessage) -> None:
        for child in self._by_key.values():
            self._children.send(child, message)

    # ---- ending

    def retire(self, key: Key) -> None:
        """Ask a child to end; one that has not been started is not."""
        self._cancel(key)
        child = self._by_key.get(key)
        if child is not None and not child.stopping:
            child.stopping = True
            self._children.send(child, Stop())

    def kill(self, key: Key) -> None:
        """End a child whose work has no use any more; one that has not been started is not."""
        self._cancel(key)
        child = self._by_key.get(key)
        if child is not None:
            child.stopping = True
            child.kill()

    def _cancel(self, key: Key) -> None:
        self._start.drop(key)
        self._again.discard(key)

    def start_no_more(self) -> None:
        """Start no child from now on, whoever wants one; those that run go on."""
        self.stops = True
        self._start.drop_all()
        self._again.clear()

    def stop(self) -> None:
        """Ask all children to end, and start none from now on: the appliance stops."""
        self.start_no_more()
        for key in list(self._by_key):
            self.retire(key)

    def on_end(self, child: Child) -> None:
        """Take the end of a child: forget it, and start another one if need be."""
        key: Key = child.key
        del self._by_key[key]
        if key in self._again:
            self._again.discard(key)
            self._start.want(key)
        elif self._stays and not self.stops:
            self._children.start_again(child, self._start, key)
