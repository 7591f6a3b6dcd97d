"""appliance/LIMITS.md: each row has the value that the code has, whatever unit it is written in."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import appliance
from appliance.config import KEYS, Config
from appliance.groups.messages import Limits
from appliance.input_settings import TYPES

PAGE = Path(appliance.__file__).parent / "LIMITS.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().splitlines()
    if line.startswith("|") and not line.startswith(("| bound", "|---"))
]
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
TIMES_MS = {"ms": 1, "s": 1000, "min": 60_000, "d": 86_400_000}


def value_in_code(where: str) -> tuple[str, int]:
    """The name, and its value now: a default, a constant, or a field of the limits of groups."""
    key = re.fullmatch(r"`([\w.]+)`", where)
    if key:
        return key[1], int(Config().value(key[1]))
    of_input = re.fullmatch(r"`(\w+)` of inputs `(\w+)`", where)
    if of_input:
        return of_input[1], int(getattr(TYPES[of_input[2]](), of_input[1]))
    constant = re.fullmatch(r"`(\w+)` in `([\w/]+)\.py`", where)
    assert constant, f"{where}: write a key, or a name in a module"
    name, module = constant[1], importlib.import_module(f"appliance.{constant[2].replace('/', '.')}")
    return name, int(getattr(Limits() if name.islower() else module, name))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2])
def test_a_row_has_the_value_of_the_code(row: list[str]) -> None:
    _, said, where, beyond = row
    name, value = value_in_code(where)
    number, _, unit = said.replace(",", "").partition(" ")
    factor = UNITS.get(unit) or TIMES_MS.get(unit, 1)
    assert int(number) * factor == value, f"{name} is {value}"
    assert beyond
    if unit in TIMES_MS:
        assert re.search(r"_ms\b|\.ms\b|_MS\b|_ms_|_MS_", name), f"{name} is no time in ms"
    if unit in UNITS:
        assert re.search("bytes", name, re.IGNORECASE), f"{name} is no number of bytes"


def test_every_key_that_bounds_something_has_a_row() -> None:
    """Keys of other packages of settings that end as bounds do; those that only set a pace or a place are no bounds."""
    bounds = {key for key in KEYS if re.search(r"_max$|_min$|[_.]ms$|bytes$", key)}
    assert bounds - {row[2].strip("`") for row in ROWS} == NO_BOUNDS


NO_BOUNDS = {
    *("alerts.look_ms", "console.chart_ms", "disk.check_ms", "scrub.every_ms"),
    *("topics.flush.bytes", "topics.flush.ms", "topics.index.interval.bytes"),
}
"""How often something is done."""
