"""The steps of ``make deb`` and ``make rpm``: fills a staging directory as the package will be installed, and packs."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from appliance import __version__
from appliance.extras import PAGES

from . import deb, documents, environment, manual_pages, rpm
from .description import Refused
from .environment import ROOT

PACKINGS = {module.SUFFIX: module for module in (deb, rpm)}
UNITS = ("appliance.service", "appliance-kafka.socket", "appliance-native.socket")
MEBIBYTES_MAX = 150


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m systemd.packages", description="Build a package.")
    parser.add_argument("packing", choices=PACKINGS, help="its format")
    parser.add_argument("--python", default="/usr/bin/python3", help="the Python of the distribution")
    parser.add_argument("--version", default=__version__, help="version of the package")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where to leave it")
    chosen = parser.parse_args()
    os.environ.setdefault("SOURCE_DATE_EPOCH", _commit_time())
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="appliance-package-") as directory:
        try:
            package = build(Path(directory) / "root", chosen.packing, chosen.python, chosen.version, chosen.out)
        except Refused as refused:
            print(f"make {chosen.packing}: {refused}", file=sys.stderr)
            return 1
    size = package.stat().st_size
    print(f"{package}: {size / 2**20:.1f} MiB")
    if size > MEBIBYTES_MAX * 2**20:
        print(f"make {chosen.packing}: larger than {MEBIBYTES_MAX} MiB", file=sys.stderr)
        return 1
    return 0


def build(staging: Path, packing: str, python: str, version: str, out: Path) -> Path:
    """Make the package of a format and return its path.

    Raises:
        Refused: the machine lacks something; the message has what.
    """
    packer = PACKINGS[packing]
    path = environment.find_python(python)
    packer.check(path)
    staging.mkdir(mode=0o755)  # becomes the root of the file system
    print("virtual environment ...", flush=True)
    made = environment.make(staging, path)
    print("files ...", flush=True)
    _install_files(staging)
    documents.write(staging, made, packer.ZSH_COMPLETIONS)
    manual_pages.write(staging / "usr/share/man", version)
    print("packing ...", flush=True)
    out.mkdir(exist_ok=True)
    return packer.pack(staging, made, version, out)


def _install_files(staging: Path) -> None:
    """Put the files of the folder systemd where distributions have such files."""
    source = ROOT / "systemd"
    for unit in UNITS:
        _install(source / unit, staging / "usr/lib/systemd/system" / unit)
    _install(source / "appliance.sysusers", staging / "usr/lib/sysusers.d/appliance.conf")
    _install(source / "appliance.tmpfiles", staging / "usr/lib/tmpfiles.d/appliance.conf")
    _install(source / "make-certificates", staging / "opt/appliance/make-certificates", 0o755)
    pages = staging / "usr" / PAGES
    pages.parent.mkdir(parents=True)
    shutil.move(staging / environment.PREFIX.relative_to("/") / PAGES, pages)
    certificates = pages / "systemd/make-certificates"
    certificates.unlink()
    certificates.symlink_to("/opt/appliance/make-certificates")
    command = staging / "usr/bin/appliance"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.symlink_to(environment.COMMAND)


def _install(source: Path, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _commit_time() -> str:
    """The time of the last commit, so that the same sources give the same package."""
    asked = subprocess.run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True)
    return asked.stdout.strip() or "0"


if __name__ == "__main__":
    sys.exit(main())
