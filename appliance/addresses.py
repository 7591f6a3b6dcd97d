"""Addresses of sockets and of listeners as text.

``host:port``, or ``[v6 address]:port``.  A listener may have the protocol that secures it before its address, as in
Kafka: ``SASL_SSL://host:port``.  Without one it is PLAINTEXT.  ``unix:/path`` is a Unix socket with the permissions
0600, ``unix:/path?mode=0660`` one with others.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

PLAINTEXT: Final = "PLAINTEXT"
SECURITY: Final = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""What secures a listener, by Kafka's names: nothing, TLS, a login, both."""
UNIX: Final = "unix:"
UNIX_MODE: Final = 0o600
MAPPED: Final = "::ffff:"
"""What a socket of IPv6 puts before the IPv4 address of a client."""
SITE_BITS: Final = 64
"""One host may use any number of the IPv6 addresses that have these first bits in common (RFC 4291)."""

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(:\d{1,5})?")

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class Listener(NamedTuple):
    """An address that clients connect to, and what is spoken there.

    ``protocol`` is "native" or "kafka", ``security`` one of SECURITY.  ``address``, as text, is the configured one; the
    listener of a connection has the one that the client connected to.
    """

    protocol: str
    security: str
    address: str

    @property
    def tls(self) -> bool:
        return self.security.endswith("SSL")

    @property
    def sasl(self) -> bool:
        """Whether clients have to log in."""
        return self.security.startswith("SASL")

    @property
    def unix(self) -> bool:
        return self.address.startswith(UNIX)

    def __str__(self) -> str:
        """As :func:`parse_listeners` reads it."""
        return self.address if self.security == PLAINTEXT else f"{self.security}://{self.address}"


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """``"host:port,[v6]:port"`` as (host, port) pairs; an empty text is an empty list.

    Raises:
        ValueError: says what would be right.
    """
    return [_parse_address(part) for part in _parts(text)]


def parse_listeners(protocol: str, text: str) -> list[Listener]:
    """``"host:port, SASL_SSL://host:port"`` as listeners of a protocol; an empty text is an empty list.

    Raises:
        ValueError: says what would be right.
    """
    listeners: list[Listener] = []
    for part in _parts(text):
        security, separator, address = part.rpartition("://")
        security = security.upper() if separator else PLAINTEXT
        if security not in SECURITY:
            raise ValueError(f"{part}: must begin with one of {', '.join(SECURITY)}, or with no protocol")
        if address.startswith(UNIX):
            if protocol != "native" or security != PLAINTEXT:
                raise ValueError(f"{part}: must be a native listener without a protocol: only these use Unix sockets")
            unix_path(address)
        else:
            address = address_text(_parse_address(address))
        listeners.append(Listener(protocol, security, address))
    return listeners


def listeners_text(listeners: Iterable[Listener]) -> str:
    """Listeners of one protocol as :func:`parse_listeners` reads them."""
    return ",".join(map(str, listeners))


def first_with(security: str, listeners: Sequence[Listener]) -> str:
    """The address of the first listener with this security; "" when there is none."""
    return next((listener.address for listener in listeners if listener.security == security and not listener.unix), "")


def unix_path(address: str) -> tuple[str, int]:
    """The path and the mode of ``unix:/path?mode=0660``.

    Raises:
        ValueError: says what would be right.
    """
    match = re.fullmatch(r"unix:(/[^?,]+)(?:\?mode=(0?[0-7]{3}))?", address)
    if match is None:
        raise ValueError(f"{address}: must be unix:/path, or with permissions unix:/path?mode=0660")
    return match[1], int(match[2], 8) if match[2] else UNIX_MODE


def parse_network(text: str) -> IpNetwork:
    """``10.0.0.7`` or ``10.0.0.0/8``, in the one form that an address has as text (RFC 5952).

    Raises:
        ValueError: says what would be right.
    """
    address, slash, _ = text.partition("/")
    try:
        network = ipaddress.ip_network(text if slash else ipaddress.ip_address(address), strict=False)
    except ValueError:
        raise ValueError(f"{text!r:.100}: must be an address, or one with a mask: 10.0.0.0/8, 2001:db8::/32") from None
    canonical = str(network) if slash else str(network.network_address)
    if text != canonical:
        raise ValueError(f"{text!r:.100}: must be written {canonical}")
    return network


def parse_networks(text: str) -> list[IpNetwork]:
    """Several, separated by commas.  Raises ValueError, as :func:`parse_network`."""
    return [parse_network(part) for part in _parts(text)]


def site_of(host: str) -> str:
    """What stands for the address of a client where addresses are counted: that of IPv6 by its first SITE_BITS."""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.IPv6Network((host.partition("%")[0], SITE_BITS), strict=False))
    except ValueError:
        return host


def host_of(text: str) -> str:
    """The name in a Host header of HTTP, without port and brackets; "" if it is none."""
    match = _HOST.fullmatch(text)
    return match[1].strip("[]").lower().rstrip(".") if match else ""


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Whether a host is an address, or one of our names: no name that somebody else makes point here."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host in names
    return True


def host_names(text: str, *others: str) -> frozenset[str]:
    """Names separated by commas, and others, in lower case."""
    return frozenset(name.lower() for name in (*_parts(text), *others) if name)


def address_text(address: tuple[Any, ...]) -> str:
    """The first two fields of a socket address, as :func:`parse_addresses` reads them.

    A client with IPv4 at a listener of both is one at its IPv4 address.
    """
    host, port = address[0].removeprefix(MAPPED) if "." in address[0] else address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parts(text: str) -> list[str]:
    return [part for part in (part.strip() for part in text.split(",")) if part]


def _parse_address(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]/]+)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65_535:
        raise ValueError('must be "host:port" or "[v6 address]:port", several separated by commas')
    host = match[1] or match[2]
    try:
        host.encode("idna")  # as the resolver of names does, which would raise something that nobody expects
    except UnicodeError:
        raise ValueError(f"{host!r}: the labels of a name of a host must have 1 to 63 characters") from None
    return host, int(match[3])


def host_of_peer(peer: Sequence[Any] | None) -> str:
    """The address of the other side of a connection, without port and zone; "?" if it has gone already."""
    return str(peer[0]).removeprefix(MAPPED).partition("%")[0] if peer else "?"
