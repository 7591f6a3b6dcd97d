"""Builds the parsers of lines: one for each kind of log, each for a whole Arrow array at once.

Every event has the common columns ``time host service level message``; a parser may add typed ones of its own.  A line
that a parser does not take is not matched, and may get a reason.  No line raises an error::

    syslog, access, java, ...   formats that are known by name: ``known_formats``
    json, logfmt        fields as configured: ``json_parser``, ``logfmt_parser``; journald and docker are JSON
    cef                 what security devices send: ``cef_parser``
    regex               named groups: ``regex_parser``
    plain               any line, as its message
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import BadValue
from .cef_parser import TIME_FORMATS, Cef
from .columns import COMMON, LineParser, Parsed
from .json_parser import DOCKER, JOURNALD, Json
from .known_formats import FORMATS
from .logfmt_parser import Logfmt
from .regex_parser import OwnRegex
from .settings import Parser, Source
from .times import ANY, Times


@dataclass
class Plain:
    """Takes every line."""

    name: str = "plain"
    fields: Mapping[str, pa.DataType] = field(default_factory=dict)

    def parse(self, lines: pa.Array, received: datetime) -> Parsed:
        return Parsed(pc.is_valid(lines), {"message": lines})


def build(name: str, source: Source, own: Mapping[str, Parser]) -> LineParser:
    """The parser of that name, for lines of ``source``.

    Raises:
        BadValue: an invalid pattern, format of times, or time zone.
    """
    if name == "plain":
        return Plain()
    if name in FORMATS and name not in own:
        form = FORMATS[name]
        return form.parser(name, _times(name, form.formats, source))
    if name == "cef" and name not in own:
        return Cef(_times(name, TIME_FORMATS, source))
    presets = {"journald": JOURNALD, "docker": DOCKER, "json": Parser(kind="json"), "logfmt": Parser(kind="logfmt")}
    settings = own[name] if name in own else presets[name]
    if clash := set(settings.columns) & set(COMMON):
        raise BadValue(
            f"parser.{name}: {', '.join(sorted(clash))}: has a column already; say which field it is taken from"
        )
    if settings.rest and (settings.rest in COMMON or settings.rest in settings.columns or settings.kind == "regex"):
        raise BadValue(f"parser.{name}: rest = {settings.rest!r}: name a new column, of a parser for json or logfmt")
    if settings.unknown != "rescue" and (settings.kind == "regex" or settings.rest):
        raise BadValue(
            f"parser.{name}: unknown = {settings.unknown!r} is for json and logfmt, and leaves nothing for rest"
        )
    kinds: dict[str, Callable[[str, Parser, Times], LineParser]] = {"json": Json, "logfmt": Logfmt, "regex": OwnRegex}
    times = _times(name, settings.time_formats or ANY, source)
    if settings is DOCKER:
        return Json(name, settings, times, needs=DOCKER.message)
    return kinds[settings.kind](name, settings, times)


def _times(name: str, formats: Sequence[str], source: Source) -> Times:
    try:
        Times((), source.zone)
    except (KeyError, ValueError, OSError) as error:
        raise BadValue(f"zone = {source.zone!r}: no such time zone: {error}") from None
    try:
        return Times(formats, source.zone)
    except ValueError as error:
        raise BadValue(f"parser.{name}: time_formats: {error}") from None
