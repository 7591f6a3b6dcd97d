"""Connects to a web server that the configuration names, and nowhere else.

A name is resolved once, and the connection goes to one of these addresses, whatever the name resolves to next.
Addresses of the link, where clouds have their credentials (169.254.169.254), are refused.  Proxies of the environment
are not asked.  TLS is for the name.

One exchange has one time for all of it, whatever the server does: addresses that do not answer have equal shares of
what is left, and a timer ends what comes in drips, be it the handshake of TLS, a head or a body.  A name that is
resolved slowly takes from that time, and is ended by the resolver's own only.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult

from ..clock import now_ms

HTTPS_PORT = 443
HTTP_PORT = 80


class AddressRefused(Exception):
    """A name cannot be resolved, or to nothing that may be asked; the message has not the name."""


class PinnedConnection(http.client.HTTPConnection):
    """A connection for one request to a URL, whose host is resolved here.  ``timeout_s``: of all of the exchange."""

    def __init__(self, url: SplitResult, timeout_s: float) -> None:
        """Raises AddressRefused."""
        self._timeout_s, self._deadline_s = timeout_s, now_ms() / 1000 + timeout_s
        tls = url.scheme == "https"
        port = url.port or (HTTPS_PORT if tls else HTTP_PORT)
        super().__init__(str(url.hostname), port, timeout=timeout_s)
        self.default_port = HTTPS_PORT if tls else HTTP_PORT
        self._tls, self._late = tls, False
        self._open: socket.socket | None = None
        """The socket: http.client forgets its own while an answer that ends with the connection is read."""
        self._addresses = addresses_of(self.host, port)

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], bytes_max: int, body: bytes | None = None
    ) -> tuple[int, bytes]:
        """The status and at most ``bytes_max`` bytes of the answer to a request; the connection is closed then.

        Raises:
            OSError, HTTPException: there is none in time.
        """
        watch = threading.Timer(self._left_s(), self._end)
        watch.daemon = True
        watch.start()
        try:
            self.request(method, target, body, dict(headers))
            answer = self.getresponse()
            text = answer.read(bytes_max)
            answer.close()
        except (OSError, ValueError, http.client.HTTPException):
            self._check_time()  # the timer is why
            raise
        finally:
            watch.cancel()
            self.close()
        self._check_time()  # a body without a length looks complete when the timer ends it
        return answer.status, text

    def connect(self) -> None:
        for addresses_left, address in zip(range(len(self._addresses), 0, -1), self._addresses, strict=True):
            share_s = self._left_s() / addresses_left
            try:
                self._open = self.sock = socket.create_connection((address, self.port), share_s)
                break
            except OSError:
                if addresses_left == 1:
                    raise
        self.sock.settimeout(self._left_s())
        if self._tls:
            context = ssl.create_default_context()
            # The handshake comes behind: the timer has to find the socket in which it is done.
            wrapped = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
            self._open = self.sock = wrapped
            self._check_time()  # the timer may have found the one before
            wrapped.do_handshake()
        self._check_time()

    def _left_s(self) -> float:
        """Raises TimeoutError: nothing is left."""
        left_s = self._deadline_s - now_ms() / 1000
        if left_s <= 0:
            self._late = True
            self._check_time()
        return left_s

    def _check_time(self) -> None:
        """Raises TimeoutError."""
        if self._late:
            raise TimeoutError(f"has not answered in {self._timeout_s:g} s") from None

    def _end(self) -> None:
        """End the request, in the timer's thread: whoever waits in the socket is told that it has ended."""
        self._late = True
        if (sock := self._open) is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # that of ssl would go on in plain text


def addresses_of(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, in the order in which to try them.

    Raises:
        AddressRefused: it has none, or one that nobody may be told to ask.
    """
    try:
        infos = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise AddressRefused("its name cannot be resolved") from None
    for *_, (address, *_) in infos:
        parsed = ipaddress.ip_address(str(address).partition("%")[0])
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        if parsed.is_link_local or parsed.is_multicast or parsed.is_unspecified:
            raise AddressRefused("its address is one of the link, of a group, or of nobody: refused")
    return [str(info[4][0]) for info in infos]
