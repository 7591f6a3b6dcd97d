"""appliance.processes.control: whole messages, descriptors with them, EOF for a dead peer, bounded."""

from __future__ import annotations

import os
import resource
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from appliance.processes import control
from appliance.processes.control import FDS_MAX, MESSAGE_BYTES_MAX, Channel


def test_messages_and_descriptors_arrive_whole_and_in_order() -> None:
    left, right = Channel.pair()
    read_end, write_end = os.pipe()
    left.send(["one", 1, {"two": 2}])
    left.send(["with"], (read_end,))
    (first, none), (second, (fd,)) = right.receive()
    assert (first, none, second) == (["one", 1, {"two": 2}], [], ["with"])
    os.write(write_end, b"x")
    assert os.read(fd, 1) == b"x"
    assert right.receive() == []
    for number in (fd, read_end, write_end):
        os.close(number)
    left.close()
    right.close()


def test_what_the_kernel_does_not_take_waits() -> None:
    left, right = Channel.pair()
    sent = [[number, bytes(10_000)] for number in range(200)]
    for message in sent:
        left.send(message)
    assert left.pending
    received = [message for message, _ in right.receive()]
    while left.pending:
        left.flush()
        received += [message for message, _ in right.receive()]
    assert received == sent
    left.close()
    right.close()


def test_a_dead_peer_is_an_eof_and_messages_to_it_are_dropped() -> None:
    left, right = Channel.pair()
    left.send(["last words"])
    left.close()
    assert [message for message, _ in right.receive()] == [["last words"]]
    assert right.closed
    right.send(["nobody listens"])
    right.close()


def test_a_message_that_is_too_large_is_a_bug() -> None:
    left, right = Channel.pair()
    with pytest.raises(AssertionError, match="control message"):
        left.send([bytes(MESSAGE_BYTES_MAX)])
    left.close()
    right.close()


def test_descriptors_of_unsent_messages_are_closed() -> None:
    left, right = Channel.pair()
    read_end, write_end = os.pipe()
    while not left.pending:
        left.send([bytes(100_000)])
    left.send(["never sent"], (write_end,))
    os.close(write_end)
    left.close()
    assert os.read(read_end, 1) == b""  # the copy that waited is closed too
    os.close(read_end)
    right.close()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """No descriptor can be opened: the limit is below all numbers that are free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("count", range(1, FDS_MAX + 1))
@pytest.mark.parametrize("take", [Channel.take, lambda channel: channel.receive()[0]])
def test_descriptors_that_the_receiver_has_no_room_for_are_refused_by_name(
    count: int, take: Callable[[Channel], object]
) -> None:
    left, right = Channel.pair()
    read_end, write_end = os.pipe()
    left.send(["writer", "t", 0], [write_end] * count)
    os.close(write_end)
    with no_descriptors():
        assert take(right) == (["refused", "writer", "t", 0], [])
    assert os.read(read_end, 1) == b"", "no copy is left anywhere"
    left.send(["writer", "t", 0], [read_end])
    message, fds = right.receive()[0]
    assert message == ["writer", "t", 0] and len(fds) == 1, "and later it arrives"
    for fd in (read_end, *fds):
        os.close(fd)
    left.close()
    right.close()


def test_a_part_of_the_descriptors_is_none() -> None:
    left, right = Channel.pair()
    read_end, write_end = os.pipe()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    left.send(["lend"], [write_end, write_end])
    os.close(write_end)
    probe = os.dup(read_end)  # the lowest free number: room for exactly one descriptor below the limit
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + 1, hard))
    try:
        assert right.take() == (["refused", "lend"], [])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.read(read_end, 1) == b""
    os.close(read_end)
    left.close()
    right.close()


def test_a_sender_without_descriptors_is_told_and_nothing_is_sent() -> None:
    left, right = Channel.pair()
    read_end, write_end = os.pipe()
    while not left.pending:
        left.send([bytes(100_000)])
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        left.send(["worker"], (read_end, write_end))
    left.send(["after"])
    received = []
    while left.pending:
        received += [message for message, _ in right.receive()]
        left.flush()
    received += [message for message, _ in right.receive()]
    assert ["worker"] not in received and received[-1] == ["after"]
    with no_descriptors():  # while the kernel takes it no copy is needed
        left.send(["worker"], (read_end,))
    assert right.receive()[0][0] == ["worker"]
    left.close()
    right.close()
    for fd in (read_end, write_end):
        os.close(fd)


def test_a_peer_that_does_not_take_its_messages_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "QUEUE_BYTES_MAX", 1 << 20)
    left, right = Channel.pair()
    sent = 0
    while not left.closed:
        left.send([bytes(10_000)])
        sent += 1
        assert sent < 1_000
    assert not left.pending
    left.send(["dropped"])
    left.close()
    right.close()


def test_a_living_peer_that_is_given_up_is_told_and_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody does what cannot be answered, and whoever waits for an answer learns that none will come."""
    monkeypatch.setattr(control, "QUEUE_BYTES_MAX", 100_000)
    left, right = Channel.pair()
    read_end, write_end = os.pipe()
    for number in range(3):
        right.send(["do", number], (write_end,))
    os.close(write_end)
    while not left.closed:
        left.send([bytes(10_000)])
    assert left.receive() == left.receive(rest=True) == [] and left.take() == (None, [])
    poll = select.poll()
    poll.register(left.fileno(), select.POLLIN)
    assert not poll.poll(0), "a hang-up would say that the peer has ended"
    assert os.read(read_end, 1) == b"", "no descriptor is left in the channel"
    received = right.receive()
    assert right.closed and all(message == [bytes(10_000)] for message, _ in received)
    right.send(["too late"])
    right.close()
    assert poll.poll(0), "the loop wakes up when the peer has ended"
    assert left.receive(rest=True) == [] and left.take() == (None, [])
    left.close()
    os.close(read_end)


def test_the_last_words_of_a_peer_that_left_messages_unread_arrive() -> None:
    left, right = Channel.pair()
    left.send(["unread"])
    right.send(["last words"])
    right.close()
    assert [message for message, _ in left.receive()] == [["last words"]]
    assert left.closed
    left.close()
