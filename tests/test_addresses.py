"""appliance.addresses: host and port, and IPv6 addresses in brackets."""

from __future__ import annotations

import pytest

from appliance.addresses import address_text, parse_addresses


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", []),
        ("localhost:0", [("localhost", 0)]),
        ("[::1]:9091, 0.0.0.0:9092", [("::1", 9091), ("0.0.0.0", 9092)]),
        ("[fe80::1%eth0]:1", [("fe80::1%eth0", 1)]),
    ],
)
def test_addresses(text: str, expected: list[tuple[str, int]]) -> None:
    assert parse_addresses(text) == expected


def test_an_address_is_written_as_it_is_read() -> None:
    for address in (("localhost", 1), ("::1", 9091), ("10.0.0.1", 65_535)):
        assert parse_addresses(address_text(address)) == [address]
