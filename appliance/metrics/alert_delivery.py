"""Delivers alerts: by POST to a webhook, and by the mail program of the host.

A webhook gets JSON: ``text`` (one line, which chat systems show), ``event`` (begins, ends, digest), ``condition``,
``level``, ``at`` and ``since`` (seconds since 1970), ``findings`` (what, why, todo), ``appliance`` (host, data,
version) and ``id``, which is the same when an event comes twice.  Any answer of the 200s is taken for received.

Bounds: those of :mod:`appliance.web.webhook`, and ``MAIL_S_MAX`` for the mail program.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any, Final

from ..alert_settings import Alerts
from ..health.alerts import BEGINS, DIGEST, Event, text_of
from ..units import duration
from ..web.webhook import NotDelivered

WEBHOOK, MAIL = "webhook", "mail"
MAIL_S_MAX: Final = 30


def message_of(event: Event, appliance: Mapping[str, str]) -> dict[str, Any]:
    """The JSON of an event."""
    told = {name: getattr(event, name) for name in ("event", "condition", "level", "at", "since", "findings")}
    named = f"{appliance['host']}:{appliance['data']}:{event.number}:{event.at}"
    return {"text": f"{appliance['host']}: {text_of(event)}", "id": named, "appliance": dict(appliance), **told}


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
    lines = [f"{appliance['host']}, {appliance['data']}: {f'{event.condition} {event.event}'.strip()}"]
    if event.event == DIGEST:
        lines.append(f"What there was in {duration(max(0.0, event.at - event.since))}.")
    elif event.event != BEGINS:
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
