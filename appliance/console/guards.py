"""Checks every request before the application gets it, and adds to every answer headers that browsers enforce.

* The Host header is an IP address, ``localhost``, or a name from ``console.hosts``.  A page of another site that makes
  its own name point here (DNS rebinding) is refused: its requests carry that name.
* A request that is not a GET comes from this page: its Origin, if it has one, is the Host, and its body is JSON, which
  a form of another site cannot send.
* The content security policy allows only what this server sends as a file: no inline script, no inline style, no
  frame, nothing from elsewhere.  With Trusted Types the browser refuses to make markup from text.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..addresses import host_of, is_own_host

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)


class RequestGuard:
    """The outermost ASGI application.  ``names``: those that the browser may call this server by, in lower case."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        fault = self._fault_of(scope["method"], Headers(scope=scope))
        if fault is None:
            await self._app(scope, receive, guarded)
            return
        status, why = fault
        body = msgspec.json.encode({"error": why})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await guarded({"type": "http.response.start", "status": status, "headers": headers})
        await guarded({"type": "http.response.body", "body": body})

    def _fault_of(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not is_own_host(host_of(host), self._names):
            return 421, "this name is not one of the console's: add it to console.hosts, or use the address"
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return 405, "GET and POST only"
        origin = headers.get("origin", "")
        if origin and origin.partition("://")[2].lower() != host.lower():
            return 403, "this request comes from another page"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "this request comes from another page"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "the body must be application/json"
        return None
