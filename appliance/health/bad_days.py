"""Writes the table of conditions into systemd/README.md, under "A bad day".

``python -m appliance.health.bad_days systemd/README.md`` makes the table of that file again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from .conditions import CONDITIONS, Condition

BEGIN: Final = "<!-- The table of appliance/health/conditions.py, by: python -m appliance.health.bad_days FILE -->\n"
END: Final = "<!-- End of the table -->\n"
HEAD: Final = "| what people notice | `doctor` finds | from | what to do |\n|---|---|---|---|\n"


def table() -> str:
    return HEAD + "".join(map(_row, CONDITIONS))


def with_table(page: str) -> str:
    """The page with the present table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _row(condition: Condition) -> str:
    status = f", {condition.exit_status}" if condition.exit_status else ""
    told_as = f"[`{condition.name}`](#{condition.page}): {condition.level}{status}"
    cells = (condition.symptom, told_as, condition.seen, condition.todo)
    return "".join(f"| {cell.replace('|', chr(92) + '|')} " for cell in cells) + "|\n"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text()))
