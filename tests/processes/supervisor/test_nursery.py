"""The nursery: whoever dies at whichever step, each writer ends once, is started again, and no partition has two."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import combinations
from pathlib import Path

import pytest

from appliance.client import Admin, Producer
from appliance.config import Config
from appliance.names import TopicPartition
from appliance.processes.child import become_child
from appliance.processes.control import Channel
from appliance.processes.messages import (
    TO_NURSERY,
    ChangeSettings,
    Forked,
    ForkWriter,
    Offline,
    ProcessMessage,
    Reap,
    Stop,
    WorkerChannel,
    WriterOpened,
)
from appliance.processes.supervisor.actions import Actions
from appliance.processes.supervisor.children import ChildEnd, Children, state_of
from appliance.processes.supervisor.fork import Child
from appliance.processes.supervisor.nursery import Nursery
from appliance.shared.heartbeats import Heart

from ...support.server import Server, stopped, wait_for


class Steps:
    """The supervisor's side of one writer, with the test in the place of the nursery and of the writer."""

    def __init__(self) -> None:
        self.messages: list[ProcessMessage] = []
        self.ended: list[Child] = []
        self._epoll = select.epoll()
        self._ours, self.nursery = Channel.pair()
        self.children = Children(
            self._epoll,
            10_000,
            Actions(lambda: None),
            on_change=lambda: None,
        )
        self.writer = self.expect("writer")

    def expect(self, key: str) -> Child:
        return self.children.expect("writer", key, lambda _, fd: self._ours.send(Reap(0), (fd,)))

    def take_order(self) -> Channel:
        """In the nursery: the writer's end of its channel."""
        order = self.nursery.take_message(TO_NURSERY)
        assert order is not None
        (fd,) = order[1]
        return Channel(socket.socket(fileno=fd))

    def turn(self) -> None:
        for fd, event in self._epoll.poll(0):
            for child, what in self.children.on_event(fd, event):
                if isinstance(what, ChildEnd):
                    self.ended.append(child)
                else:
                    self.messages.append(what)

    def close(self) -> None:
        for one in (self._ours, self.nursery, self._epoll, self.writer.channel):
            one.close()


class Hatchery:
    """A real nursery, and the supervisor's side of its writers."""

    def __init__(self, data_dir: Path) -> None:
        self.ended: list[Child] = []
        self._epoll = select.epoll()
        self._actions = Actions(lambda: None)
        self.children = children = Children(
            self._epoll,
            2_000,
            self._actions,
            on_change=lambda: None,
        )
        supervisor = os.getpid()

        def nursery(channel: Channel, heart: Heart) -> int:
            become_child("nursery", supervisor)
            return Nursery(Config(), data_dir, [], children.heart_at, channel, heart).run()

        self.nursery = children.fork("nursery", "", nursery)

    def order(self, partition: int) -> Child:
        def send(cell: int, fd: int) -> None:
            self.children.send(self.nursery, ForkWriter(TopicPartition("t", partition), {}, "no table", cell), (fd,))

        return self.children.expect("writer", ("t", partition), send)

    def reap(self, pid: int) -> None:
        self.children.send(self.nursery, Reap(pid))

    def stop(self) -> None:
        self.children.send(self.nursery, Stop())

    @property
    def beats(self) -> int:
        """How often the nursery's heart has beaten."""
        return self.children.seen(self.children.heart_of(self.nursery))

    def turn_until(self, condition: Callable[[], bool]) -> None:
        def turned() -> bool:
            for fd, event in self._epoll.poll(0):
                self.ended += (child for child, what in self.children.on_event(fd, event) if isinstance(what, ChildEnd))
            self._actions.run_due()
            return condition()

        wait_for(turned, "the condition")

    def __enter__(self) -> Hatchery:
        return self

    def __exit__(self, *_: object) -> None:
        self.children.kill_all()
        self._epoll.close()


@pytest.fixture
def steps() -> Iterator[Steps]:
    made = Steps()
    yield made
    made.close()


def test_an_order_that_dies_with_the_nursery_is_a_writer_that_has_ended(steps: Steps) -> None:
    steps.turn()
    assert not steps.ended
    steps.nursery.close()
    steps.turn()
    assert steps.ended == [steps.writer] and steps.writer.pid == 0


def test_a_writer_that_is_forked_outlives_the_nursery_and_ends_by_itself(steps: Steps) -> None:
    channel = steps.take_order()
    steps.nursery.close()
    steps.turn()
    assert not steps.ended
    channel.send(Forked(os.getpid()))
    channel.send(WriterOpened())
    steps.turn()
    assert (steps.writer.pid, steps.messages, steps.ended) == (os.getpid(), [WriterOpened()], [])
    steps.writer.channel.send(WorkerChannel("unread"))
    channel.send(Offline("its last words"))
    channel.close()
    steps.turn()
    assert steps.messages[1:] == [Offline("its last words")], "read although it had left a message unread"
    assert steps.ended == [steps.writer]


def test_the_last_words_of_a_writer_are_read_although_a_message_to_it_has_failed(steps: Steps) -> None:
    """Else a log that cannot be trusted would be given to another writer."""
    channel = steps.take_order()
    channel.send(Forked(os.getpid()))
    channel.send(Offline("its last words"))
    channel.close()
    steps.children.send(steps.writer, ChangeSettings([], {}))
    assert steps.writer.channel.closed
    steps.turn()
    assert (steps.messages, steps.ended) == ([Offline("its last words")], [steps.writer])


def standing_still() -> int:
    """The pid of a process that has all our descriptors and does nothing, for a minute at most."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        signal.pause()
        os._exit(0)
    return pid


NURSERY = [["tell", "close"], ["close"]]
"""What the nursery does after the fork; without its message it has died."""
WRITER = [["tell", "opened", "close"], ["tell", "close"], ["close"]]


def merges(left: list[str], right: list[str]) -> Iterator[list[tuple[str, str]]]:
    """All orders of the steps of both; a step: who, what."""
    for places in combinations(range(len(left) + len(right)), len(left)):
        lefts, rights = iter(left), iter(right)
        yield [
            ("nursery", next(lefts)) if place in places else ("writer", next(rights))
            for place in range(len(left) + len(right))
        ]


@pytest.mark.parametrize("writer_does", WRITER, ids="-".join)
@pytest.mark.parametrize("nursery_does", NURSERY, ids="-".join)
def test_the_steps_after_a_fork_in_every_order(nursery_does: list[str], writer_does: list[str]) -> None:
    """A pid is known from the first message on, and for as long as it is this writer's; the end comes once, last."""
    for merged in merges(nursery_does, writer_does):
        steps = Steps()
        writers_end = steps.take_order()
        ends = {"writer": writers_end, "nursery": Channel(socket.socket(fileno=os.dup(writers_end.fileno())))}
        told = False
        for number, (who, what) in enumerate(merged):
            if what == "tell":
                ends[who].send(Forked(4_711))
                told = True
            elif what == "opened":
                ends[who].send(WriterOpened())
            else:
                ends[who].close()
            steps.turn()
            over = number == len(merged) - 1
            assert steps.writer.pid == (4_711 if told else 0), merged
            assert steps.ended == ([steps.writer] if over else []), merged
        assert steps.messages == [WriterOpened()] * ("opened" in writer_does), merged
        steps.close()


def test_a_writer_that_hangs_before_its_first_message_is_found_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real nursery; the writer stands still from its first instruction on, and so its cell never changes."""
    monkeypatch.setattr("appliance.processes.writer.run", lambda *_: signal.alarm(60) or signal.pause())
    with Hatchery(tmp_path) as hatchery:
        writer = hatchery.order(0)
        hatchery.children.watch_hearts()
        hatchery.turn_until(lambda: writer in hatchery.ended)
        assert writer.pid and hatchery.children.hangs["writer"]
        hatchery.turn_until(lambda: state_of(writer.pid) in ("Z", ""))


def test_a_writer_is_killed_by_its_pid_only_while_its_channel_is_open(steps: Steps) -> None:
    """After that the pid may be anybody's."""
    pid = standing_still()  # first, so that it does not have the writer's end of the channel, and keep it open
    channel = steps.take_order()
    steps.writer.kill()  # its pid is not known
    channel.send(Forked(pid))
    steps.turn()
    channel.close()
    steps.writer.kill()
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def close_and_stay(_: object, control: Channel) -> None:
    """Instead of a writer: one whose files the disk keeps when it is to end."""
    control.close()
    signal.alarm(60)
    signal.pause()


def test_a_writer_that_takes_long_to_end_is_reaped_then_and_keeps_no_other_from_being_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose files the disk keeps, or, for a pid that is used again, as one that goes on."""

    monkeypatch.setattr("appliance.processes.writer.run", close_and_stay)
    with Hatchery(tmp_path) as hatchery:
        slow = hatchery.order(0)
        hatchery.turn_until(lambda: slow in hatchery.ended)
        hatchery.reap(slow.pid)
        next_one = hatchery.order(1)
        hatchery.turn_until(lambda: next_one in hatchery.ended)
        assert state_of(slow.pid) not in ("", "Z") and next_one.pid
        os.kill(slow.pid, signal.SIGKILL)
        os.kill(next_one.pid, signal.SIGKILL)
        hatchery.turn_until(lambda: state_of(slow.pid) == "")
        hatchery.reap(next_one.pid)
        hatchery.turn_until(lambda: state_of(next_one.pid) == "")


def test_a_nursery_that_is_stopped_ends_after_its_last_writer_and_does_not_seem_to_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: writers that live on after the end of their channels."""

    monkeypatch.setattr("appliance.processes.writer.run", close_and_stay)
    with Hatchery(tmp_path) as hatchery:
        writers = [hatchery.order(partition) for partition in range(2)]
        hatchery.turn_until(lambda: set(writers) <= set(hatchery.ended))
        hatchery.reap(writers[0].pid)
        before = hatchery.beats
        hatchery.stop()
        hatchery.turn_until(lambda: hatchery.beats >= before + 4)
        for writer in writers:
            assert hatchery.nursery not in hatchery.ended
            os.kill(writer.pid, signal.SIGKILL)
        hatchery.turn_until(lambda: hatchery.nursery in hatchery.ended)
        assert [state_of(writer.pid) for writer in writers] == ["", ""]


def test_all_that_are_left_are_killed_before_the_first_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of two writers ends, as its channel shows it, only when the other one has ended, too."""
    monkeypatch.setattr("appliance.processes.supervisor.children.END_MS_MAX", 60_000)
    steps = Steps()
    steps.expect("another")
    ends = [steps.take_order(), steps.take_order()]
    pids = [standing_still(), standing_still()]
    for end, pid in zip(ends, pids, strict=True):
        end.send(Forked(pid))
        end.close()
    steps.turn()
    assert sorted(child.pid for child in steps.children) == sorted(pids)
    steps.children.kill_all()
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [-signal.SIGKILL] * 2
    assert "has not ended yet" not in caplog.text
    steps.close()


def test_a_process_that_does_not_end_is_not_waited_for_without_bound(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("appliance.processes.supervisor.children.END_MS_MAX", 10)
    with closing(steps.take_order()):
        steps.children.kill_all()
    assert "has not ended yet" in caplog.text and list(steps.children) == []


def test_a_writer_whose_messages_are_refused_is_killed_and_ends_once(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.processes.control.QUEUE_BYTES_MAX", 1 << 20)
    channel = steps.take_order()
    pid = standing_still()
    channel.send(Forked(pid))
    channel.close()
    steps.turn()
    while not steps.writer.channel.closed:
        steps.children.send(steps.writer, ChangeSettings([], {"x": "x" * 100_000}))
    os.waitpid(pid, 0)
    steps.turn()
    steps.turn()
    assert steps.ended == [steps.writer]


# ---- on a real appliance


def produce(server: Server, partitions: range) -> None:
    with Producer(server.native, acks=-1) as producer:
        for partition in partitions:
            producer.send("t", b"x", partition=partition)
        producer.flush(60)
        assert producer.delivered == len(partitions)


def of_partition(server: Server) -> dict[int, int]:
    return {row["partition"]: row["pid"] for row in server.processes("writer")}


def test_a_nursery_that_is_killed_with_orders_unread_costs_nothing(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"network.workers": 1})
    with Admin(server.native) as admin:
        admin.create_topic("t", 6)
    produce(server, range(2))
    before = wait_for(lambda: len(found := of_partition(server)) == 2 and found, "two writers")
    nursery = server.pid_of("nursery")
    with Producer(server.native, acks=-1) as producer, stopped(nursery, may_die=True):
        for partition in range(6):
            producer.send("t", b"y", partition=partition)
        wait_for(lambda: producer.delivered == 2, "answers of the writers that run")
        os.kill(nursery, signal.SIGKILL)
        producer.flush(60)
        assert producer.delivered == 6
    after = wait_for(lambda: len(found := of_partition(server)) == 6 and found, "a writer for each")
    assert before.items() <= after.items(), "those that ran have gone on"
    assert server.pids("nursery") not in ([], [nursery])


def test_a_killed_writer_is_reaped_and_the_journal_has_its_status(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"network.workers": 1})
    with Admin(server.native) as admin:
        admin.create_topic("t")
    produce(server, range(1))
    ((_, pid),) = wait_for(lambda: of_partition(server), "the writer").items()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the process, reaped")
    wait_for(lambda: f"writer t-0 (pid {pid}) ended with status -9" in server.log(), "a line")
    produce(server, range(1))


SUBREAPER = "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1); os.execv(sys.argv[1], sys.argv[1:])"
"""Runs its arguments as a process that gets all orphans below it, as process 1 of a container does."""


def test_orphans_of_a_killed_nursery_are_reaped_where_the_supervisor_gets_them(
    make_appliance: Callable[..., Server],
) -> None:
    server = make_appliance(**{"network.workers": 1, "within": (sys.executable, "-c", SUBREAPER)})
    assert server.process is not None
    with Admin(server.native) as admin:
        admin.create_topic("t", 2)
    produce(server, range(2))
    first = wait_for(lambda: len(found := of_partition(server)) == 2 and found, "two writers")
    nursery = server.pid_of("nursery")
    server.kill(nursery)
    wait_for(lambda: server.pids("nursery") not in ([], [nursery]), "another nursery")
    assert all(parent_of(pid) == server.process.pid for pid in first.values())
    for pid in first.values():
        server.kill(pid)
    wait_for(lambda: not any(state_of(pid) for pid in first.values()), "the end of both, reaped")
    produce(server, range(2))
    assert all(f"reaped the orphan {pid}, ended with status -9" in server.log() for pid in first.values())
    assert server.stop() == 0


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
