"""Writes man pages: appliance(1), one for each command (appliance-topics(1)), and appliance.toml(5).

The texts are those of ``--help`` and of the keys, so the pages and the program agree.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.text import Text
from typer.main import get_command

from appliance.cli.command_tree import tree
from appliance.cli.faults import EXIT_STATUSES
from appliance.config import KEYS
from appliance.config_keys import Key

FILES = {
    "/etc/appliance/appliance.toml": "configuration of the service, see appliance.toml(5)",
    "/var/lib/appliance": "its data: messages, topics, users, committed offsets",
    "/usr/share/doc/appliance/systemd/README.md": "running it as a service, from installation to removal",
}
ENVIRONMENT = {
    "APPLIANCE_DATA": "the data directory, instead of --data",
    "APPLIANCE_CONNECT": "the native listener, instead of --connect",
    "APPLIANCE_CA, APPLIANCE_CERTIFICATE, APPLIANCE_KEY": "PEM files for listeners with TLS",
    "APPLIANCE_USER, APPLIANCE_PASSWORD_FILE": "the login, for listeners with SASL",
}


def write(directory: Path, version: str) -> None:
    """Write all pages below ``directory``, compressed."""
    for (name, section), text in pages(version).items():
        path = directory / f"man{section}" / f"{name}.{section}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), mtime=0))


def pages(version: str) -> dict[tuple[str, int], str]:
    """The pages as roff, by name and section."""
    root = get_command(tree())
    pages_by_name = {("appliance", 1): _lines(_root_page(root, version))}
    for name, command in sorted(root.commands.items()):
        if not command.hidden:
            pages_by_name[(f"appliance-{name}", 1)] = _lines(_command_page(name, command, version))
    pages_by_name[("appliance.toml", 5)] = _lines(_configuration_page(version))
    return pages_by_name


def _lines(parts: Iterator[str]) -> str:
    return "\n".join(parts) + "\n"


def _root_page(root: Any, version: str) -> Iterator[str]:
    yield from _head("APPLIANCE", 1, version, "appliance", "log broker in one box")
    yield from (".SH SYNOPSIS", r".B appliance", r"[\fIoption\fR...] \fIcommand\fR [\fIargument\fR...]")
    yield from (".SH DESCRIPTION", *_paragraphs(root.help))
    yield ".SH COMMANDS"
    for name, command in sorted(root.commands.items()):
        if not command.hidden:
            yield from (".TP", rf".BR {_safe('appliance-' + name)} (1)", _safe(_first(command.help)))
    yield from _options(root, ".SH OPTIONS")
    yield ".SH EXIT STATUS"
    for code, what in EXIT_STATUSES.items():
        yield from (".TP", f".B {code}", _safe(what))
    yield from _table("ENVIRONMENT", ENVIRONMENT)
    yield from _table("FILES", FILES)
    yield from (".SH SEE ALSO", r".BR appliance.toml (5),", r".BR systemctl (1),", r".BR journalctl (1)")


def _command_page(name: str, command: Any, version: str) -> Iterator[str]:
    full = f"appliance-{name}"
    yield from _head(full.upper(), 1, version, full, _first(command.help))
    inner = (
        {f"appliance {name}": command}
        if not hasattr(command, "commands")
        else _commands_below(command, f"appliance {name}")
    )
    yield ".SH SYNOPSIS"
    for words, inner_command in inner.items():
        yield from (f".B {_safe(words)}", _safe(_usage(inner_command)), ".br")
    if hasattr(command, "commands"):
        yield from (".SH DESCRIPTION", *_paragraphs(command.help))
        for words, inner_command in inner.items():
            yield from (
                f".SH {_safe(words.upper())}",
                *_paragraphs(inner_command.help),
                *_options(inner_command, ".PP"),
            )
    else:
        yield from (".SH DESCRIPTION", *_paragraphs(command.help), *_options(command, ".SH OPTIONS"))
    yield from (".SH EXIT STATUS", "As of", ".BR appliance (1).", ".SH SEE ALSO", r".BR appliance (1)")


def _commands_below(group: Any, words: str) -> dict[str, Any]:
    """The commands of a group, and of the groups in it."""
    commands: dict[str, Any] = {}
    for name, command in group.commands.items():
        full = f"{words} {name}"
        commands |= _commands_below(command, full) if hasattr(command, "commands") else {full: command}
    return commands


def _configuration_page(version: str) -> Iterator[str]:
    yield from _head("APPLIANCE.TOML", 5, version, "appliance.toml", "configuration of appliance(1)")
    text = (
        "A TOML file with a table for each part. Every key has a default, so an empty file is one. "
        "`appliance config check` names every fault; `appliance config show` prints all keys with their values."
    )
    yield from (".SH DESCRIPTION", *_paragraphs(text))
    table = ""
    for name, key in KEYS.items():
        if key.table != table:
            table = key.table
            yield f".SH {_safe('[' + table + ']')}"
        yield from (".TP", rf"\fB{_safe(name)}\fR = {_safe(_value(key.default))}", _safe(_about(key)))
    yield from _table("FILES", FILES)
    yield from (".SH SEE ALSO", r".BR appliance (1)")


def _about(key: Key) -> str:
    choices = f"One of: {', '.join(map(str, key.choices))}." if len(key.choices) > 1 else ""
    bounds = f"{key.least} to {key.most}." if not choices and key.least is not None and key.most is not None else ""
    unit = {"bytes": "Bytes.", "ms": "Milliseconds."}.get(key.unit, "")
    about = key.about[:1].upper() + key.about[1:].rstrip(".") + "."
    return " ".join(filter(None, (about, unit, choices, bounds)))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _head(title: str, section: int, version: str, name: str, what: str) -> Iterator[str]:
    day = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC).date()
    yield rf'.TH "{_safe(title)}" {section} "{day}" "appliance {_safe(version)}"'
    yield from (".SH NAME", rf"{_safe(name)} \- {_safe(what.rstrip('.'))}")


def _table(title: str, rows: dict[str, str]) -> Iterator[str]:
    yield f".SH {title}"
    for name, what in rows.items():
        yield from (".TP", f".B {_safe(name)}", _safe(what))


def _usage(command: Any) -> str:
    arguments = [_argument(param) for param in command.params if param.param_type_name == "argument"]
    return " ".join(filter(None, ["[option...]", *arguments]))


def _argument(param: Any) -> str:
    name = str(param.metavar or param.name.upper())
    bare = name.startswith("[") or param.required
    return (name if bare else f"[{name}]") + ("..." if param.nargs == -1 and not name.endswith("...") else "")


def _options(command: Any, heading: str) -> Iterator[str]:
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    if shown:
        yield heading
    for param in shown:
        if param.param_type_name == "argument":
            names = rf"\fI{_safe(_argument(param))}\fR"
        else:
            names = ", ".join(rf"\fB{_safe(option)}\fR" for option in [*param.opts, *param.secondary_opts])
            if param.metavar:
                names += rf" \fI{_safe(param.metavar)}\fR"
        yield from (".TP", names, _safe(_plain(param.help or "").rstrip(".") + "."))


def _paragraphs(text: str | None) -> Iterator[str]:
    """A help text: paragraphs; a line that is a command stands as it is."""
    for paragraph in re.split(r"\n\s*\n", _plain(text or "").strip()):
        joined = " ".join(paragraph.split())
        if re.match(r"(appliance|tail|printf|kcat) .*", joined):
            yield from (".PP", ".RS 4", ".nf", _safe(joined), ".fi", ".RE")
        elif joined:
            yield from (".PP", _safe(joined))


def _first(text: str | None) -> str:
    return " ".join(_plain(text or "").strip().split("\n\n")[0].split())


def _plain(text: str) -> str:
    return Text.from_markup(text.replace("\f", "")).plain


def _safe(text: str) -> str:
    """Text that roff shows as it is: its own characters escaped, a minus that can be copied into a shell."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped
