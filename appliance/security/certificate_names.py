"""Names the user of a client's certificate: its subject, or one of its alternative names, through mapping rules.

The rules are those of Kafka's ``ssl.principal.mapping.rules``, with commas or line ends between them::

    RULE:pattern/replacement/     what the pattern matches whole becomes the replacement, in which $1 is the first group
    RULE:pattern/replacement/L    and then lower case; U: upper case
    DEFAULT                       the name as it is

The first rule that matches decides; a name that none matches is refused.  ``\\/`` is a slash within a rule.  Patterns
are those of RE2, which take time linear in the name.

A subject is written as Kafka does for the principal of a client (RFC 2253): the most specific part comes first,
``CN=shipper,OU=logs,O=Example``.  Attributes that RFC 2253 does not name have the name that OpenSSL gives them, such as
``emailAddress``, where Kafka has a number and encoded bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..errors import BadValue
from .principals import login_fault

SUBJECT: Final = "subject"
KINDS: Final = {"uri": "URI", "dns": "DNS", "email": "email"}
"""What ``ssl`` calls each kind of alternative name."""
DEFAULT: Final = "DEFAULT"
EXAMPLE: Final = "RULE:^CN=([^,]+).*$/$1/L,DEFAULT"

_ATTRIBUTES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_SPECIAL: Final = frozenset(',+"\\<>;=')
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\n|$)", re.DOTALL)
_REFERENCE = re.compile(r"\\(.)|\$(\d)", re.DOTALL)

Rule = Callable[[str], str | None]
"""The name that a name becomes; None: the rule does not match."""


class CertificateNames:
    """``source``: SUBJECT or one of KINDS; ``rules``: see the module's docstring."""

    def __init__(self, source: str, rules: str) -> None:
        """Raises BadValue: the rules cannot be read."""
        self._source = source
        self._rules = parse_rules(rules)

    def user(self, certificate: Mapping[str, Any] | None) -> str:
        """The user of a certificate as ``ssl.SSLObject.getpeercert`` returns it; "" without a certificate.

        Raises:
            BadValue: it names nobody; the message is for the audit log.
        """
        if not certificate:
            return ""
        name = self._name(certificate)
        if not name:
            raise BadValue(f"the certificate has no {self._source}: tls.principal_from says which name counts")
        for rule in self._rules:
            user = rule(name)
            if user is not None:
                break
        else:
            raise BadValue(f"no rule of tls.principal_rules matches {name!r:.300}")
        if why := login_fault(user):
            raise BadValue(f"{why}, which tls.principal_rules makes of {name!r:.300}")
        return user

    def _name(self, certificate: Mapping[str, Any]) -> str:
        if self._source == SUBJECT:
            return subject_text(certificate)
        kind = KINDS[self._source]
        return next((value for name, value in certificate.get("subjectAltName", ()) if name == kind), "")


def parse_rules(text: str) -> Sequence[Rule]:
    """Raises BadValue: a rule is none, or its pattern is none of RE2."""
    rules: list[Rule] = []
    at = 0
    while text[at:].strip():
        match = _RULE.match(text, at)
        if match is None:
            raise BadValue(f"{text[at:].strip()!r:.100} is no rule: such as {EXAMPLE}")
        at = match.end()
        rules.append(_keep_name if match[1] else _rule(match[2], match[3], match[4]))
    if not rules:
        raise BadValue(f"must have at least one rule, such as {EXAMPLE}")
    return rules


def _keep_name(name: str) -> str:
    return name


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    import re2  # where it is needed: every command reads the configuration

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern.replace("\\/", "/"), options=options)
    except re2.error as error:
        reason = error.args[0]
        raise BadValue(
            f"{pattern!r:.100}: {reason.decode(errors='replace') if isinstance(reason, bytes) else reason}"
        ) from None
    if any(int(number) > compiled.groups for _, number in _REFERENCE.findall(replacement) if number):
        raise BadValue(f"{replacement!r:.100} names a group that {pattern!r:.100} has not")

    def apply(name: str) -> str | None:
        match = compiled.fullmatch(name)
        if match is None:
            return None
        user = _REFERENCE.sub(
            lambda part: part[1] if part[1] is not None else (match.group(int(part[2])) or ""), replacement
        )
        return user.lower() if case == "L" else user.upper() if case == "U" else user

    return apply


# ---- subjects


def subject_text(certificate: Mapping[str, Any]) -> str:
    """The subject of a certificate as ``ssl.SSLObject.getpeercert`` returns it; "" when there is none.

    Different subjects have different texts, since every character with a meaning in this form is escaped.
    """
    parts = reversed(certificate.get("subject", ()))
    return ",".join(
        "+".join(f"{_ATTRIBUTES.get(name, name)}={_escaped(value)}" for name, value in part) for part in parts
    )


def _escaped(value: str) -> str:
    text = "".join(_escaped_character(character) for character in value)
    if text[:1] in (" ", "#"):
        text = "\\" + text
    if text[-1:] == " " and text not in ("\\ ",):
        text = text[:-1] + "\\ "
    return text


def _escaped_character(character: str) -> str:
    if character in _SPECIAL:
        return "\\" + character
    if character.isprintable():
        return character
    return "".join(f"\\{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
