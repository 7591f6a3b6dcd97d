"""The packages, each built once for the tests of a module; or those that ``APPLIANCE_DEB``, ``APPLIANCE_RPM`` name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def built(packing: str, tool: str, directories: pytest.TempPathFactory) -> Path:
    if named := os.environ.get(f"APPLIANCE_{packing.upper()}"):
        return Path(named)
    if shutil.which(tool) is None:
        pytest.skip(f"there is no {tool}")
    out = directories.mktemp("dist")
    subprocess.run([sys.executable, "-m", "systemd.packages", packing, "--out", str(out)], check=True, cwd=ROOT)
    (path,) = out.glob(f"appliance*.{packing}")
    return path


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That for dpkg."""
    return built("deb", "dpkg-deb", tmp_path_factory)


@pytest.fixture(scope="module")
def rpm_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("rpm", "rpmbuild", tmp_path_factory)
