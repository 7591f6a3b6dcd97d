"""Delivers alerts: by POST to a webhook, and by the mail program of the host.

A webhook gets JSON: ``text`` (one line, which chat systems show), ``event`` (begins, ends), ``condition``, ``level``,
``at`` and ``since`` (seconds since 1970), ``findings`` (what, why, todo), ``appliance`` (host, data, version) and
``id``, which is the same when an event comes twice.  Any answer of the 200s is taken for received.

The URL comes from who runs the appliance.  Nothing else decides where requests go: answers that lead elsewhere are
faults, proxies of the environment are not asked, a name is resolved once and these addresses are connected to, and
addresses of the link, where clouds have their credentials (169.254.169.254), are refused.  Errors have no URL in them.

Bounds: ``TIMEOUT_S`` for each step of a request, ``MAIL_S_MAX`` for the mail program, ``ANSWER_BYTES_MAX`` of an
answer.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import os
import ssl
import subprocess
from collections.abc import Mapping
from email.message import EmailMessage
from pathlib import Path
from socket import AF_UNSPEC, SOCK_STREAM, create_connection, gaierror, getaddrinfo
from typing import Any, Final

import msgspec

from ..alert_settings import Alerts, needs_tls, split_webhook
from ..errors import BadValue
from ..health.alerts import BEGINS, Event, text_of
from ..security.secret_files import read_password
from ..units import duration

WEBHOOK, MAIL = "webhook", "mail"
TIMEOUT_S: Final = 10
MAIL_S_MAX: Final = 30
ANSWER_BYTES_MAX: Final = 64 << 10


class NotDelivered(Exception):
    """An alert could not be delivered now; the message says why, and has no secret."""


def message_of(event: Event, appliance: Mapping[str, str]) -> dict[str, Any]:
    """The JSON of an event."""
    told = {name: getattr(event, name) for name in ("event", "condition", "level", "at", "since", "findings")}
    named = f"{appliance['host']}:{appliance['data']}:{event.number}:{event.at}"
    return {"text": f"{appliance['host']}: {text_of(event)}", "id": named, "appliance": dict(appliance), **told}


def post(alerts: Alerts, allow_insecure: bool, body: Mapping[str, Any]) -> None:
    """Post an event.

    Raises:
        NotDelivered.
    """
    try:
        text = alerts.webhook
        if text.startswith("/"):
            text = read_password(Path(text), "alerts.webhook")
        url = split_webhook(text)
        if needs_tls(url) and not allow_insecure:
            raise ValueError("must have https://")
        host, port = str(url.hostname), url.port or (443 if url.scheme == "https" else 80)
        connection = _Pinned(host, port, url.scheme == "https", _addresses(host, port))
        path = f"{url.path or '/'}{'?' if url.query else ''}{url.query}"
        headers = {"Content-Type": "application/json", "User-Agent": "appliance", "Connection": "close"}
        try:
            connection.request("POST", path, msgspec.json.encode(body), headers)
            answer = connection.getresponse()
            answer.read(ANSWER_BYTES_MAX)
        finally:
            connection.close()
    except (BadValue, ValueError) as error:
        raise NotDelivered(f"alerts.webhook: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        raise NotDelivered(f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'no answer'}") from None
    if not 200 <= answer.status < 300:
        raise NotDelivered(f"answered with {answer.status}")


def _addresses(host: str, port: int) -> list[str]:
    """The addresses of a host, in the order in which to try them.

    Raises:
        NotDelivered: it has none, or one that nobody may be told to ask.
    """
    try:
        found = getaddrinfo(host, port, AF_UNSPEC, SOCK_STREAM)
    except (gaierror, UnicodeError):
        raise NotDelivered("its name cannot be resolved") from None
    for *_, (address, *_) in found:
        one = ipaddress.ip_address(str(address).partition("%")[0])
        one = getattr(one, "ipv4_mapped", None) or one
        if one.is_link_local or one.is_multicast or one.is_unspecified:
            raise NotDelivered("its address is one of the link, of a group, or of nobody: refused")
    return [str(one[4][0]) for one in found]


class _Pinned(http.client.HTTPConnection):
    """Connects to one of the addresses, whatever the name resolves to next; TLS is for the name."""

    def __init__(self, host: str, port: int, tls: bool, addresses: list[str]) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self.default_port = 443 if tls else 80
        self._tls, self._addresses = tls, addresses

    def connect(self) -> None:
        *others, last = self._addresses
        for address in others:
            with contextlib.suppress(OSError):
                self.sock = create_connection((address, self.port), TIMEOUT_S)
                break
        else:
            self.sock = create_connection((last, self.port), TIMEOUT_S)
        if self._tls:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def send_mail(alerts: Alerts, event: Event, appliance: Mapping[str, str]) -> None:
    """Let the host's program send a mail.

    Raises:
        NotDelivered.
    """
    mail = EmailMessage()
    mail["To"] = ", ".join(alerts.recipients)
    mail["Subject"] = _line(f"[{appliance['host']}] {text_of(event)}")[:200]
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(_mail_text(event, appliance))
    command = [alerts.sendmail, "-i", "--", *alerts.recipients]
    try:
        said = subprocess.run(
            command,
            input=mail.as_bytes(),
            capture_output=True,
            timeout=MAIL_S_MAX,
            check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C", "HOME": os.environ.get("HOME", "/")},
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or f"took more than {MAIL_S_MAX} s"
        raise NotDelivered(f"{alerts.sendmail}: {reason}") from None
    if said.returncode:
        why = _line(said.stderr.decode(errors="replace"))[:200]
        raise NotDelivered(f"{alerts.sendmail} has ended with {said.returncode}: {why}")


def _mail_text(event: Event, appliance: Mapping[str, str]) -> str:
    lines = [f"{appliance['host']}, {appliance['data']}: {event.condition} {event.event}"]
    if event.event != BEGINS:
        lines.append(f"It has lasted for {duration(max(0.0, event.at - event.since))}.")
    for row in event.findings:
        lines += [
            "",
            row["what"],
            *(f"  {name}: {row[key]}" for name, key in (("why", "why"), ("do", "todo")) if row[key]),
        ]
    return "\n".join(map(_line, lines)) + "\n"


def _line(text: str) -> str:
    """A text on one line, without characters that act."""
    return "".join(character if character.isprintable() else " " for character in text).rstrip()
