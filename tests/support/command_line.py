"""Run a command in this process, as an operator would."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import pytest

from appliance import cli


class Said(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@contextmanager
def own_log_handlers() -> Iterator[None]:
    """Takes away afterwards the log handlers of a command, which write to a standard error that is closed by then."""
    handlers, level = logging.root.handlers[:], logging.root.level
    try:
        yield
    finally:
        logging.root.handlers[:], logging.root.level = handlers, level


def run(*words: str, stdin: bytes = b"", keep: tuple[str, ...] = ()) -> Said:
    """Exit status and streams of ``appliance <words>``; without the variables of the environment that name an
    appliance, but for those to ``keep``."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with own_log_handlers(), pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["appliance", *words])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        for name in {"APPLIANCE_DATA", "APPLIANCE_CONNECT"} - set(keep):
            patch.delenv(name, raising=False)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    out.flush()
    text = out.buffer.getvalue().decode(errors="surrogateescape")  # type: ignore[attr-defined]
    return Said(int(ended.value.code or 0), text, err.getvalue())


def succeeding(*words: str, stdin: bytes = b"") -> Said:
    """As :func:`run`, for what must work."""
    said = run(*words, stdin=stdin)
    assert said.status == 0, f"{words}: {said}"
    return said


Run = Callable[..., Said]
