"""How a client of the native listener proves who it is, and knows the appliance.

What is not given comes from the environment, as with libpq, so that commands and Spark's executors need no arguments::

    APPLIANCE_CA             ca             PEM file of the authorities that sign certificates of appliances
    APPLIANCE_CERTIFICATE    certificate    PEM file of this client's own certificate, for mTLS
    APPLIANCE_KEY            key            PEM file of its private key, 0600
    APPLIANCE_USER           user           the user to log in as
    APPLIANCE_PASSWORD_FILE  password_file  file whose first line is the password, 0600

The first three are used with bootstrap addresses that begin with ``SSL://`` or ``SASL_SSL://``, the others with
``SASL_SSL://`` or ``SASL_PLAINTEXT://``.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, fields
from pathlib import Path

from ..errors import BadValue
from ..security.secret_files import check_secret_file, read_given_password
from .arguments import check_texts
from .client_login import ClientLogin


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """``ca``: "" for the authorities of the system."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    user: str = ""
    password_file: str = ""

    def __post_init__(self) -> None:
        """
        Raises:
            BadValue: one of these is no text.
        """
        check_texts(**{field.name: getattr(self, field.name) for field in fields(self)})

    @staticmethod
    def from_environment() -> ClientSecurity:
        variables = {
            field.name: os.environ.get(f"APPLIANCE_{field.name.upper()}", "") for field in fields(ClientSecurity)
        }
        return ClientSecurity(**variables)

    def login(self) -> ClientLogin:
        """The login of connections that need one.

        Raises:
            BadValue: there is no user, or its password cannot be read.
        """
        if not self.user or not self.password_file:
            raise BadValue(
                "SASL_SSL:// and SASL_PLAINTEXT:// need a user: give APPLIANCE_USER and APPLIANCE_PASSWORD_FILE"
            )
        return ClientLogin(self.user, read_given_password(Path(self.password_file), "password file"))

    def context(self) -> ssl.SSLContext:
        """The context of connections with TLS.

        Raises:
            BadValue: a file cannot be used.
        """
        if bool(self.certificate) != bool(self.key):
            raise BadValue("a certificate of the client has its key beside it: give both, or neither")
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                check_secret_file(Path(self.key), "key of the client")
                context.load_cert_chain(self.certificate, self.key, password=_refuse_password)
        except OSError as error:
            files = ", ".join(filter(None, (self.ca, self.certificate, self.key)))
            raise BadValue(f"files for TLS ({files}): {error.strerror or error}: must be PEM files") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


def _refuse_password() -> str:
    raise BadValue("the key of the client is encrypted: store it without a password (0600)")
