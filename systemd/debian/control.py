"""Writes what dpkg reads: the control file, the conffiles, the checksums and the maintainer scripts.

``$VERSION`` and ``$FORMAT`` in a script stand for the version of the package, and for the newest format of a data
directory that it knows.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from string import Template

from appliance.data_directory import FORMAT

from .documents import CONFIGURATION
from .environment import Environment

HERE = Path(__file__).parent
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
JAVA = "default-jre-headless | java11-runtime-headless"
NEEDED = ("init-system-helpers", "systemd (>= 247)", "debconf (>= 0.5) | debconf-2.0")
CONTROL = """\
Package: appliance
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {kibibytes}
Depends: {depends}
Suggests: kcat, rsyslog-kafka
Section: net
Priority: optional
Description: Log broker in one box, for clients and shippers of Kafka
 Shippers push logs in, groups of consumers pull them out at their own pace.
 What speaks Kafka's protocol connects to port 9092 without a change. Every
 message is on the disk before it is acknowledged, any process may die at any
 time, and a local ZooKeeper comes with it.
"""


def write(staging: Path, made: Environment, version: str) -> None:
    """Write the directory DEBIAN.  Everything else must be in the staging directory by now."""
    files = sorted(path for path in staging.rglob("*") if path.is_file() and not path.is_symlink())
    directory = staging / "DEBIAN"
    directory.mkdir()
    control = CONTROL.format(
        version=version,
        architecture=made.architecture,
        maintainer=f"{os.environ.get('DEBFULLNAME', 'appliance')} <{os.environ.get('DEBEMAIL', 'root@localhost')}>",
        kibibytes=sum(-(-path.stat().st_size // 1024) for path in files),
        depends=", ".join([made.python, JAVA, *NEEDED, *made.libraries]),
    )
    (directory / "control").write_text(control)
    (directory / "conffiles").write_text(f"/{CONFIGURATION}\n")
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(staging)}\n" for path in files]
    (directory / "md5sums").write_text("".join(line for line in sums if not line.endswith(f"  {CONFIGURATION}\n")))
    (directory / "templates").write_bytes((HERE / "templates").read_bytes())
    for script in SCRIPTS:
        text = Template((HERE / script).read_text()).safe_substitute(VERSION=version, FORMAT=str(FORMAT))
        (directory / script).write_text(text)
        (directory / script).chmod(0o755)
