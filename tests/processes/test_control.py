"""appliance.processes.control: whole messages, descriptors with them, EOF for a dead peer, bounded."""

from __future__ import annotations

import os
import resource
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from msgspec.msgpack import Decoder

from appliance.config import Config
from appliance.processes import control
from appliance.processes.control import FDS_MAX, MESSAGE_BYTES_MAX, Channel
from appliance.processes.messages import ProcessMessage, Reload, Stop, UnknownMessage, Unreceivable


class Words(ProcessMessage):
    text: str
    data: bytes = b""


TO_TEST: Final[Decoder[Words | Stop | Unreceivable]] = Decoder(Words | Stop | Unreceivable)


def test_messages_and_descriptors_arrive_whole_and_in_order() -> None:
    left, right = Channel.pair()
    read_end, write_end = os.pipe()
    left.send(Words("one", b"two"))
    left.send(Stop(), (read_end,))
    (first, none), (second, (fd,)) = right.receive(TO_TEST)
    assert (first, none, second) == (Words("one", b"two"), [], Stop())
    os.write(write_end, b"x")
    assert os.read(fd, 1) == b"x"
    assert right.receive(TO_TEST) == []
    for number in (fd, read_end, write_end):
        os.close(number)
    left.close()
    right.close()


def test_what_the_kernel_does_not_take_waits() -> None:
    left, right = Channel.pair()
    sent = [Words(str(number), bytes(10_000)) for number in range(200)]
    for message in sent:
        left.send(message)
    assert left.pending
    received = [message for message, _ in right.receive(TO_TEST)]
    while left.pending:
        left.flush()
        received += [message for message, _ in right.receive(TO_TEST)]
    assert received == sent
    left.close()
    right.close()


def test_a_sender_that_goes_on_does_not_keep_its_receiver_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: another message comes whenever one was received."""
    monkeypatch.setattr(control, "RECEIVED_MAX", 3)
    left, right = Channel.pair()
    take = right.take_message
    left.send(Words("first"))

    def taken(decoder: Any) -> Any:
        message = take(decoder)
        if sent[-1] < 7:
            sent.append(sent[-1] + 1)
            left.send(Words(str(sent[-1])))
        return message

    sent = [0]
    monkeypatch.setattr(right, "take_message", taken)
    assert len(right.receive(TO_TEST)) == len(right.receive(TO_TEST)) == 3
    assert len(right.receive(TO_TEST, rest=True)) == 2, "of one that has ended, all"
    left.close()
    right.close()


def test_a_dead_peer_is_an_eof_and_messages_to_it_are_dropped() -> None:
    left, right = Channel.pair()
    left.send(Words("last words"))
    left.close()
    assert [message for message, _ in right.receive(TO_TEST)] == [Words("last words")]
    assert right.closed
    right.send(Words("nobody listens"))
    right.close()


def test_a_message_that_is_too_large_is_a_bug() -> None:
    left, right = Channel.pair()
    with pytest.raises(AssertionError, match="Words of"):
        left.send(Words("", bytes(MESSAGE_BYTES_MAX)))
    left.close()
    right.close()


def test_descriptors_of_unsent_messages_are_closed() -> None:
    left, right = Channel.pair()
    read_end, write_end = os.pipe()
    while not left.pending:
        left.send(Words("", bytes(100_000)))
    left.send(Words("never sent"), (write_end,))
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
@pytest.mark.parametrize(
    "take", [lambda channel: channel.take_message(TO_TEST), lambda channel: channel.receive(TO_TEST)[0]]
)
def test_descriptors_that_the_receiver_has_no_room_for_are_refused_by_name(
    count: int, take: Callable[[Channel], object]
) -> None:
    left, right = Channel.pair()
    read_end, write_end = os.pipe()
    left.send(Words("lent"), [write_end] * count)
    os.close(write_end)
    with no_descriptors():
        assert take(right) == (Unreceivable(Words("lent")), [])
    assert os.read(read_end, 1) == b"", "no copy is left anywhere"
    left.send(Words("lent"), [read_end])
    message, fds = right.receive(TO_TEST)[0]
    assert message == Words("lent") and len(fds) == 1, "and later it arrives"
    for fd in (read_end, *fds):
        os.close(fd)
    left.close()
    right.close()


def test_a_part_of_the_descriptors_is_none() -> None:
    left, right = Channel.pair()
    read_end, write_end = os.pipe()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    left.send(Words("lend"), [write_end, write_end])
    os.close(write_end)
    probe = os.dup(read_end)  # the lowest free number: room for exactly one descriptor below the limit
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + 1, hard))
    try:
        assert right.take_message(TO_TEST) == (Unreceivable(Words("lend")), [])
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
        left.send(Words("", bytes(100_000)))
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        left.send(Words("worker"), (read_end, write_end))
    left.send(Words("after"))
    received = []
    while left.pending:
        received += [message for message, _ in right.receive(TO_TEST)]
        left.flush()
    received += [message for message, _ in right.receive(TO_TEST)]
    assert Words("worker") not in received and received[-1] == Words("after")
    with no_descriptors():  # while the kernel takes it no copy is needed
        left.send(Words("worker"), (read_end,))
    assert right.receive(TO_TEST)[0][0] == Words("worker")
    left.close()
    right.close()
    for fd in (read_end, write_end):
        os.close(fd)


def test_a_peer_that_does_not_take_its_messages_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "QUEUE_BYTES_MAX", 1 << 20)
    left, right = Channel.pair()
    sent = 0
    while not left.closed:
        left.send(Words("", bytes(10_000)))
        sent += 1
        assert sent < 1_000
    assert not left.pending
    left.send(Words("dropped"))
    left.close()
    right.close()


def test_a_living_peer_that_is_given_up_is_told_and_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody does what cannot be answered, and whoever waits for an answer learns that none will come."""
    monkeypatch.setattr(control, "QUEUE_BYTES_MAX", 100_000)
    left, right = Channel.pair()
    read_end, write_end = os.pipe()
    for number in range(3):
        right.send(Words(str(number)), (write_end,))
    os.close(write_end)
    while not left.closed:
        left.send(Words("", bytes(10_000)))
    assert left.receive(TO_TEST) == left.receive(TO_TEST, rest=True) == [] and left.take_message(TO_TEST) is None
    poll = select.poll()
    poll.register(left.fileno(), select.POLLIN)
    assert not poll.poll(0), "a hang-up would say that the peer has ended"
    assert os.read(read_end, 1) == b"", "no descriptor is left in the channel"
    received = right.receive(TO_TEST)
    assert right.closed and all(message == Words("", bytes(10_000)) for message, _ in received)
    right.send(Words("too late"))
    right.close()
    assert poll.poll(0), "the loop wakes up when the peer has ended"
    assert left.receive(TO_TEST, rest=True) == [] and left.take_message(TO_TEST) is None
    left.close()
    os.close(read_end)


def test_the_last_words_of_a_peer_that_left_messages_unread_arrive() -> None:
    left, right = Channel.pair()
    left.send(Words("unread"))
    right.send(Words("last words"))
    right.close()
    assert [message for message, _ in left.receive(TO_TEST)] == [Words("last words")]
    assert left.closed
    left.close()


def test_a_message_that_the_receiver_does_not_take_is_a_bug_and_is_named() -> None:
    left, right = Channel.pair()
    read_end, write_end = os.pipe()
    left.send(Reload(Config()), (write_end,))
    os.close(write_end)
    with pytest.raises(UnknownMessage, match="Reload"):
        right.take_message(TO_TEST)
    assert os.read(read_end, 1) == b"", "its descriptors are closed"
    os.close(read_end)
    left.close()
    right.close()
