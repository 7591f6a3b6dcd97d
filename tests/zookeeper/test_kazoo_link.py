"""appliance.zookeeper.kazoo_link: what a request to ZooKeeper takes."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.protocol.connection import ConnectionDropped
from kazoo.protocol.serialization import Delete

from appliance.zookeeper.kazoo_connection import RECEIVE_BYTES, DirectHandler
from appliance.zookeeper.kazoo_link import kazoo_client


def test_who_waits_for_an_answer_is_told_in_the_thread_that_has_read_it() -> None:
    handler = DirectHandler()
    handler.start()
    try:
        told: list[threading.Thread] = []
        result = handler.async_result()
        result.rawlink(lambda _: told.append(threading.current_thread()))
        result.set(b"answer")
        assert told == [threading.current_thread()]
    finally:
        handler.stop()


@pytest.fixture
def connected() -> Iterator[tuple[Any, socket.socket]]:
    """A kazoo client whose connection is there, and its far end."""
    client = kazoo_client("127.0.0.1:1", None, handler=DirectHandler())
    near, far = socket.socketpair()
    near.setblocking(False)
    client._connection._socket, client._connection._received = near, bytearray()
    with near, far:
        yield client, far


def asked(client: Any, count: int) -> list[Any]:
    results = [client.handler.async_result() for _ in range(count)]
    client._pending.extend((Delete("/a", -1), result, xid) for xid, result in enumerate(results, 1))
    return results


def reply(xid: int) -> bytes:
    return struct.pack(">iiqi", 16, xid, 1, 0)


def test_replies_are_taken_however_they_are_cut(connected: tuple[Any, socket.socket]) -> None:
    """Each as soon as all of it has come: nothing else might wake the thread for it."""
    client, far = connected
    results = asked(client, 5)
    replies = [reply(xid) for xid in range(1, 6)]
    far.sendall(replies[0] + replies[1] + replies[2][:3])
    assert client._connection._read_socket(1) is None
    assert [result.ready() for result in results] == [True, True, False, False, False]
    for byte in replies[2][3:]:
        assert not results[2].ready()
        far.sendall(bytes([byte]))
        client._connection._read_socket(1)
    assert results[2].ready() and not results[3].ready()
    far.sendall(replies[3] + replies[4])
    client._connection._read_socket(1)
    assert all(result.get(block=False) is True for result in results)
    far.close()
    with pytest.raises(ConnectionDropped):
        client._connection._read_socket(1)


def test_a_request_that_the_socket_does_not_take_at_once_is_sent_whole(connected: tuple[Any, socket.socket]) -> None:
    client, far = connected
    request, read = bytes(range(256)) * 40_000, bytearray()

    def take() -> None:
        while len(read) < len(request):
            read.extend(far.recv(RECEIVE_BYTES))

    reader = threading.Thread(target=take)
    reader.start()
    client._connection._write(request, 30)
    reader.join(30)
    assert read == request
