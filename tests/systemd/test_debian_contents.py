"""What the Debian package has: everything that its own pages name, at the paths that they name."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..support.packages import ROOT, package

__all__ = ["package"]  # a fixture

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # it installs everything into an environment

DOCUMENTS = "usr/share/doc/appliance"
NOT_OURS = {
    "/usr/local/bin/appliance": "the command of a service with pip",
    "/opt/appliance/.venv/bin/pip": "of a service with pip",
    "/usr/bin/python3": "of python3-minimal",
    "/usr/bin/python3.12": "an example of another Python",
    "/usr/share/common-licenses/Apache-2.0": "of base-files",
    "/usr/share/java": "of libzookeeper-java, which the package needs none of",
    "/usr/share/debconf/confmodule": "of debconf",
    "/usr/bin/deb-systemd-helper": "of init-system-helpers",
    "/usr/sbin/sendmail": "of the host's mail server",
    "/etc/appliance/order.avsc": "the operator's",
    "/etc/appliance/shop.desc": "the operator's",
    "/etc/appliance/webhook": "the operator's",
    "/etc/appliance/server.pem": "the operator's",
    "/etc/appliance/server.key": "the operator's",
    "/etc/appliance/ca.pem": "the operator's",
    "/etc/appliance/tls/server.pem": "the operator's",
    "/etc/appliance/tls/server.key": "the operator's",
    "/etc/appliance/tls/ca.pem": "the operator's",
    "/etc/appliance/": "in a command",
}


@pytest.fixture(scope="module")
def tree(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("package") / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(directory)], check=True)
    yield directory
    shutil.rmtree(directory)


def exists(tree: Path, path: str) -> bool:
    """Whether the package has a path, also by a link to another of its paths."""
    found = tree / path.lstrip("/")
    return found.exists() or (found.is_symlink() and exists(tree, str(found.readlink())))


def test_the_links_of_its_pages_lead_somewhere(tree: Path) -> None:
    pages = sorted((tree / DOCUMENTS).rglob("*.md"))
    assert {page.name for page in pages} >= {"README.md", "FAULTS.md", "CHANGELOG.md", "CLUSTERS.md", "LIMITS.md"}
    for page in pages:
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text()):
            if "://" not in target:
                path = os.path.relpath(page.parent / target, tree)
                assert exists(tree, path), f"{page.relative_to(tree)}: {target}"


def test_its_pages_are_those_of_the_repository(tree: Path) -> None:
    names = ("systemd/README.md", "systemd/prometheus/alerts.yml", "tests/clients/shippers/rsyslog.conf")
    # As a list of names: a report of how such pages differ takes minutes.
    assert not [name for name in names if (tree / DOCUMENTS / name).read_bytes() != (ROOT / name).read_bytes()]
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert all(exists(tree, f"usr/{path}") for path in listed["shared-data"].values())


def texts(tree: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()):
        name = str(path.relative_to(tree))
        if path.suffix == ".gz":
            yield name, gzip.decompress(path.read_bytes()).decode().replace("\\-", "-")
        elif name.startswith(("DEBIAN/p", "etc/", "usr/lib/systemd", "usr/share/doc")) and path.suffix != ".png":
            yield name, path.read_text()


def test_the_paths_that_it_names_exist(tree: Path) -> None:
    """In pages, man pages, units, the configuration and the scripts of the package."""
    named, missing = 0, list[str]()
    for name, text in texts(tree):
        if name.endswith("CLUSTERS.md"):
            continue  # its paths are those of an image for Kubernetes
        for path in re.findall(r"(?<![\w.}/-])/(?:opt|usr|etc/appliance)/[\w./-]*", text):
            path = path.rstrip(".")
            if path not in NOT_OURS:
                named += 1
                if not exists(tree, path):
                    missing.append(f"{name}: {path}")
    assert not missing and named > 20


def test_what_its_page_types_is_there(tree: Path) -> None:
    """Programs that a command of the page names by a path, as typed in the directory of the documents."""
    page = (tree / DOCUMENTS / "systemd/README.md").read_text()
    typed = set(re.findall(r"^\$ (systemd/\S+)", page, re.MULTILINE))
    assert typed == {"systemd/make-certificates"}
    assert all(exists(tree, f"{DOCUMENTS}/{path}") for path in typed)
    assert (tree / "opt/appliance/make-certificates").stat().st_mode & 0o111
