"""Keeps the certificate of the TLS listeners current: loads its files at SIGHUP, and when they have changed."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from ...config import Config
from ...errors import BadValue
from ..tls_files import TlsFiles
from .actions import Actions
from .workers import Workers

logger = logging.getLogger(__name__)

LOOK_MS: Final = 2_000
"""How often the files are looked at.  Files that still change are loaded at the next look."""


class Certificates:
    """``files``: what new workers start with; None while no listener has TLS."""

    def __init__(self, config: Config, actions: Actions, workers: Workers) -> None:
        self._config, self._workers = config, workers
        self.files: TlsFiles | None = None
        self._look = actions.define("look at the files of tls.*", lambda _: self._reload_changed())

    def prepare(self, needed: bool) -> None:
        """Load the files, if they are ``needed``.

        Raises:
            BadValue: they cannot be used.
        """
        if needed:
            self.files = TlsFiles(self._config.tls)
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
            return
        logger.info("certificate loaded: %s", self._config.tls.certificate)
        self._workers.send_all(["tls", msgspec.to_builtins(self._config.tls)])
