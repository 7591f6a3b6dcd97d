"""appliance.processes.control: whole messages, descriptors with them, EOF for a dead peer, bounded."""

from __future__ import annotations

import os

import pytest

from appliance.processes.control import MESSAGE_BYTES_MAX, Channel


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
