"""appliance.wire.sockets: only what stays on this host is not paced."""

from __future__ import annotations

import socket

import pytest

from appliance.wire.sockets import UNPACED, set_options


@pytest.mark.parametrize("source, unpaced", [("127.0.0.1", True), ("127.0.0.2", False)])
def test_both_ends(source: str, unpaced: bool) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), 5, (source, 0)) as client,
        listener.accept()[0] as server,
    ):
        for sock in (server, client):
            as_it_comes = congestion_control(sock)
            set_options(sock, sock.getpeername()[0])
            assert congestion_control(sock) == (UNPACED if unpaced else as_it_comes)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def congestion_control(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
