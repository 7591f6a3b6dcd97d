"""The table ``[alerts]`` of the configuration: who is told when something goes wrong, and when it is over."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta, Struct


class Alerts(Struct, frozen=True):
    webhook: Annotated[
        str,
        Meta(description="URL that gets a POST of JSON, or the path of a file (0600) with it, for one with a secret"),
    ] = ""
    mail_to: Annotated[str, Meta(description='addresses that get mail: "ops@example.net,b@example.net"; "" = none')] = (
        ""
    )
    sendmail: Annotated[str, Meta(description="program of this host that sends the mail")] = "/usr/sbin/sendmail"
    level: Annotated[Literal["warning", "critical"], Meta(description="lowest level that is told")] = "warning"
    digest: Annotated[
        str, Meta(description='time of day, as "07:00" here, when all of the last day is told; "" = never')
    ] = ""
    look_ms: Annotated[
        int, Meta(ge=100, description="how often to look; what is found twice begins, what is missing 3 times ends")
    ] = 10_000

    @property
    def has_receivers(self) -> bool:
        """Whether anybody is told: there is an address for mail, or a webhook."""
        return bool(self.webhook or self.mail_to)

    @property
    def recipients(self) -> list[str]:
        """The addresses that get mail."""
        return [part.strip() for part in self.mail_to.split(",") if part.strip()]


def split_webhook(text: str) -> SplitResult:
    """A URL that can be posted to.

    Raises:
        ValueError: says what would be right; has nothing of the URL, which may be a secret.
    """
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise ValueError("is no URL") from None
    if url.scheme not in ("http", "https") or not url.hostname or port == 0 or not text.isascii():
        raise ValueError("must be a URL with http:// or https://")
    if url.username is not None or re.search(r"[\s\x00-\x1f]", text):
        raise ValueError("must be a URL without a user, a space or a line break")
    return url


def needs_tls(url: SplitResult) -> bool:
    """Whether a URL without TLS leads to another host."""
    host = url.hostname or ""
    if url.scheme == "https" or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def fault_of_webhook(webhook: str, allow_insecure: bool) -> str:
    """What is wrong with a URL, or the path of a file with one; "": nothing."""
    if not webhook or webhook.startswith("/"):
        return ""
    try:
        url = split_webhook(webhook)
    except ValueError as error:
        return f"{error}, or the path of a file with one"
    if url.query:
        return "has a query, which is a secret as a rule: put the URL into a file, and name that"
    return f"= {webhook}: must have https://" if needs_tls(url) and not allow_insecure else ""


def faults_of_alerts(alerts: Alerts, allow_insecure: bool) -> Iterator[str]:
    """What is wrong with the settings, each with what would be right."""
    if fault := fault_of_webhook(alerts.webhook, allow_insecure):
        insecure = ", or set security.allow_insecure = true" if fault.endswith("https://") else ""
        yield f"alerts.webhook {fault}{insecure}"
    for address in alerts.recipients:
        if not re.fullmatch(r"[A-Za-z0-9._%+/=-][A-Za-z0-9._%+/=@-]*", address) or address.startswith("-"):
            yield f"alerts.mail_to: {address} is no address"
    if alerts.digest and not re.fullmatch("([01][0-9]|2[0-3]):[0-5][0-9]", alerts.digest):
        yield f"alerts.digest = {alerts.digest:.20}: must be a time of day, as 07:00"
    elif alerts.digest and not alerts.has_receivers:
        yield "alerts.digest: nobody would get it: set alerts.webhook or alerts.mail_to"
    if alerts.mail_to and not alerts.sendmail.startswith("/"):
        yield f"alerts.sendmail = {alerts.sendmail}: must be a path from the root"
