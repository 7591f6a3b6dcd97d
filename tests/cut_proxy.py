"""A TCP proxy that can be cut: what a host's network does when it is gone for some, and not for others."""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType


class CutProxy:
    """Forwards ``address`` to ``target`` in a thread of its own, until :meth:`cut`; again after :meth:`mend`."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = ":".join(map(str, self._listener.getsockname()))
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._is_cut = False
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def cut(self) -> None:
        self._is_cut = True
        self._waker.send(b"c")

    def mend(self) -> None:
        self._is_cut = False

    def __enter__(self) -> CutProxy:
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

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self._wake:
                    if b"x" in sock.recv(64):
                        return
                    for one in list(self._peers):
                        self._close(one)
                elif sock is self._listener:
                    self._accept()
                elif sock in self._peers:
                    self._forward(sock)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._is_cut:
            client.close()
            return
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        for sock, peer in ((client, server), (server, client)):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[sock] = peer
            self._selector.register(sock, selectors.EVENT_READ)

    def _forward(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(65536)
            self._peers[sock].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        if sock in self._peers:
            for end in (sock, self._peers[sock]):
                self._selector.unregister(end)
                del self._peers[end]
                end.close()
