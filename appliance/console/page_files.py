"""Serves the files of the page from memory, with a hash of their content as ETag."""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
FIRST: Final = "index.html"


class _File(NamedTuple):
    content: bytes
    packed: bytes
    media_type: str
    tag: str


class PageFiles:
    """All files of the package ``console/page``, by the path that a browser asks for."""

    def __init__(self) -> None:
        """Raises OSError: the installation lacks them."""
        self._files: dict[str, _File] = {}
        for entry in files("appliance.console").joinpath("page").iterdir():
            kind = entry.name.rpartition(".")[2]
            if kind in TYPES:
                content = entry.read_bytes()
                tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                path = "/" if entry.name == FIRST else f"/{entry.name}"
                self._files[path] = _File(content, gzip.compress(content, mtime=0), TYPES[kind], tag)

    @property
    def paths(self) -> list[str]:
        return sorted(self._files)

    async def answer(self, request: Request) -> Response:
        """A browser may keep a file, but asks each time whether it has changed: an upgrade shows at once."""
        file = self._files[request.url.path]
        headers = {"etag": file.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if file.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            return Response(file.packed, headers=headers, media_type=file.media_type)
        return Response(file.content, headers=headers, media_type=file.media_type)
