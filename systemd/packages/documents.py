"""Writes the commented configuration, the shell completions, the licences and the list of changes."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from .description import CONFIGURATION
from .environment import PREFIX, ROOT, Environment

HEADER = """\
# Configuration of the appliance.  Every key has its default here, as a comment: remove the # before a key to change it.
# The tables ([native], [kafka]...) must stay.
#
#   appliance config check --config /etc/appliance/appliance.toml     every fault, before it matters
#   systemctl reload appliance                                        limits, retention, defaults of topics
#   systemctl restart appliance                                       everything else
#
# Inputs take logs in without a shipper: here what this host logs, and what hosts of 10.0.0.0/8 send to port 514.
#
#   cd /etc/appliance
#   appliance inputs add files /var/log/syslog --topic disk --config appliance.toml
#   appliance inputs add syslog udp://0.0.0.0:514 --set allow=10.0.0.0/8 --topic net --config appliance.toml
#   appliance inputs rights --apply --config appliance.toml
#
# man appliance.toml describes all keys; /usr/share/doc/appliance/systemd/README.md has set-ups to copy.

"""
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/appliance",
    "zsh": "{zsh_completions}/_appliance",
    "fish": "usr/share/fish/vendor_completions.d/appliance.fish",
}
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: appliance
Comment: The text of each licence is with its files, as named below. The text of the Apache License 2.0 is in
 /usr/share/common-licenses/Apache-2.0, too.

Files: *
Copyright: the authors of appliance
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
"""
JAR_LICENCES = {"slf4j": "Expat"}
"""Licences of jars by the first word of their names; all others are under Apache-2.0, as NOTICE.spark lists them."""


def write(staging: Path, made: Environment, zsh_completions: str) -> None:
    """Write all of them; ``zsh_completions``: where the distribution's zsh looks for functions that complete."""
    _write(staging / CONFIGURATION, configuration())
    for shell, path in COMPLETIONS.items():
        _write(staging / path.format(zsh_completions=zsh_completions), completion(shell))
    _write(staging / "usr/share/doc/appliance/copyright", _copyright(made))
    changes = staging / "usr/share/doc/appliance/changelog.gz"
    changes.write_bytes(gzip.compress((ROOT / "CHANGELOG.md").read_bytes(), mtime=0))


def configuration() -> str:
    """The configuration file: tables, and each key with its default as a comment."""
    shown = _appliance("config", "show").splitlines()
    return HEADER + "".join(f"{line}\n" if not line or line.startswith("[") else f"#{line}\n" for line in shown)


def completion(shell: str) -> str:
    """The script that completes arguments in a shell: bash, zsh or fish."""
    script = _appliance(environment={"_APPLIANCE_COMPLETE": f"source_{shell}"})
    if shell == "zsh":  # an autoloaded file is the function itself: without the call the first Tab would do nothing
        script += '\n_appliance_completion "$@"'
    return script.strip() + "\n"


def _appliance(*words: str, environment: dict[str, str] | None = None) -> str:
    command = [str(Path(sys.executable).with_name("appliance")), *words]
    return subprocess.run(
        command, env=os.environ | (environment or {}), check=True, capture_output=True, text=True
    ).stdout


def _copyright(made: Environment) -> str:
    parts = [COPYRIGHT]
    for jar in made.jars:
        licence = JAR_LICENCES.get(jar.name.split("-")[0], "Apache-2.0")
        target = f"{PREFIX}/{jar.relative_to(made.path)}"
        texts = made.path / jar.parent.relative_to(made.path) / "licences" / jar.stem
        where = f"{PREFIX}/{texts.relative_to(made.path)}" if texts.is_dir() else "licences/LICENSE.spark"
        parts.append(f"Files: {target}\nCopyright: its authors\nLicense: {licence}\nComment: {where}\n")
    for package in sorted(distributions(path=[str(made.site_packages)]), key=lambda package: package.name.lower()):
        if package.name != "appliance":
            where = f"{PREFIX}/lib/{made.python}/site-packages/{_directory(package)}"
            parts.append(
                f"Files: {where}\nCopyright: the authors of {package.name} {package.version}\n{_licence(package)}"
            )
    return "\n".join(parts)


def _directory(package: Distribution) -> str:
    return next((str(path.parts[0]) for path in package.files or [] if path.parts[0].endswith(".dist-info")), "")


def _licence(package: Distribution) -> str:
    """The licence of a Python package, by its metadata."""
    metadata = package.metadata
    named = metadata.get("License-Expression") or (metadata.get("License") or "").strip().split("\n")[0]
    licences = re.findall(r"License :: (?:OSI Approved :: )?(.+)", "\n".join(metadata.get_all("Classifier") or []))
    return f"License: {named or ', '.join(licences) or 'see the file'}\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o644)
