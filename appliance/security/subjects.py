"""Writes the subject of a certificate as text, as Kafka does for the principal of a client (RFC 2253).

The most specific part comes first: ``CN=shipper,OU=logs,O=Example``.  Attributes that RFC 2253 does not name have the
name that OpenSSL gives them, such as ``emailAddress``, where Kafka has a number and encoded bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

NAMES: Final = {
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


def subject_text(certificate: Mapping[str, Any]) -> str:
    """The subject of a certificate as ``ssl.SSLObject.getpeercert`` returns it; "" when there is none.

    Different subjects have different texts, since every character with a meaning in this form is escaped.
    """
    parts = reversed(certificate.get("subject", ()))
    return ",".join("+".join(f"{NAMES.get(name, name)}={_escaped(value)}" for name, value in part) for part in parts)


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
