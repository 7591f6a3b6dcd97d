"""Says how the packages of an extra (a group of optional packages in pyproject.toml) are installed.

The appliance is on no public package index, so its name alone is nothing that pip could find.
"""

from __future__ import annotations


def install(extra: str) -> str:
    """What to type, as a part of a message: ``spark`` is installed from a checkout or from a wheel."""
    return f"`pip install '.[{extra}]'` in a checkout, or `pip install 'WHEEL[{extra}]'` with the file of a wheel"
