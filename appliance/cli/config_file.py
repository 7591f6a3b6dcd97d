"""Changes configuration files: one key, or a whole text, and only if what is read afterwards is what was meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ..config import KEYS, Config, load
from ..config_keys import Value, line_of_table, lines_of
from ..durable_files import replace_file
from ..errors import ConfigFault
from ..topic_patterns import split_name

_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|\[[^\[\]\n]*\]|[^\s#"'\[][^#\n]*?)"""


def replace_config(config: Path, text: str, check: Callable[[Path], object] = load) -> None:
    """Replace a configuration by a text that ``check`` finds right; its owner and mode stay.

    Raises:
        ConfigFault: the text is wrong; nothing has changed.
    """
    before = config.stat() if config.exists() else None
    replace_file(
        config,
        text.encode(),
        mode=0o644 if before is None else before.st_mode & 0o777,
        owner=None if before is None else (before.st_uid, before.st_gid),
        check=check,
    )


def with_key(text: str, name: str, value: str) -> str:
    """A TOML text with another value of one key; comments and everything else stay.

    Args:
        name: the dotted name of the key.
        value: as TOML has it.

    Raises:
        ConfigFault: the present value is longer than its line.
    """
    lines = text.split("\n")
    number = lines_of(text).get(name)
    if number is not None:
        match = re.fullmatch(rf"(\s*(?:[\w.-]+|\"[^\"]+\")\s*=\s*){_VALUE}(\s*(?:#.*)?)", lines[number - 1])
        if match is None:
            raise ConfigFault(f"line {number} has only a part of the value of {name}: change it there")
        lines[number - 1] = f"{match[1]}{value}{match[2]}"
        return "\n".join(lines)
    table, inner = _table_of(name)
    at = line_of_table(text, table)
    if at is not None:
        lines.insert(at, f"{inner} = {value}")
        return "\n".join(lines)
    begun = f"{text.rstrip()}\n\n" if text.strip() else ""
    return f"{begun}[{table}]\n{inner} = {value}\n"


def _table_of(name: str) -> tuple[str, str]:
    """The table of a key, and its name in there: inputs and patterns of topics have a table each."""
    if pattern := split_name(name):
        return name.removesuffix(f".{pattern[1]}"), pattern[1]
    table = KEYS[name].table if name in KEYS else name.rpartition(".")[0]
    return table, name.removeprefix(f"{table}.")


def differences(before: Config, after: Config) -> dict[str, tuple[Value, Value]]:
    """What differs, by the name of the key: before, after; "" stands for a key of an input or a pattern that is not
    there.
    """
    old, new = before.flat(), after.flat()
    return {
        name: (old.get(name, ""), new.get(name, ""))
        for name in {**old, **new}
        if old.get(name, "") != new.get(name, "")
    }
