"""The nursery forks the writers, for the supervisor: a process with one thread, few descriptors and few pages.

A fork copies the tables of its process's pages and descriptors, and then every page that either side writes to.  A
thousand writers cost the supervisor, which has descriptors for each of them, as much as all the rest of its work.  The
nursery does nothing but fork, so little of it changes between two forks, and its children have nothing to close.

What is made at its first use each writer makes again.  So the patterns, decoders and defaults of topics with which a
log is opened are made before, at the import or in :meth:`Nursery.run`: of 5 MB that a writer had of its own, 0.8 were
for them.

The supervisor makes the control channel of a writer, sends the writer's end with the order, and closes it.  From then
on one process at a time has that end, and the supervisor knows by its closing that the writer has ended::

    the writer is     its end is held by            the supervisor knows
    ordered           the message to the nursery    nothing
    being forked      the nursery, then both        nothing
    forked            both, then the writer         its pid: both tell it as their first message, Forked, and
                                                    the nursery before it closes the end.  So a writer that hangs
                                                    from its first instruction on can be killed
    ended             the nursery, then nobody      that it has ended: its own end reports a hang-up

    who dies          while the writer is           then
    the nursery       ordered                       the kernel drops the message: no writer comes of it
                      being forked, or forked       its end is the writer's alone; the writer goes on, and tells its pid
    the writer        being forked, or forked       hang-up, once the nursery has closed the end
    the supervisor    in any state                  the nursery is killed; the writer ends at the end of its channel

Until the nursery has closed the end it does not reap, so a pid is a writer's own for as long as there is no hang-up.
One case is left: a nursery that dies between a fork and its message, and a writer that stands still before its own.  It
is not killed, and its partition waits until it goes on.

The supervisor starts another writer for a partition only after the hang-up, so no partition ever has two.  A killed
nursery is started again.  Its last message is Stop, when all channels have reported a hang-up: it waits for the ends of
the processes, and ends.  When the machine has no process left, it reports that on the writer's channel, in its place.
It tells the supervisor of a writer that was killed, or ended by a bug.

:class:`Nursery` is the process, :class:`NurseryChild` what the supervisor has of it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, assert_never

from ... import libc
from ...config import Config
from ...log.recovery import boot_id
from ...machine_limits import limit_of
from ...names import TopicPartition
from ...shared.doorbell import MarkedDoorbell
from ...shared.heartbeats import Heart
from .. import writer
from ..child import set_log_level
from ..control import Channel, tell
from ..messages import TO_NURSERY, Forked, ForkWriter, Lacking, Reap, Reload, Stop, Unreceivable, WriterEnded
from .actions import Actions, reason_of
from .children import LOCK, Children
from .fork import EXIT_BUG
from .hosted import HostedPartition
from .roles import Process, Role
from .workers import Workers

logger = logging.getLogger(__name__)

REAP_MS: Final = 10
"""When the nursery looks again for a writer that has closed its channel and has not ended; then twice as late."""


class Nursery:
    """The process: :meth:`run` in a forked child."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        doorbells: Sequence[MarkedDoorbell],
        heart_at: Callable[[int], Heart],
        control: Channel,
        heart: Heart,
    ) -> None:
        """``heart_at(index)``: a writer's cell."""
        self._config, self._data_dir, self._doorbells = config, data_dir, doorbells
        self._heart_at, self._control, self._heart = heart_at, control, heart
        self._partitions: dict[int, TopicPartition] = {}
        """The partitions of the writers that have not been reaped, by pid."""
        self._ending: set[int] = set()
        """Those that have closed their channels."""
        self._wait_ms = heart.beat_ms

    def run(self) -> int:
        """Run the process, from fork to exit; return its exit status."""
        boot_id()  # which all writers remember, as what follows
        _ = self._config.topic_defaults
        gc.freeze()
        self.serve()
        return 0

    def serve(self) -> None:
        """Serve until the supervisor stops the nursery, or is gone."""
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        while not self._control.closed:
            self._heart.beat()
            if not poll.poll(self._wait_ms):
                self._reap()
                continue
            taken = self._control.take_message(
                TO_NURSERY
            )  # one at a time: no writer inherits an end of another's channel
            if taken is None:
                continue
            message, fds = taken
            match message:
                case Unreceivable():  # its end is closed: for the supervisor it has ended
                    pass
                case ForkWriter():
                    self._fork(message, fds[0])
                case Reap(pid):  # it may take a while to end, or be an earlier nursery's
                    if pid in self._partitions:
                        self._ending.add(pid)
                        self._wait_ms = REAP_MS
                    self._reap()
                case Reload(config):
                    self._config = config
                    _ = config.topic_defaults
                    set_log_level(config.log.level)
                case Stop():
                    with self._heart.working():
                        self._reap(wait=True)  # so that whoever has stopped the appliance finds none of its processes
                    return
                case _:
                    assert_never(message)

    def _fork(self, order: ForkWriter, fd: int) -> None:
        """Fork a writer.  The less is done here and the more by the child, the fewer pages are copied twice."""
        try:
            pid = libc.fork_only()
        except OSError as error:
            lacking = OSError(error.errno, "no process for a writer")
            tell(fd, Lacking(reason_of(lacking), limit_of(lacking)))
        else:
            if pid == 0:
                self._become_writer(order, fd)
            self._partitions[pid] = order.partition
            tell(fd, Forked(pid))
        os.close(fd)

    def _become_writer(self, order: ForkWriter, fd: int) -> None:
        """In the child: be a writer, and exit."""
        topic, partition = order.partition
        status = EXIT_BUG
        try:
            os.close(self._control.fileno())
            arguments = writer.WriterArguments(
                *(self._config, self._data_dir, topic, partition, order.settings, order.table),
                *(self._doorbells, self._heart_at(order.heart)),
            )
            status = writer.run(arguments, Channel(socket.socket(fileno=fd)))
        except BaseException:
            logger.exception("writer %s-%d: a bug ends this process", topic, partition)
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _reap(self, wait: bool = False) -> None:
        """Reap the writers that have ended.

        A disk, or a large memory, may delay the end of a process that has closed its channel.  ``wait``: wait for all.
        """
        with contextlib.suppress(ChildProcessError):  # none is left
            while self._partitions:
                ended, status = os.waitpid(-1, 0 if wait else os.WNOHANG)
                if not ended:
                    break
                self._note(ended, status)
        beat_ms = self._heart.beat_ms
        self._wait_ms = min(2 * self._wait_ms, beat_ms) if self._ending else beat_ms

    def _note(self, pid: int, status: int) -> None:
        self._ending.discard(pid)
        topic, partition = self._partitions.pop(pid)
        exit_status = os.waitstatus_to_exitcode(status)
        if exit_status < 0 or exit_status == EXIT_BUG:
            logger.warning("writer %s-%d (pid %d) ended with status %d", topic, partition, pid, exit_status)
            self._control.send(WriterEnded(TopicPartition(topic, partition), exit_status))


class NurseryChild:
    """The nursery.  ``on_started`` is called when it has been forked, and takes orders."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        children: Children,
        actions: Actions,
        workers: Workers,
        on_started: Callable[[], None],
    ) -> None:
        self._config, self._data_dir = config, data_dir
        self._children, self._workers = children, workers
        self.role = Role(
            *("nursery", "start the nursery", children, actions, self._prepare),
            stays=True,
            on_started=lambda _: on_started(),
        )

    @property
    def runs(self) -> bool:
        return "" in self.role

    def start(self) -> None:
        """Call it early: the less this process has then, the less each fork copies."""
        self.role.start("")

    def _prepare(self, _: str) -> Process:
        config, doorbells, heart_at = self._config, self._workers.doorbells, self._children.heart_at

        def run(channel: Channel, heart: Heart) -> int:
            return Nursery(config, self._data_dir, doorbells, heart_at, channel, heart).run()

        return Process(run, "nursery", {LOCK})

    def order(self, partition: TopicPartition, row: HostedPartition, cell: int, fd: int) -> None:
        """Order a writer that beats in ``cell``; ``fd``: its end of its control channel.

        Raises:
            OSError: the descriptor could not be sent.
        """
        self.role.send("", ForkWriter(partition, row.settings, row.table, cell), (fd,))

    def reap(self, pid: int) -> None:
        """Let it reap a writer that has ended."""
        self.role.send("", Reap(pid))

    def reload(self, config: Config) -> None:
        self._config = config
        self.role.send("", Reload(config))
