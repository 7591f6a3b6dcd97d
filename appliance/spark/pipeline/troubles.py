"""Notes what of a pipeline does not follow its table: views, their alerts, dead letters, the table of Iceberg.

Each has a file in ``troubles`` of the state directory, with the reason, which goes when it is over; so what a run has
met is known when it has ended, and what a command mends is known to be over.  ``appliance pipeline status`` tells of
them, and so does ``appliance doctor``: they are in the note of the offsets that the pipeline publishes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from ...names import PIPELINE_NOTE
from .settings import Settings

LETTERS: Final = "letters"
ICEBERG: Final = "iceberg"
DEFINITIONS: Final = "views"
VIEW: Final = "view-"
"""Before the name of a view."""
NOTE_CHARACTERS_MAX: Final = 1000
"""Each offset has the note, which may be four times as long in bytes."""
log = logging.getLogger(__name__)


class Troubles:
    def __init__(self, settings: Settings) -> None:
        self._name = settings.pipeline.name
        self._directory = settings.state_dir / "troubles"

    def note(self, what: str, why: str) -> None:
        """Note a trouble, or that it is over: "".  Who cannot note it, as on a full disk, goes on."""
        path = self._directory / what
        try:
            if why == self._why(path):
                return
            if why:
                self._directory.mkdir(parents=True, exist_ok=True)
                fresh = path.with_name(f".{what}")
                fresh.write_text(why)
                fresh.replace(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: %s", path, error.strerror)

    def note_view(self, name: str, why: str) -> None:
        of = f"view {name}: "
        self.note(f"{VIEW}{name}", of + why.removeprefix(of) if why else "")

    def begin(self) -> None:
        """A run notes anew what there is still."""
        for path in self._directory.glob("*"):
            self.note(path.name, "")

    def keep_views(self, names: Collection[str]) -> None:
        """The definitions can be read, and there are no other views."""
        self.note(DEFINITIONS, "")
        for path in self._directory.glob(f"{VIEW}*"):
            if path.name.removeprefix(VIEW) not in names:
                self.note(path.name, "")

    def reasons(self) -> list[str]:
        paths = sorted(path for path in self._directory.glob("*") if not path.name.startswith("."))
        return list(filter(None, map(self._why, paths)))

    def of_view(self, name: str) -> str:
        return self._why(self._directory / f"{VIEW}{name}")

    def as_note(self) -> str:
        """All of them, as ``appliance doctor`` reads it; or ""."""
        reasons = "; ".join(self.reasons())
        return f"{PIPELINE_NOTE}{self._name}: {reasons}"[:NOTE_CHARACTERS_MAX] if reasons else ""

    def _why(self, path: Path) -> str:
        with suppress(FileNotFoundError):
            return path.read_text()
        return ""
