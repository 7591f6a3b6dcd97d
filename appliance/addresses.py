"""Addresses of sockets as text: ``host:port``, or ``[v6 address]:port``."""

from __future__ import annotations

import re
from typing import Any


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """``"host:port,[v6]:port"`` as (host, port) pairs; an empty text is an empty list.

    Raises:
        ValueError: says what would be right.
    """
    addresses: list[tuple[str, int]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]/]+)):(\d{1,5})", part)
        if match is None or int(match[3]) > 65_535:
            raise ValueError('must be "host:port" or "[v6 address]:port", several separated by commas')
        addresses.append((match[1] or match[2], int(match[3])))
    return addresses


def address_text(address: tuple[Any, ...]) -> str:
    """The first two fields of a socket address, as :func:`parse_addresses` reads them."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
