"""Makes the virtual environment of the package: the appliance, its dependencies, and ZooKeeper's jars.

It is made in the staging directory and gets the paths that it will have.  It uses the Python of the distribution, which
the package depends on.  There is no pip in it: dpkg or rpm is what changes it.  Everything is compiled, because the
service may not write there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from appliance.zookeeper.java import PACKAGED_JARS, pyspark_jars

from .description import Refused

ROOT = Path(__file__).resolve().parent.parent.parent
PREFIX = Path("/opt/appliance/.venv")
COMMAND = PREFIX / "bin/appliance"
LEFT_OUT = {
    "bench": "charts and clients of other brokers, for a host that is measured",
    "dev": "for tests",
    "java": "distributions have a Java, which the package depends on",
    "spark": "a gigabyte; pipelines run from an environment of their own",
    "executor": "for the machines of a Spark cluster",
    "geoip": "for pipelines",
    "iceberg": "for pipelines",
}
"""Extras that are not in the package, with the reason."""
NEVER_IMPORTED = (
    *("numpy/**/tests", "pyarrow/tests", "pyarrow/include", "pyarrow/**/*.p[yx][xdi]", "pyarrow/src"),
    *("pyarrow/_flight*", "pyarrow/flight.py", "pyarrow/libarrow*_flight*"),  # 35 MB
)
"""What wheels bring for those who test them or compile against them, and Arrow's network protocol."""
LICENCE_FILE = re.compile(r"META-INF/(.*/)?[^/]*(licen[cs]e|notice)[^/]*(\.txt)?", re.IGNORECASE)


@dataclass(frozen=True)
class Environment:
    """The staged environment: where it is, its Python (``python3.11``), the libraries that it links with, the jars."""

    path: Path
    python: str
    libraries: dict[str, Path]
    jars: list[Path]

    @property
    def site_packages(self) -> Path:
        return self.path / "lib" / self.python / "site-packages"


def make(staging: Path, python: Path) -> Environment:
    """Make the environment below ``staging``.

    Raises:
        Refused: the jars are missing.
    """
    path = staging / PREFIX.relative_to("/")
    path.parent.mkdir(parents=True)
    subprocess.run([str(python), "-m", "venv", "--without-pip", str(path)], check=True)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("optional-dependencies", {})
    requirement = f"{ROOT}[{','.join(sorted(extras.keys() - LEFT_OUT.keys()))}]".removesuffix("[]")
    pip = [sys.executable, "-m", "pip", "--python", str(path / "bin/python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", "--root-user-action=ignore", requirement], check=True)
    jars = _copy_jars(path)
    made = Environment(path, f"python{version_of(python)}", _libraries(path), jars)
    _settle(made)
    return made


def find_python(name: str) -> Path:
    """The Python that the environment uses.

    Raises:
        Refused: it is not there, or too old.
    """
    path = Path(os.path.realpath(shutil.which(name) or name))
    if not path.exists():
        raise Refused(f"there is no {name}: install python3, or name one with ARGS='--python PATH'")
    version = version_of(path)
    if tuple(map(int, version.split("."))) < (3, 11):
        raise Refused(f"{path} is Python {version}; the appliance needs 3.11 or newer")
    return path


def version_of(python: Path) -> str:
    """Such as ``3.11``."""
    return _said(str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])")


def _copy_jars(path: Path) -> list[Path]:
    """Copy ZooKeeper's jars from pyspark, and the licences that are in them."""
    source = pyspark_jars()
    if not source:
        raise Refused("pyspark, where ZooKeeper's jars come from, is not in .venv: run make setup")
    target = path / PACKAGED_JARS
    target.mkdir(parents=True)
    copied = []
    for jar in source:
        copied.append(target / jar.name)
        shutil.copyfile(jar, copied[-1])
        with zipfile.ZipFile(jar) as archive:
            for inner in archive.namelist():
                if LICENCE_FILE.fullmatch(inner):
                    text = target / "licences" / jar.stem / Path(inner).name
                    text.parent.mkdir(parents=True, exist_ok=True)
                    text.write_bytes(archive.read(inner))
    for dist in source[0].parent.parent.parent.glob("pyspark-*.dist-info/licenses/*"):
        shutil.copyfile(dist, target / "licences" / f"{dist.name}.spark")  # lists the jars that carry none themselves
    return copied


def _libraries(path: Path) -> dict[str, Path]:
    """The shared libraries of the system that compiled modules link with: the path of each, by its name."""
    libraries: dict[str, Path] = {}
    for module in path.rglob("*.so"):
        for name, target in re.findall(r"(\S+) => (/\S+)", _said("ldd", str(module))):
            if not Path(target).is_relative_to(path):  # a wheel's own
                libraries[name] = Path(target)
    return libraries


def _settle(made: Environment) -> None:
    """Give the environment its final paths, drop what is not needed, and compile it."""
    home = f"/usr/bin/{made.python}"
    (made.path / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nexecutable = {home}\n"
    )
    commands = made.path / "bin"
    text = (commands / "appliance").read_text().split("\n", 1)[1]
    for path in commands.iterdir():
        path.unlink()
    for name, target in (("python", home), ("python3", "python"), (made.python, "python")):
        (commands / name).symlink_to(target)
    (commands / "appliance").write_text(f"#!{PREFIX}/bin/python\n{text}")
    (commands / "appliance").chmod(0o755)
    shutil.rmtree(made.path / "include", ignore_errors=True)
    for pattern in NEVER_IMPORTED:
        for path in list(made.site_packages.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in made.site_packages.glob("*.dist-info/direct_url.json"):
        path.unlink()  # has a path of this machine
    when = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in made.path.rglob("*.py"):
        os.utime(path, (when, when))
    # By time stamps, as pip does: dpkg keeps them.  With SOURCE_DATE_EPOCH the default would be slower checks.
    compiling = [home, "-m", "compileall", "-q", "--invalidation-mode", "timestamp"]
    staged = made.site_packages
    final = PREFIX / staged.relative_to(made.path)
    subprocess.run([*compiling, "-s", str(staged), "-p", str(final), str(staged)], check=True)


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
