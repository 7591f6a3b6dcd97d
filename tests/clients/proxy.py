"""A TCP proxy that cuts connections at random, in mid-frame and in both directions: what a bad network does."""

from __future__ import annotations

import random
import selectors
import socket
import threading
from types import TracebackType


class CuttingProxy:
    """Forwards ``address`` to ``target`` in a thread of its own.

    Each connection is cut after a random number of bytes, uniformly up to ``2 * bytes_mean``, counted over both
    directions; what was read then but not yet forwarded is lost, so requests arrive in part and replies not at
    all.  While ``calm`` is set nothing is cut.  ``cut_off`` ends all connections and takes no new ones until ``join``.
    """

    def __init__(self, bytes_mean: int, seed: int) -> None:
        self.cuts = 0
        self.target: tuple[str, int] | None = None
        self.bytes_mean = bytes_mean
        self._random = random.Random(seed)
        self.calm = False
        self._down = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(None)
        self.address = ":".join(map(str, self._listener.getsockname()))
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, tuple[socket.socket, list[int]]] = {}
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> CuttingProxy:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waker.send(b"x")
        self._thread.join()
        for sock in (*self._peers, self._listener, self._wake, self._waker):
            sock.close()
        self._selector.close()

    def cut_off(self) -> None:
        self._down = True
        self._waker.send(b"c")

    def join(self) -> None:
        self._down = False

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self._wake:
                    if self._wake.recv(1) == b"x":
                        return
                    for end in list(self._peers):
                        if end in self._peers:
                            self._end(end)
                    continue
                if sock is self._listener:
                    self._accept()
                elif sock in self._peers:
                    self._forward(sock)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        assert self.target is not None
        if self._down:
            client.close()
            return
        try:
            server = socket.create_connection(self.target)
        except OSError:
            client.close()
            return
        left = [self._random.randrange(1, 2 * self.bytes_mean)]
        for sock, peer in ((client, server), (server, client)):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[sock] = (peer, left)
            self._selector.register(sock, selectors.EVENT_READ)

    def _forward(self, sock: socket.socket) -> None:
        peer, left = self._peers[sock]
        try:
            data = sock.recv(65536)
            if not self.calm and len(data) >= left[0]:
                peer.sendall(data[: left[0]])
                self.cuts += 1
                data = b""
            elif data:
                left[0] -= len(data)
                peer.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        peer, _ = self._peers[sock]
        for end in (sock, peer):
            self._selector.unregister(end)
            del self._peers[end]
            end.close()
