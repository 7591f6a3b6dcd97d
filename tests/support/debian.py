"""The Debian package: built once for the tests of a module, or the one that ``APPLIANCE_DEB`` names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if named := os.environ.get("APPLIANCE_DEB"):
        return Path(named)
    if shutil.which("dpkg-deb") is None:
        pytest.skip("there is no dpkg-deb")
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "systemd.debian", "--out", str(out)], check=True, cwd=ROOT)
    (path,) = out.glob("appliance_*.deb")
    return path
