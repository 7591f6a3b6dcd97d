"""Runs one query for the console, as a program of its own: ``python -m appliance.sql.bounded_query``.

Whoever starts it ends it after a time.  It bounds its own memory and what it answers, gives way to all other processes,
and is the first that the kernel kills when the machine lacks memory.  It reads no file and no variable for a query (see
:mod:`.session`).  One line of JSON each::

    in    {"address": Unix socket of the appliance, "query": text}
    out   {"topics": [name]}             those that the query may mean
    in    [name]                         those of them that it may use
    out   {"columns": [name], "rows": [[value]], "complete": whether that is all}
    or    {"error": text, "code": of errors.py}
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from ..config_keys import MIB
from ..errors import ApplianceError

DUCKDB_BYTES: Final = 128 * MIB
DATA_BYTES_MAX: Final = 768 * MIB
"""All memory of the process but its code: DuckDB's own bound knows nothing of one value that is too large."""
ROWS_MAX: Final = 1_000
TEXT_CHARACTERS_MAX: Final = 2_048
"""A longer text in a row ends so, with an ellipsis."""
ANSWER_BYTES_MAX: Final = 2 * MIB
NICENESS: Final = 10


class Question(msgspec.Struct, frozen=True):
    address: str
    query: str


def main() -> None:
    """Answer the question of standard input on standard output."""
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    with suppress(OSError):  # a sandbox may have made it read-only
        Path("/proc/self/oom_score_adj").write_text("1000")
    question = msgspec.json.decode(sys.stdin.buffer.readline(), type=Question)
    try:
        answer = _answer(question)
    except ApplianceError as error:
        answer = {"error": f"{error}", "code": error.code}
    except MemoryError:
        answer = {"error": "the query needs more memory than the console gives one: ask for less", "code": -1}
    _say(answer)
    os._exit(0)  # not the end of threads that make rows which nobody takes


def _answer(question: Question) -> dict[str, Any]:
    """Raises ApplianceError, MemoryError."""
    from .plain_rows import different, plain_rows
    from .session import Session

    rows: list[list[Any]] = []
    size = 0
    with Session(question.address, memory_bytes=DUCKDB_BYTES, admitted=_ask) as session:
        result = session.run(question.query)
        columns = different(result.schema.names)
        for batch in result.batches:
            for start in range(batch.num_rows):
                (row,) = plain_rows(batch.slice(start, 1))
                row = [_shortened(value) for value in row]
                size += len(msgspec.json.encode(row))
                if len(rows) >= ROWS_MAX or size > ANSWER_BYTES_MAX:
                    return {"columns": columns, "rows": rows, "complete": False}
                rows.append(row)
    return {"columns": columns, "rows": rows, "complete": True}


def _shortened(value: Any) -> Any:
    """Whole values are what the command line is for; a nested one is a text of JSON."""
    if isinstance(value, dict | list):
        value = msgspec.json.encode(value).decode()
    if isinstance(value, int) and abs(value) > 2**53:  # JavaScript would round it
        value = str(value)
    if isinstance(value, str) and len(value) > TEXT_CHARACTERS_MAX:
        return f"{value[:TEXT_CHARACTERS_MAX]}…"
    return value


def _ask(topics: list[str]) -> Collection[str]:
    _say({"topics": topics})
    return msgspec.json.decode(sys.stdin.buffer.readline(), type=list[str])


def _say(answer: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
