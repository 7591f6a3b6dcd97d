"""Writes the table of the Kafka APIs into the page for clients.

``python -m appliance.kafka_apis.client_page tests/clients/README.md`` makes the table of that file again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from ..security.acls import word
from ..wire.kafka.apis import APIS, Api

BEGIN: Final = (
    "<!-- The rows of appliance/wire/kafka/apis.py, by: python -m appliance.kafka_apis.client_page FILE -->\n"
)
END: Final = "<!-- End of the table -->\n"
HEAD: Final = "| API | key | versions | by | rights | notes |\n|---|---|---|---|---|---|\n"


def table() -> str:
    """The lines of the table, and of what is behind Kafka."""
    behind = "".join(f"* {api.name}: {api.behind}.\n" for api in APIS.values() if api.behind)
    return f"{HEAD}{''.join(map(_row, APIS.values()))}\nNot up to the newest version of Kafka:\n\n{behind}"


def with_table(page: str) -> str:
    """The page with the present table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _row(api: Api) -> str:
    rights = dict.fromkeys(f"{word(right.operation)} {word(right.resource)}" for right in api.rights)
    versions = f"{api.version_min}-{api.version_max}"
    cells = (api.name, str(api.key), versions, api.server.value, ", ".join(rights), api.note)
    return "".join(f"| {cell.replace('|', chr(92) + '|')} " for cell in cells) + "|\n"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text()))
