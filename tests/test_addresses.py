"""appliance.addresses: host and port, IPv6 addresses in brackets, and listeners with what secures them."""

from __future__ import annotations

import pytest

from appliance.addresses import (
    Listener,
    address_text,
    first_with,
    listeners_text,
    parse_addresses,
    parse_listeners,
    unix_path,
)


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


def test_a_listener_has_its_protocol_before_its_address() -> None:
    text = "127.0.0.1:1, SASL_SSL://[::1]:2 ,ssl://host:3,unix:/run/a b.sock?mode=0660"
    plain, both, tls, local = parse_listeners("native", text)
    assert plain == Listener("native", "PLAINTEXT", "127.0.0.1:1") and not (plain.tls or plain.sasl or plain.unix)
    assert both == Listener("native", "SASL_SSL", "[::1]:2") and both.tls and both.sasl
    assert tls == Listener("native", "SSL", "host:3") and tls.tls and not tls.sasl
    assert local.unix and unix_path(local.address) == ("/run/a b.sock", 0o660)
    assert parse_listeners("native", listeners_text([plain, both, tls, local])) == [plain, both, tls, local]
    assert first_with("SSL", [plain, both, tls]) == "host:3" and first_with("PLAINTEXT", [local, tls]) == ""
    assert unix_path("unix:/s") == ("/s", 0o600)


@pytest.mark.parametrize(
    "protocol, text",
    [
        ("kafka", "TLS://host:1"),
        ("kafka", "SSL:host:1"),
        ("kafka", "SSL://host"),
        ("kafka", "://host:1"),
        ("kafka", "SSL://SSL://host:1"),
        ("kafka", "unix:/path"),
        ("native", "SSL://unix:/path"),
        ("native", "unix:path"),
        ("native", "a..b:1"),
        ("kafka", "SSL://" + "a" * 64 + ":1"),
        ("native", "\udcdf:1"),
        ("native", "unix:/path?mode=999"),
        ("native", "unix:/path?mode=0o600"),
    ],
)
def test_what_is_no_listener(protocol: str, text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse_listeners(protocol, text)
