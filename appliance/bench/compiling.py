"""Compiles the programs in C that come with the package (``c/``), once, into the user's cache.

What is compiled again: a program whose source, compiler or library has changed.
"""

from __future__ import annotations

import ctypes.util
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from .. import extras

SOURCES = Path(__file__).parent / "c"
FLAGS = ["-O2", "-std=gnu11"]


class Missing(Exception):
    """Something that a measurement needs is not on this host.  The text says what, and how to get it."""


@cache
def bare_broker() -> Path:
    """The program of ``c/bare_broker.c``."""
    return _compiled("bare_broker", ["-pthread"])


@cache
def echo() -> Path:
    """The program of ``c/echo.c``."""
    return _compiled("echo", [])


@cache
def fetch_client() -> Path:
    """The program of ``c/fetch_client.c``."""
    return _compiled("fetch_client", [])


@cache
def kafka_client() -> Path:
    """The program of ``c/kafka_client.c``."""
    library = librdkafka()
    # The wheel's library finds its own ones beside itself.
    return _compiled("kafka_client", [str(library), f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined"])


def librdkafka() -> Path:
    """The shared library: that of confluent-kafka's wheel, else the system's.

    Raises:
        Missing: there is neither.
    """
    try:
        import confluent_kafka
    except ImportError:
        pass
    else:
        beside = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
        for library in sorted(beside.glob("librdkafka-*.so*")):
            return library
    name = ctypes.util.find_library("rdkafka")
    for folder in (*Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/lib64"), Path("/usr/lib"), Path("/usr/local/lib")):
        if name and (folder / name).exists():
            return folder / name
    raise Missing(f"librdkafka: apt-get install librdkafka1, or {extras.install('bench')}")


def _compiled(name: str, arguments: list[str]) -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise Missing("a C compiler: apt-get install gcc libc6-dev")
    source = SOURCES / f"{name}.c"
    inputs = "\0".join([compiler, *FLAGS, *arguments]).encode() + source.read_bytes()
    cache_dir = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "appliance"
    program = cache_dir / f"{name}-{hashlib.blake2s(inputs, digest_size=6).hexdigest()}"
    if not program.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir) as directory:
            made = Path(directory) / name
            command = [compiler, *FLAGS, str(source), "-o", str(made), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Missing(f"a C compiler that works: {compiler} says {done.stderr.strip()[-400:]}")
            made.rename(program)  # whole, or not there
    return program
