"""Keys of the configuration about security, ``[tls]`` and ``[security]``, and what listeners need of them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from ..addresses import Listener, parse_addresses
from ..errors import BadValue
from .bearer_tokens import OAUTHBEARER
from .certificate_names import parse_rules
from .login_exchange import PASSWORD_MECHANISMS, parse_mechanisms
from .principals import USERS, parse_super_users


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
    principal_from: Annotated[
        Literal["subject", "uri", "dns", "email"],
        Meta(description="which name of a client's certificate is its user: the subject, or the first of a kind"),
    ] = "subject"
    principal_rules: Annotated[
        str,
        Meta(description="what that name becomes, as Kafka's ssl.principal.mapping.rules: RULE:^CN=([^,]+).*$/$1/L"),
    ] = "DEFAULT"
    handshake_ms_max: Annotated[
        int, Meta(ge=100, le=600_000, description="a connection that has not completed its handshake by then is closed")
    ] = 10_000
    handshakes_max: Annotated[
        int,
        Meta(ge=1, le=100_000, description="handshakes per worker at a time; another one closes the oldest"),
    ] = 1_000


class OAuth(Struct, frozen=True):
    jwks: Annotated[
        str,
        Meta(description="keys of the identity provider (a JSON Web Key Set): https:// URL, or path of a file"),
    ] = ""
    issuer: Annotated[str, Meta(description="iss that a token must have")] = ""
    audience: Annotated[str, Meta(description="aud that a token must have, or one of several")] = ""
    scope: Annotated[str, Meta(description='scopes that a token must have, separated by spaces; "" = any')] = ""
    claim: Annotated[str, Meta(min_length=1, description="claim whose text is the name of the user")] = "sub"


class Security(Struct, frozen=True):
    allow_insecure: Annotated[
        bool,
        Meta(description="listen on other addresses than loopback without TLS and authentication"),
    ] = False
    mechanisms: Annotated[
        str,
        Meta(description="SASL mechanisms that clients may log in with, with commas; OAUTHBEARER needs [oauth]"),
    ] = ",".join(PASSWORD_MECHANISMS)
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
    return is_loopback_host(host)


def is_loopback_host(host: str) -> bool:
    """Whether a host, by its name or address, is this one as only its own programs reach it."""
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
    for listener in listeners:
        key = f"{listener.protocol}.listen = {listener}"
        if listener.tls:
            yield from faults_of_certificate(key, tls)
        if not security.allow_insecure and is_insecure(listener, tls):
            yield (
                f"{key}: other hosts reach this address, and whoever does may do everything: must be SASL_SSL, or SSL"
                ' with tls.client_auth = "required", or loopback; or set security.allow_insecure = true'
            )
    for address in advertised:
        securities = sorted({other.security for other in listeners if other.protocol == address.protocol})
        if address.security not in securities:
            yield (
                f"{address.protocol}.advertised = {address}: must have the protocol of a listener of "
                f"{address.protocol}.listen before the address: {', '.join(securities) or 'there is none'}"
            )
    if not set(parse_mechanisms(security.mechanisms)) <= {*PASSWORD_MECHANISMS, OAUTHBEARER}:
        mechanisms = ", ".join((*PASSWORD_MECHANISMS, OAUTHBEARER))
        yield f"security.mechanisms = {security.mechanisms}: must be some of {mechanisms}"
    for name in sorted(parse_super_users(security.super_users)):
        if not name.startswith(USERS) or f",{USERS}" in name:
            yield f"security.super_users: nobody is called {name!r:.300}: must be User:NAME, with ';' between several"
    if tls.client_auth != "none" and not tls.ca:
        yield f"tls.client_auth = {tls.client_auth}: must have tls.ca, the certificates that sign those of clients"
    try:
        parse_rules(tls.principal_rules)
    except BadValue as error:
        yield f"tls.principal_rules: {error}"


def takes_tokens(security: Security) -> bool:
    """Whether clients may log in with tokens of an identity provider."""
    return OAUTHBEARER in parse_mechanisms(security.mechanisms)


def faults_of_oauth(security: Security, oauth: OAuth) -> Iterator[str]:
    """What the settings of an identity provider lack, each with its remedy."""
    if not takes_tokens(security):
        return
    for name in ("jwks", "issuer", "audience"):
        if not getattr(oauth, name):
            yield f"security.mechanisms = {security.mechanisms}: must have oauth.{name} for OAUTHBEARER"
    if oauth.jwks and not oauth.jwks.startswith("/") and not _is_url(oauth.jwks, security):
        yield (
            f"oauth.jwks = {oauth.jwks}: must be the path of a file from the root, or a URL with https:// and without a"
            " user; http:// on loopback, or with security.allow_insecure = true"
        )


def _is_url(text: str, security: Security) -> bool:
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        return False
    if not url.hostname or port == 0 or url.username is not None or not text.isascii() or not text.isprintable():
        return False
    if url.scheme == "https" or (url.scheme == "http" and security.allow_insecure):
        return " " not in text
    return url.scheme == "http" and " " not in text and is_loopback_host(url.hostname)
