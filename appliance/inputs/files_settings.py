"""What an input of files needs to know, and how it follows from a table of the configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..input_settings import Files, event_starts
from ..records.encode import Headers
from .machinery import InputTopics


class FilesSettings(NamedTuple):
    """What the engine needs to know; times in ms.

    ``topic_of``: the topic of a path; ``headers_of``: the headers of its messages; ``starts``: see
    :class:`.lines.LineReader`.
    """

    include: Sequence[str]
    exclude: Sequence[str]
    topic_of: Callable[[str], str]
    headers_of: Callable[[str], Headers]
    from_end: bool = False
    encoding: str = "utf-8"
    starts: Callable[[bytes], bool] | None = None
    event_ms: int = 5_000
    message_bytes_max: int = 1 << 20
    scan_ms: int = 10_000
    rotate_ms: int = 5_000
    files_max: int = 10_000
    follow: bool = True


def files_settings(settings: Files) -> FilesSettings:
    """Those of a table of the configuration."""
    topics = InputTopics(settings.topic, settings.topics_max)

    def topic_of(path: str) -> str:
        directory, name = os.path.split(path)
        return topics.topic_for({"file": name.split(".")[0] or name, "directory": os.path.basename(directory)})

    return FilesSettings(
        settings.include,
        settings.exclude,
        topic_of=topic_of,
        headers_of=lambda path: [("file", path.encode("utf-8", "surrogateescape"))],
        from_end=settings.start == "end",
        encoding=settings.encoding,
        starts=event_starts(settings.event_start) if settings.event_start else None,
        event_ms=settings.event_ms,
        message_bytes_max=settings.message_bytes_max,
        scan_ms=settings.scan_ms,
        rotate_ms=settings.rotate_ms,
        files_max=settings.files_max,
    )
