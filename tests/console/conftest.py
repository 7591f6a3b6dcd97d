"""A browser for the tests of the page, and one page of it for each test; the tests have a fixture ``server``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..support.browser import Browser
from ..support.console_page import WIDE
from ..support.server import Server


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Browser]:
    """A page of its own; no test leaves an error in the browser's console."""
    browser.resize(*WIDE)
    browser.prefer("light")
    browser.console.clear()
    yield browser
    assert browser.console == []
