"""Loads certificate, key and authorities of the TLS listeners from their files, also again when they change.

Only TLS 1.2 and 1.3 with OpenSSL's own choice of ciphers; no compression, no renegotiation, and no resumption: every
connection shows its certificate, which is checked against the present files.  Resumption would spare a listener with a
P-256 key, as ``make-certificates`` makes them, a tenth of its part of a handshake, and one with RSA half of it
(``perf/handshakes.py``): so much as another key does.

The supervisor loads the files first, so a start with wrong files fails, and workers inherit what was loaded.  Later the
supervisor looks at the files now and then (:meth:`TlsFiles.have_changed`).  Files that cannot be used leave everything
as it is.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..errors import BadValue
from ..owners import acting_as_owner
from ..security.certificate_dates import expires_s
from ..security.configuration import Tls
from ..security.secret_files import check_secret_file

REVOCATIONS: Final = b"-----BEGIN X509 CRL-----"
_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsFiles:
    """The files of ``[tls]``, and the context that was made of them."""

    def __init__(self, config: Tls) -> None:
        """Load the files.

        Raises:
            BadValue: one of them cannot be used; names the key and the remedy.
        """
        self.load(config)

    def load(self, config: Tls) -> None:
        """Load the files again, for the connections that come from now on.

        Raises:
            BadValue: as the constructor; the old context stays.
        """
        self._config = config
        self._seen = self._looked = _signature(config)
        self.context = _context(config)

    def expiries(self) -> list[dict[str, Any]]:
        """The files with certificates: their keys of the configuration, and when the first of each file expires."""
        expiring: list[dict[str, Any]] = []
        for key, name in (("tls.certificate", self._config.certificate), ("tls.ca", self._config.ca)):
            try:
                with acting_as_owner(Path(name)):
                    expires = expires_s(Path(name).read_text(errors="replace")) if name else None
            except (OSError, ValueError):  # it was replaced after it was loaded: the next look reports it
                continue
            if expires is not None:
                expiring.append({"key": key, "file": name, "expires": expires})
        return expiring

    def have_changed(self) -> bool:
        """Whether files are others than at the last :meth:`load`, whether that succeeded or not.

        Files that have changed since the last look are not reported yet: certificate and key are replaced one by one.
        """
        signature = _signature(self._config)
        settled, self._looked = signature == self._looked, signature
        return settled and signature != self._seen


def _signature(config: Tls) -> list[Any]:
    """What changes when a file is replaced or written."""
    signature: list[Any] = []
    for name in (config.certificate, config.key, config.ca):
        try:
            with acting_as_owner(Path(name)):
                status = os.stat(name)  # noqa: PTH116 - a name may be empty
            signature.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode))
        except OSError:
            signature.append(None)
    return signature


class _Peer(ssl.SSLObject):
    """A connection, also of asyncio, whose peer's certificate fails as TLS does when it cannot be read."""

    def getpeercert(self, binary_form: bool = False) -> Any:
        """Raises ssl.SSLError: a name in it is not text; OpenSSL does not look at that."""
        try:
            return super().getpeercert(binary_form)
        except ValueError as error:
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, f"the certificate cannot be read: {error}") from None


def _context(config: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.sslobject_class = _Peer
    check_secret_file(Path(config.key), "tls.key")
    try:
        with _opened(config.certificate) as certificate, _opened(config.key) as key:
            context.load_cert_chain(certificate, key, password=_refuse_password)
    except OSError as error:  # ssl.SSLError, too
        raise BadValue(
            f"tls.certificate = {config.certificate}, tls.key = {config.key}: {_why(error)}:"
            " must be PEM files, the certificate with those of its issuers behind it, and the key that belongs to it"
        ) from None
    if config.ca:
        try:
            with _opened(config.ca) as authorities:
                context.load_verify_locations(authorities)
                revocations = REVOCATIONS in Path(authorities).read_bytes()
        except OSError as error:
            raise BadValue(f"tls.ca = {config.ca}: {_why(error)}: must be a PEM file of certificates") from None
        if revocations:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    context.verify_mode = _VERIFY[config.client_auth]
    return context


@contextlib.contextmanager
def _opened(name: str) -> Iterator[str]:
    """A path by which OpenSSL opens the file that ``name`` leads to now, as its owner.  Raises OSError."""
    with acting_as_owner(Path(name)):
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _refuse_password() -> str:
    raise BadValue("tls.key is encrypted: store it without a password, for the user of the service alone (0600)")


def _why(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error.strerror or error)
