"""Make ``.venv`` and install the appliance into it with everything that demo, tests and pipeline need.

Needs Python 3.11+ and a package index (or ``PIP_NO_INDEX=1 PIP_FIND_LINKS=<directory of wheels>``): no root,
no compiler, no Java.  A second run does nothing until ``pyproject.toml`` or the Java have changed.
Only the standard library is imported here, since it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".ready"
LOG = VENV / "pip.log"
JAVA_LEAST = 17  # what pyspark 4 wants; ZooKeeper would do with 11


def java_found() -> str:
    """The Java that JAVA_HOME or PATH offers, if it is new enough; its path is enough to see a change."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin/java") if home else shutil.which("java") or ""
    if not java or not os.access(java, os.X_OK):
        return ""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    return java if version and int(version[1]) >= JAVA_LEAST else ""


def fingerprint() -> str:
    parts = [(ROOT / "pyproject.toml").read_text(), Path(__file__).read_text(), str(ROOT)]
    return hashlib.sha256("\0".join([*parts, java_found()]).encode()).hexdigest()


def make_venv() -> None:
    """An environment with pip, also where the system's Python comes without ensurepip (Debian's does)."""
    if (VENV / "bin/python").exists() and run_quietly("-m", "pip", "--version"):
        return
    print(f"making .venv with Python {sys.version.split()[0]}", flush=True)
    made = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, check=False)
    if made.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(VENV)], check=True)
        borrowed = [sys.executable, "-m", "pip", "--python", str(VENV / "bin/python"), "install", "-q", "pip"]
        if subprocess.run(borrowed, check=False).returncode:
            shutil.rmtree(VENV, ignore_errors=True)
            sys.exit(
                "this Python has neither ensurepip nor pip: install its venv package (Debian: python3-venv), "
                "or name another with make PYTHON=/path/to/python3"
            )


def run_quietly(*arguments: str) -> bool:
    return not subprocess.run([VENV / "bin/python", *arguments], capture_output=True, check=False).returncode


def install(extras: list[str]) -> None:
    """One pip run for everything, so that pyspark, which comes as source, is built once."""
    wanted = f"{ROOT}[{','.join(extras)}]"
    pip_install = [str(VENV / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check"]
    command = [*pip_install, "--progress-bar=off", "--editable", wanted]
    print(f"installing appliance[{','.join(extras)}]: ~1 GB on disk, minutes when nothing is cached", flush=True)
    begun = time.monotonic()
    with (
        LOG.open("w") as log,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            show(line, time.monotonic() - begun)
    if pip.returncode:
        print(f"\npip failed; the end of {LOG}:", *LOG.read_text().splitlines()[-15:], sep="\n", file=sys.stderr)
        sys.exit(1)
    print(f"\ninstalled in {time.monotonic() - begun:.0f} s" if sys.stdout.isatty() else "installed", flush=True)


def show(line: str, elapsed_s: float) -> None:
    """On a terminal one line that changes; in a log only the few steps that take long."""
    words = line.split()
    step = " ".join(words[:2]) if words and words[0] in ("Collecting", "Building", "Downloading") else ""
    if line.startswith(("Installing collected", "  Building wheel", "Building wheel")):
        step = line.split(":")[0].strip()
    if step and sys.stdout.isatty():
        print(f"\r\033[K  {elapsed_s:4.0f} s  {step[:70]}", end="", flush=True)
    elif step.startswith(("Installing", "Building wheel")):
        print(f"  {elapsed_s:4.0f} s  {step}", flush=True)


def main() -> None:
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted and (VENV / "bin/appliance").exists():
        return
    make_venv()
    install(["console", "dev", "inputs", "spark", *([] if java_found() else ["java"])])
    # As pip does with a wheel: a process that may not write beside its sources would compile them at every start.
    run_quietly("-m", "compileall", "-q", str(ROOT / "appliance"))
    STAMP.write_text(wanted)


if __name__ == "__main__":
    main()
