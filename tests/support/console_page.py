"""The console's page, as tests look at it in a browser.

CONSOLE_SHOTS=DIRECTORY keeps screenshots, to be looked at.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from .browser import Browser
from .server import Server

NARROW: Final = (320, 640)
WIDE: Final = (1280, 800)


def at(server: Server, place: str = "") -> str:
    return f"http://{server.state['listeners']['console']}/{place}"


def visit(page: Browser, server: Server, place: str) -> None:
    """Open a place of the console as a new page."""
    page.open("about:blank")
    page.open(at(server, place))


def shoot(page: Browser, name: str) -> None:
    if os.environ.get("CONSOLE_SHOTS"):
        page.screenshot(Path(os.environ["CONSOLE_SHOTS"]) / f"{name}.png")


def fits(page: Browser) -> bool:
    """Whether nothing is wider than the screen."""
    fit: bool = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return fit
