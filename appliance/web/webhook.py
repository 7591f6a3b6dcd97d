"""Posts JSON to a URL that the configuration names: a webhook.

The URL comes from who runs the appliance, or a pipeline.  Nothing else decides where requests go: answers that lead
elsewhere are faults, and connections are those of :mod:`.pinned_connection`.  Any answer of the 200s is taken for
received.  Errors have no URL in them.

Bounds: ``TIMEOUT_S`` for a request and its answer, ``ANSWER_BYTES_MAX`` of an answer.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ..alert_settings import needs_tls, split_webhook
from ..errors import BadValue
from ..security.secret_files import read_password
from .pinned_connection import AddressRefused, PinnedConnection

TIMEOUT_S: Final = 10
ANSWER_BYTES_MAX: Final = 64 << 10


class NotDelivered(Exception):
    """An alert could not be delivered now; the message says why, and has no secret."""


def post(webhook: str, allow_insecure: bool, body: Mapping[str, Any], key: str = "alerts.webhook") -> None:
    """Post JSON.

    Args:
        webhook: the URL, or the path of a file (0600) with it.
        allow_insecure: also to other hosts without TLS.
        key: that of the setting, which errors name.

    Raises:
        NotDelivered.
    """
    try:
        text = read_password(Path(webhook), key) if webhook.startswith("/") else webhook
        url = split_webhook(text)
        if needs_tls(url) and not allow_insecure:
            raise ValueError("must have https://")
        path = f"{url.path or '/'}{'?' if url.query else ''}{url.query}"
        headers = {"Content-Type": "application/json", "User-Agent": "appliance", "Connection": "close"}
        connection = PinnedConnection(url, TIMEOUT_S)
        status, _ = connection.exchange("POST", path, headers, ANSWER_BYTES_MAX, msgspec.json.encode(body))
    except (BadValue, ValueError) as error:
        raise NotDelivered(f"{key}: {error}") from None
    except AddressRefused as error:
        raise NotDelivered(str(error)) from None
    except (OSError, http.client.HTTPException) as error:
        raise NotDelivered(f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'no answer'}") from None
    if not 200 <= status < 300:
        raise NotDelivered(f"answered with {status}")
