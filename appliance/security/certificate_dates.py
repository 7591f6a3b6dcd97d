"""Reads until when the certificates of a PEM file are valid.

Only the dates are read, from the first fields of a certificate (RFC 5280, 4.1), which are in DER::

    Certificate     SEQUENCE { TBSCertificate, ... }
    TBSCertificate  SEQUENCE { [0] version, INTEGER serialNumber, SEQUENCE signature, SEQUENCE issuer,
                               SEQUENCE validity, ... }
    validity        SEQUENCE { notBefore, notAfter }, each UTCTime (tag 23) or GeneralizedTime (tag 24)

The files are those of the operator; whether a certificate can be trusted is OpenSSL's business.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from typing import Final

CERTIFICATES_MAX: Final = 1_000
"""Certificates of one file that are looked at; distributions ship files of some hundred authorities."""
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 23, 24


def expires_s(text: str) -> float | None:
    """When the first of the certificates in a PEM text expires, in seconds since 1970; None without any certificate.

    Raises:
        ValueError: what stands there is no certificate.
    """
    expiries_s = (_not_after(ssl.PEM_cert_to_DER_cert(match[0])) for match in _first(text))
    return min(expiries_s, default=None)


def _first(text: str) -> list[re.Match[str]]:
    return [match for match, _ in zip(_PEM.finditer(text), range(CERTIFICATES_MAX), strict=False)]


def _not_after(der: bytes) -> float:
    """The end of the validity of a certificate.  Raises ValueError."""
    certificate, _ = _value(der, 0)
    fields, _ = _value(certificate, 0)
    at = _value(fields, 0)[1] if fields[:1] == bytes([_VERSION]) else 0
    for _ in range(3):  # serialNumber, signature, issuer
        _, at = _value(fields, at)
    validity, _ = _value(fields, at)
    _, after = _value(validity, 0)
    text, _ = _value(validity, after)
    return _seconds(validity[after], text.decode("ascii"))


def _value(der: bytes, at: int) -> tuple[bytes, int]:
    """The content of the element at a position, and the position behind it.  Raises ValueError."""
    if at + 2 > len(der):
        raise ValueError("not a certificate: too short")
    length, start = der[at + 1], at + 2
    if length >= 0x80:
        count = length & 0x7F
        length, start = int.from_bytes(der[start : start + count], "big"), start + count
    if start + length > len(der):
        raise ValueError("not a certificate: too short")
    return der[start : start + length], start + length


def _seconds(tag: int, text: str) -> float:
    """A time of RFC 5280, which is in UTC and has seconds.  Raises ValueError."""
    if tag == _UTC_TIME:  # two digits of the year: 1950 to 2049
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("not a certificate: no date")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
