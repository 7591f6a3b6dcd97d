"""Writes what rpmbuild reads, and packs: a spec without a build, since the staging directory has what is installed.

What is needed is named as the distributions of rpm do it, by the path of the Python and by the names of the shared
libraries, so that the package can be built where there is no rpm but rpmbuild.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .description import CONFIGURATION, LICENCE, NAME, SCRIPTS, SUMMARY, TEXT, Refused, script
from .environment import Environment

SUFFIX = "rpm"
ZSH_COMPLETIONS = "usr/share/zsh/site-functions"
NEEDED = ("java-headless >= 1:11", "systemd >= 247", "util-linux", "coreutils", "sed")
"""The names that Fedora and its relatives give; the epoch is that of their Java."""
SECTIONS = dict(zip(SCRIPTS, ("pre", "post", "preun", "postun"), strict=True))
SPEC = """\
%global __os_install_post %{{nil}}
%global debug_package %{{nil}}
%global _build_id_links none
%global _binary_payload w12.zstdio
%global _buildhost localhost
%global use_source_date_epoch_as_buildtime 1
Name: {name}
Version: {version}
Release: 1
Summary: {summary}
License: {licence}
AutoReqProv: no
{requires}

%description
{text}

%install
mkdir -p %{{buildroot}}
cp -a {staging}/. %{{buildroot}}

{scripts}

%files -f {files}
%defattr(-,root,root,-)
"""


def check(python: Path) -> None:
    """Raises Refused: there is no rpmbuild, or the Python is not where those of packages are."""
    if shutil.which("rpmbuild") is None:
        raise Refused("there is no rpmbuild: dnf install rpm-build, or apt-get install rpm")
    if python.parent != Path("/usr/bin"):
        raise Refused(f"{python} is not in /usr/bin, which the package could depend on: name the system's Python")


def pack(staging: Path, made: Environment, version: str, out: Path) -> Path:
    """Write the spec, pack, and return the package.  Everything must be in ``staging`` by now.

    Raises:
        Refused: the version is none for rpm.
    """
    if set(version) & set("-:"):
        raise Refused(f"{version} is no version for rpm: it has a hyphen or a colon")
    top = staging.with_name(f"{staging.name}-rpm")
    top.mkdir()
    try:
        listed = top / "files"
        listed.write_text("".join(f"{line}\n" for line in _files(staging)))
        spec = top / "appliance.spec"
        spec.write_text(
            SPEC.format(
                name=NAME,
                version=version,
                summary=SUMMARY,
                licence=LICENCE,
                requires="\n".join(f"Requires: {name}" for name in _required(made)),
                text="\n".join(TEXT),
                staging=staging,
                scripts="\n".join(_sections(version)),
                files=listed,
            )
        )
        places = [
            word for name, path in (("_topdir", top), ("_rpmdir", top / "out")) for word in ("-D", f"{name} {path}")
        ]
        subprocess.run(["rpmbuild", "-bb", "--quiet", *places, str(spec)], check=True)
        (built,) = (top / "out").glob("*/*.rpm")
        return Path(shutil.copy(built, out / built.name))
    finally:
        shutil.rmtree(top)


def _sections(version: str) -> Iterator[str]:
    """The scripts as sections of the spec, whose macros begin with what is a character of theirs."""
    for name, section in SECTIONS.items():
        yield f"%{section}\n" + script(SUFFIX, name, version).removeprefix("#!/bin/sh\n").replace("%", "%%")


def _required(made: Environment) -> Iterator[str]:
    yield f"/usr/bin/{made.python}"
    yield from NEEDED
    mark = "()(64bit)" if platform.architecture()[0] == "64bit" else ""
    yield from (f"{name}{mark}" for name in sorted(made.libraries) if not name.startswith("ld-linux"))


def _files(staging: Path, below: Path = Path()) -> Iterator[str]:
    """All files, and the directories that are the package's own: those that have its name."""
    for path in sorted((staging / below).iterdir()):
        name = path.relative_to(staging)
        if name == CONFIGURATION:
            yield f'%config(noreplace) "/{name}"'
        elif path.is_symlink() or not path.is_dir():
            yield f'"/{name}"'
        elif path.name == NAME and CONFIGURATION.parent != name:
            yield f'"/{name}"'  # with all in it
        else:
            if path.name == NAME:
                yield f'%dir "/{name}"'
            yield from _files(staging, name)
