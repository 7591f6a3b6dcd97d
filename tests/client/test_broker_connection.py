"""appliance.client.broker_connection: the answer does not depend on how TCP cut the bytes; a bad peer is named."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.client.broker_connection import (
    RECEIVE_BYTES,
    BrokerConnection,
    ConnectionReply,
    address_of,
    parse_bootstrap,
)
from appliance.errors import BadValue, BrokerAway, ProtocolFault, RequestTimedOut, UnsupportedVersion
from appliance.wire.native import ADMIN, HELLO, PRODUCE, VERSION, ProduceHead, decode_header, encode_frame

TIMEOUT_S = 60
GREETING = encode_frame([1, 0, VERSION, 7, {"frame_bytes_max": 1000}])


@contextlib.contextmanager
def connected() -> Iterator[tuple[BrokerConnection, socket.socket]]:
    """A connection, and the other end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = BrokerConnection(listener.getsockname(), client_name="test")
        server, _ = listener.accept()
        try:
            yield connection, server
        finally:
            connection.close()
            server.close()


def read_frame(server: socket.socket) -> tuple[list[Any], bytes]:
    size = int.from_bytes(server.recv(4, socket.MSG_WAITALL), "big")
    frame = memoryview(server.recv(size, socket.MSG_WAITALL))
    header, start = decode_header(frame)
    return header, bytes(frame[start:])


def receive_all(connection: BrokerConnection, count: int) -> list[ConnectionReply]:
    replies: list[ConnectionReply] = []
    while len(replies) < count:
        assert connection.wait(TIMEOUT_S)
        replies += connection.receive()
    return replies


def greet(connection: BrokerConnection, server: socket.socket) -> None:
    connection.flush()
    assert read_frame(server)[0] == [HELLO, 1, "appliance", VERSION, "test"]
    server.sendall(GREETING)
    connection.greet(TIMEOUT_S)


def test_hello_is_first_and_its_answer_is_kept() -> None:
    with connected() as (connection, server):
        greet(connection, server)
        assert connection.greeted and connection.broker_id == 7 and connection.frame_bytes_max == 1000


@settings(max_examples=30, deadline=None)
@given(
    payloads=st.lists(st.integers(0, 3 * RECEIVE_BYTES), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 2 * RECEIVE_BYTES), max_size=8),
)
def test_replies_are_whole_however_they_are_cut(payloads: list[int], cuts: list[int]) -> None:
    with connected() as (connection, server):
        greet(connection, server)
        correlations = [connection.post(ADMIN, "verb", {}) for _ in payloads]
        connection.flush()
        replies = [(c, bytes([n % 251]) * n) for c, n in zip(correlations, payloads, strict=True)]
        stream = b"".join(encode_frame([c, 0], len(payload)) + payload for c, payload in replies)
        got: list[ConnectionReply] = []
        for size in [*cuts, len(stream)]:
            piece, stream = stream[:size], stream[size:]
            server.setblocking(False)
            while piece:
                with contextlib.suppress(BlockingIOError):
                    piece = piece[server.send(piece) :]
                got += connection.receive()
        got += receive_all(connection, len(payloads) - len(got))
        assert [(reply.header[0], bytes(reply.payload)) for reply in got] == replies
        assert not connection.awaited


def test_many_requests_leave_in_order_through_a_slow_socket() -> None:
    """More than the socket takes at once: flush says so, and goes on where it stopped."""
    with connected() as (connection, server):
        greet(connection, server)
        head = ProduceHead("topic", 3, 0, 100)
        payloads = [bytes([i % 251]) * (i * 37 % 9000) for i in range(2000)]
        for payload in payloads:
            connection.post_batch(head, payload, False)
        assert not connection.flush() and connection.wants_write
        got = []
        for _ in payloads:
            connection.flush()
            got.append(read_frame(server))
        assert [payload for _, payload in got] == payloads
        assert all(header[0] == PRODUCE and header[2:] == ["topic", 3, 0, 100] for header, _ in got)
        assert connection.out_bytes == 0 and not connection.awaited


def test_a_call_waits_and_times_out() -> None:
    with connected() as (connection, server):
        greet(connection, server)
        with pytest.raises(RequestTimedOut):
            connection.call(ADMIN, "verb", {}, timeout_s=0.01)


def test_a_peer_that_goes_away_or_talks_nonsense_is_named() -> None:
    with connected() as (connection, server):
        greet(connection, server)
        connection.post(ADMIN, "verb", {})
        server.close()
        with pytest.raises(BrokerAway, match="closed"):
            receive_all(connection, 1)
    with connected() as (connection, server):
        greet(connection, server)
        connection.post(ADMIN, "verb", {})
        server.sendall(encode_frame([99, 0]))
        with pytest.raises(ProtocolFault, match="99"):
            receive_all(connection, 1)
    with connected() as (connection, server):
        server.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(ProtocolFault):
            connection.greet(TIMEOUT_S)
    with connected() as (connection, server):
        server.sendall(encode_frame([1, UnsupportedVersion.code, 9, 7, {}]))
        with pytest.raises(UnsupportedVersion, match="refuses"):
            connection.greet(TIMEOUT_S)


def test_nobody_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    with pytest.raises(BrokerAway, match=str(address[1])), contextlib.closing(BrokerConnection(address)) as connection:
        connection.greet(TIMEOUT_S)
    with pytest.raises(BrokerAway, match="resolved"):
        BrokerConnection(("no-such-host.invalid", 1))


def test_addresses() -> None:
    listeners = parse_bootstrap("a:1, [::1]:2")
    assert listeners == parse_bootstrap(["a:1", "[::1]:2"])
    assert [address_of(one) for one in listeners] == [("a", 1), ("::1", 2)]
    assert [address_of(one) for one in parse_bootstrap("unix:/a b/c")] == [("/a b/c", 0)]
    with pytest.raises(BadValue, match="the same protocol"):
        parse_bootstrap("a:1,SSL://b:2")
    for text in ("", "a", "a:b", "a:70000"):
        with pytest.raises(BadValue):
            parse_bootstrap(text)
