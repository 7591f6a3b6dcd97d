"""Keeps the certificate of the TLS listeners current: loads its files at SIGHUP, and when they have changed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from ...config import Config
from ...errors import BadValue
from ..messages import TlsChanged
from ..tls_files import TlsFiles
from .actions import Actions
from .workers import Workers

logger = logging.getLogger(__name__)

LOOK_MS: Final = 2_000
"""How often the files are looked at.  Files that still change are loaded at the next look."""


class Certificates:
    """``files``: what new workers start with; None while no listener has TLS.

    ``report`` is for state.json: the files with the dates on which they expire, and why newer ones are not used.
    """

    def __init__(self, config: Config, actions: Actions, workers: Workers, on_change: Callable[[], None]) -> None:
        self._config, self._workers, self._on_change = config, workers, on_change
        self.files: TlsFiles | None = None
        self.report: dict[str, Any] = {"error": "", "files": []}
        self._look = actions.define("look at the files of tls.*", lambda _: self._reload_changed())

    def prepare(self, needed: bool) -> None:
        """Load the files, if they are ``needed``.

        Raises:
            BadValue: they cannot be used.
        """
        if needed:
            self.files = TlsFiles(self._config.tls)
            self.report = {"error": "", "files": self.files.expiries()}
            self._look.want(delay_ms=LOOK_MS)

    def reload(self, config: Config) -> None:
        """Load the files that another configuration names; those that cannot be used change nothing."""
        self._config = config
        if self.files is not None:
            self._load(self.files)

    def _reload_changed(self) -> None:
        self._look.want(delay_ms=LOOK_MS)
        if self.files is not None and self.files.have_changed():
            self._load(self.files)

    def _load(self, files: TlsFiles) -> None:
        try:
            files.load(self._config.tls)
        except BadValue as error:
            logger.error("new connections get the old certificate: %s", error)
            self.report = {**self.report, "error": str(error)}
            self._on_change()
            return
        self.report = {"error": "", "files": files.expiries()}
        self._on_change()
        logger.info("certificate loaded: %s", self._config.tls.certificate)
        self._workers.send_all(TlsChanged(self._config.tls))
