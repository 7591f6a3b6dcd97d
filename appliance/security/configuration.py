"""Keys of the configuration about security, ``[tls]`` and ``[security]``, and what listeners need of them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from ..addresses import Listener, parse_addresses
from .login_exchange import ALL_MECHANISMS, parse_mechanisms


class Tls(Struct, frozen=True):
    certificate: Annotated[
        str,
        Meta(description="PEM file: certificate of the SSL and SASL_SSL listeners, those of its issuers behind it"),
    ] = ""
    key: Annotated[
        str, Meta(description="PEM file: its private key, not encrypted; 0600, or of root with a group 0640")
    ] = ""
    ca: Annotated[
        str, Meta(description="PEM file: certificates that sign those of clients, and lists of revoked ones")
    ] = ""
    client_auth: Annotated[
        Literal["none", "requested", "required"],
        Meta(description="certificates of clients: not asked for; valid if there is one; needed"),
    ] = "none"
    handshake_ms_max: Annotated[
        int, Meta(ge=100, le=600_000, description="a connection that has not completed its handshake by then is closed")
    ] = 10_000
    handshakes_max: Annotated[
        int,
        Meta(ge=1, le=100_000, description="handshakes per worker at a time; another one closes the oldest"),
    ] = 1_000


class Security(Struct, frozen=True):
    allow_insecure: Annotated[
        bool,
        Meta(description="listen on other addresses than loopback without TLS and authentication"),
    ] = False
    mechanisms: Annotated[
        str, Meta(description="SASL mechanisms that clients may log in with, separated by commas")
    ] = ",".join(ALL_MECHANISMS)
    sessions_ms_max: Annotated[
        int,
        Meta(ge=0, le=365 * 86_400_000, description="a client logs in again after this time; 0 = its login lasts"),
    ] = 0
    login_ms_max: Annotated[
        int, Meta(ge=100, le=600_000, description="a connection that has not logged in after this time is closed")
    ] = 10_000
    authorizer: Annotated[
        Literal["", "acl"],
        Meta(description='"acl" = clients may do what access rules allow; "" = everything, once they are logged in'),
    ] = ""
    super_users: Annotated[
        str, Meta(description='who may do everything without rules: "User:admin;User:CN=ops,O=example"')
    ] = ""
    allow_everyone_if_no_acl: Annotated[
        bool, Meta(description="what no access rule is about is open to everybody, as Kafka's key with that name")
    ] = False


def is_loopback(listener: Listener) -> bool:
    """Whether only programs of this host reach the listener."""
    if listener.unix:
        return True
    ((host, _),) = parse_addresses(listener.address)
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_insecure(listener: Listener, tls: Tls) -> bool:
    """Whether other hosts reach the listener without both TLS and authentication."""
    authenticated = listener.sasl or tls.client_auth == "required"
    return not is_loopback(listener) and not (listener.tls and authenticated)


def faults_of_certificate(key: str, tls: Tls) -> Iterator[str]:
    """What ``key``, an address that is reached over TLS, lacks."""
    if not (tls.certificate and tls.key):
        yield f"{key}: must have tls.certificate and tls.key, the PEM files to prove with who it is"


def faults_of(
    listeners: Sequence[Listener], advertised: Sequence[Listener], tls: Tls, security: Security
) -> Iterator[str]:
    """What is wrong with listeners of the configuration, each with its remedy."""
    for one in listeners:
        key = f"{one.protocol}.listen = {one}"
        if one.tls:
            yield from faults_of_certificate(key, tls)
        if not security.allow_insecure and is_insecure(one, tls):
            yield (
                f"{key}: other hosts reach this address, and whoever does may do everything: must be SASL_SSL, or SSL"
                ' with tls.client_auth = "required", or loopback; or set security.allow_insecure = true'
            )
    for one in advertised:
        securities = sorted({other.security for other in listeners if other.protocol == one.protocol})
        if one.security not in securities:
            yield (
                f"{one.protocol}.advertised = {one}: must have the protocol of a listener of {one.protocol}.listen"
                f" before the address: {', '.join(securities) or 'there is none'}"
            )
    if not set(parse_mechanisms(security.mechanisms)) <= set(ALL_MECHANISMS):
        yield f"security.mechanisms = {security.mechanisms}: must be some of {', '.join(ALL_MECHANISMS)}"
    if tls.client_auth != "none" and not tls.ca:
        yield f"tls.client_auth = {tls.client_auth}: must have tls.ca, the certificates that sign those of clients"
