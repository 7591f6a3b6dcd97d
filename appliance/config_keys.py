"""Describes the keys of the configuration (names, bounds, units), reads them from files and parses their values.

A key's unit follows from its name: ``bytes`` also takes text such as ``"64MiB"`` or ``"10GB"``, ``ms`` also takes
``"30s"``, ``"7d"``; everything else is a plain number or text.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from .addresses import parse_addresses, parse_listeners
from .errors import BadValue
from .owners import acting_as_owner

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PROTOCOLS = ("native", "kafka")
"""The tables whose ``listen`` has listeners; that of another table is one plain address."""
Scalar = bool | int | float | str
Value = Scalar | tuple[str, ...]
LINE_SHOWN_MAX = 80
"""Characters of a line in a message."""

_HEADER = re.compile(r"""\s*\[((?:"[^"]*"|'[^']*'|[^\[\]"'])+)\]""")
_WORD = re.compile(r"""([\w-]+)|"([^"]*)"|'([^']*)'""", re.ASCII)
_FLOAT = re.compile(r"\d{1,20}(\.\d{1,20})?", re.ASCII)
_WITH_UNIT = re.compile(r"\s*(-?\d+(?:_\d+)*)\s*([A-Za-z]*)\s*")

SIZES = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4}
SIZES |= {"kib": KIB, "mib": MIB, "gib": GIB, "tib": 1 << 40}
DURATIONS_MS = {"": 1, "ms": 1, "s": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATIONS_MS |= {"w": 7 * 86_400_000}


class Key(NamedTuple):
    """One key of the configuration; ``unit`` is "bytes", "ms" or ""."""

    name: str
    table: str
    attribute: str
    kind: type
    choices: tuple[Scalar, ...]
    least: int | None
    most: int | None
    unit: str
    default: Any
    about: str

    def parse(self, value: object) -> Any:
        """Parse and check a value from a file or a command line: a :data:`Value` of its kind.

        Raises:
            ValueError: the message says which values are valid.
        """
        parsed: Scalar
        if self.kind is tuple:
            return _parse_list(value)
        if self.kind is bool:
            parsed = _parse_bool(value)
        elif self.kind is int:
            parsed = _parse_int(value, self.unit)
        elif self.kind is float:
            parsed = _parse_float(value)
        elif isinstance(value, str):
            parsed = ",".join(word.strip() for word in value.split(",")) if self.choices else value
        else:
            raise ValueError("must be text in quotes")
        if self.choices and parsed not in self.choices:
            raise ValueError("must be one of " + ", ".join(map(str, self.choices)))
        if self.least is not None and _number(parsed) < self.least:
            raise ValueError(f"must be at least {self.least}")
        if self.most is not None and _number(parsed) > self.most:
            raise ValueError(f"must be at most {self.most}")
        if self.attribute in ("listen", "advertised"):
            _check_listeners(self.table, str(parsed), self.attribute)
        return parsed


def _check_listeners(table: str, text: str, attribute: str) -> None:
    if table not in PROTOCOLS:
        if len(parse_addresses(text)) > 1:
            raise ValueError("must be one address")
        return
    listeners = parse_listeners(table, text)
    if attribute != "advertised":
        return
    if len({listener.security for listener in listeners}) < len(listeners) or any(
        listener.unix for listener in listeners
    ):
        raise ValueError("must be one address for each protocol: clients get only one")


def text_of(value: Value) -> str:
    """A value as text that :meth:`Key.parse` takes."""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("must be true or false")


def _parse_list(value: object) -> tuple[str, ...]:
    """A list of texts; a command line has them in one text, with commas between."""
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise ValueError('must be a list of texts, such as ["a", "b"]')


def _parse_int(value: object, unit: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    units = {"bytes": SIZES, "ms": DURATIONS_MS}.get(unit, {"": 1})
    example = {"bytes": ', such as 1048576 or "1MiB"', "ms": ', such as 5000, "5s" or "7d"'}.get(unit, "")
    number = parse_units(value, units) if isinstance(value, str) else None
    if number is None:
        raise ValueError(f"must be a whole number{example}")
    return number


def _number(value: Scalar) -> int | float:
    return value if isinstance(value, float) else int(value)


def _parse_float(value: object) -> float:
    text = str(value).strip()
    if isinstance(value, bool) or not _FLOAT.fullmatch(text):
        raise ValueError("must be a number, such as 0.5")
    return float(text)


def parse_units(text: str, units: Mapping[str, int]) -> int | None:
    """Parse a whole number with an optional one of the ``units`` after it; None for any other text."""
    match = _WITH_UNIT.fullmatch(text)
    if match is None or match[2].lower() not in units:
        return None
    return int(match[1]) * units[match[2].lower()]


def keys_of(table: str, struct: type[Struct]) -> Iterator[Key]:
    """Yields the keys of one table, from the annotations of its struct."""
    hints = get_type_hints(struct, include_extras=True)
    own_first = sorted(msgspec.structs.fields(struct), key=lambda field: "." in field.encode_name)
    for field in own_first:
        kind, meta = get_args(hints[field.name])
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        words = re.split(r"[._]", field.encode_name)
        unit = next((unit for unit in ("bytes", "ms") if unit in words), "")
        yield Key(
            name=f"{table}.{field.encode_name}" if table else field.encode_name,
            table=table,
            attribute=field.name,
            kind=type(choices[0]) if choices else get_origin(kind) or kind,
            choices=choices,
            least=meta.ge,
            most=meta.le,
            unit=unit,
            default=field.default,
            about=meta.description,
        )


def nearest(name: str, keys: Mapping[str, Key]) -> str:
    """The end of a message about an unknown key: the nearest known key, or how to list all keys."""
    close = difflib.get_close_matches(name, keys, n=1, cutoff=0.5)
    last_word = [key for key in keys if key.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    candidates = close or last_word
    return f": did you mean {candidates[0]!r}?" if candidates else "; `appliance config show` lists all keys"


def read_file(path: Path) -> Iterator[tuple[str, object, int]]:
    """Yields the dotted names and the values of a TOML file, with the line of each, 0 if it is not found.

    Raises:
        BadValue: it cannot be read, or is not TOML.
    """
    try:
        values, text = _read_toml(path)
    except OSError as error:
        raise BadValue(f"{path}: cannot be read: {error.strerror}") from None
    lines = lines_of(text)
    return ((name, value, lines.get(name, 0)) for name, value in _flatten(values))


def lines_of(text: str) -> dict[str, int]:
    """The lines, from 1, on which dotted names get their values, as people write them: one on each line."""
    lines_by_name: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            table = _table_name(header[1])
        elif assignment := re.match(r"""\s*([\w.-]+|"[^"]+")\s*=""", line):
            name = assignment[1].strip('"')
            lines_by_name.setdefault(f"{table}.{name}" if table else name, number)
    return lines_by_name


def line_of_table(text: str, table: str) -> int | None:
    """The line, from 1, with the first header of a table; None if there is none."""
    for number, line in enumerate(text.split("\n"), 1):
        if (header := _HEADER.match(line)) and _table_name(header[1]) == table:
            return number
    return None


def _table_name(header: str) -> str:
    """The dotted name of a table, as :func:`read_file` has it."""
    return ".".join(_dotted(bare or quoted or other) for bare, quoted, other in _WORD.findall(header))


def _dotted(word: str) -> str:
    """The name of a table within a dotted name: as TOML has it, in quotes unless it may be bare."""
    return word if re.fullmatch(r"[\w-]+", word) else f'"{word}"'


def read_toml(path: Path) -> dict[str, object]:
    """Read a TOML file.

    Raises:
        BadValue: it is not TOML; the message has the line.
        OSError: it cannot be read.
    """
    return _read_toml(path)[0]


def _read_toml(path: Path) -> tuple[dict[str, object], str]:
    """What a TOML file holds, and its text, from one reading."""
    try:
        with acting_as_owner(path):
            text = path.read_text()
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        raise BadValue(f"{path}: {_explained(error, text)}") from None
    except UnicodeDecodeError as error:
        raise BadValue(f"{path}: not UTF-8 text: byte {error.start}") from None


def _explained(error: tomllib.TOMLDecodeError, text: str) -> str:
    """What is wrong with a text that is not TOML, and in which line, if that is not its end."""
    said = re.sub(r"\('([^)]*?)',?\)", lambda names: "[" + names[1].replace("', '", ".") + "]", str(error))
    match = re.search(r"\(at line (\d+),", said)
    if not match:
        return f"not TOML: {said}"
    lines = [line.strip() for line in text.split("\n")]  # TOML knows no other ends of lines
    number = int(match[1])
    line, before = lines[number - 1], lines[: number - 1]
    if "twice" in said and (heading := _heading(line)) in map(_heading, before):
        at = 1 + list(map(_heading, before)).index(heading)
        return f"line {number}: {heading} is in line {at} already: move its keys to there, and delete line {number}"
    key = line.partition("=")[0].strip()
    for at in range(len(before), 0, -1):
        if _heading(before[at - 1]) or "overwrite" not in said:
            break
        if before[at - 1].partition("=")[0].strip() == key:
            return f"line {number}: {key} has a value in line {at} already: delete one of them"
    return f"not TOML: {said}: {line[:LINE_SHOWN_MAX]!r}"


def _heading(line: str) -> str:
    """``[table]`` without blanks and comment, if the line is one."""
    match = re.match(r"(\[[^\[\]#]+\])\s*(#|$)", line)
    return "".join(match[1].split()) if match else ""


def _flatten(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for word, inner in value.items():
            part = _dotted(word) if isinstance(inner, dict) else word
            yield from _flatten(inner, f"{prefix}.{part}" if prefix else part)
    else:
        yield prefix, value


def split_overrides(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the names and the values of ``key=value`` texts.

    Raises:
        BadValue: a text is none.
    """
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise BadValue(f"{text!r}: must be key=value, such as network.workers=2")
        yield name.strip(), value.strip()
