"""Says how to install the packages of an extra, and where this installation has its pages.

An extra is a group of optional packages in pyproject.toml.  The appliance is on no public package index, so its name
alone is nothing that pip could find.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Final

PAGES: Final = Path("share/doc/appliance")
"""Where a wheel has the pages, below its prefix, and Debian's package below /usr: laid out as in a checkout."""


def install(extra: str) -> str:
    """What to type, as a part of a message: ``spark`` is installed from a checkout or from a wheel."""
    return f"`pip install '.[{extra}]'` in a checkout, or `pip install 'WHEEL[{extra}]'` with the file of a wheel"


def missing(*packages: str) -> list[str]:
    """Those of the packages that are not installed."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def page(name: str) -> str:
    """Where this installation has a page, such as ``systemd/README.md``: in a checkout, with pip, or as a package."""
    places = (Path(__file__).parent.parent, Path(sys.prefix) / PAGES, Path("/usr") / PAGES)
    return str(next((place / name for place in places if (place / name).exists()), name))
