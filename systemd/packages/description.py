"""What both packages say of themselves, and the scripts that they run before and after their files come and go.

A script is the same for both, after the head of its format (``scripts/deb/head``), which says how its steps are done
there; what is a format's alone follows (``scripts/deb/postrm``).  ``$SCRIPT``, ``$VERSION`` and ``$FORMAT`` in it stand
for its name, for the version of the package, and for the newest format of a data directory that it knows.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

from appliance.data_directory import FORMAT

NAME = "appliance"
LICENCE = "Apache-2.0"
SUMMARY = "Log broker in one box, for clients and shippers of Kafka"
TEXT = (
    "Shippers push logs in, groups of consumers pull them out at their own pace.",
    "What speaks Kafka's protocol connects to port 9092 without a change. Every",
    "message is on the disk before it is acknowledged, any process may die at any",
    "time, and a local ZooKeeper comes with it.",
)
CONFIGURATION = Path("etc/appliance/appliance.toml")
"""The one file that is the operator's: an upgrade leaves what was changed in it."""
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
HERE = Path(__file__).parent / "scripts"


class Refused(Exception):
    """The package cannot be built here; the message has what to do."""


def script(packing: str, name: str, version: str) -> str:
    """The script ``name`` of a package of the format ``packing``: deb or rpm."""
    parts = [HERE / packing / "head", HERE / name, HERE / packing / name]
    text = "\n".join(["#!/bin/sh\nset -e\n", *(part.read_text() for part in parts if part.exists())])
    return Template(text).safe_substitute(SCRIPT=name, VERSION=version, FORMAT=str(FORMAT))
