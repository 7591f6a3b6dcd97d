"""The page about clusters: its commands, as they stand there, with planning Pythons and executors that are bare."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from appliance.spark.spark_session import java_home

from ..support.pipelines import access, events, fill, places, settings
from ..support.server import Server, wait_for
from ..support.topics import Topics
from .conftest import ROOT

BARE = "/usr/bin/python3"
JOB = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
import appliance.spark
rows = spark.read.format("appliance").option("bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2]).load()
print("rows:", rows.count())
"""


def is_bare() -> bool:
    """Whether that Python is of this one's version and has none of the packages."""
    if not Path(BARE).exists() or sys.prefix == sys.base_prefix:
        return False
    code = "import importlib.util as u, sys; print(*sys.version_info[:2], u.find_spec('pyarrow'))"
    said = subprocess.run([BARE, "-c", code], capture_output=True, text=True, env={"PATH": os.environ["PATH"]}).stdout
    return said.split() == [*map(str, sys.version_info[:2]), "None"]


@pytest.mark.long
@pytest.mark.skipif(not is_bare(), reason=f"{BARE} is of another version, or has packages")
def test_planning_pythons_find_the_packages_by_pythonpath(
    appliance: Server, topics: Topics, topic: str, tmp_path: Path
) -> None:
    fill(topics, topics.create(topic), [access(number) for number in range(100)])
    job = tmp_path / "job.py"
    job.write_text(JOB)
    submit = shutil.which("spark-submit", path=str(Path(sys.executable).parent))
    assert submit is not None
    pythons = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": BARE}
    packages = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])

    def run(**more: str) -> str:
        words = [submit, str(job), appliance.native, topic]
        done = subprocess.run(words, env={**os.environ, **pythons, **more}, capture_output=True, text=True, timeout=200)
        return done.stdout + done.stderr

    assert "ModuleNotFoundError" in run(PYTHONPATH="")
    assert "rows: 100" in run(PYTHONPATH=packages)


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Starts Spark's standalone cluster, of a master and a worker with two cores.  Returns the master's URL."""
    home = Path(pyspark.__file__).parent
    java = java_home(os.environ)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PYTHONPATH"))}
    environment = kept | ({} if java is None else {"JAVA_HOME": str(java)}) | {"SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"SPARK_NO_DAEMONIZE": "1", "SPARK_WORKER_DIR": str(tmp_path / "work"), "PYSPARK_PYTHON": BARE}
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> Path:
        log = tmp_path / f"{name}.log"
        command = [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *words]
        with log.open("wb") as output:
            started.append(
                subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
            )
        return log

    def cluster() -> str:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        url = f"spark://127.0.0.1:{port}"
        start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        log = start("worker.Worker", url, "--host", "127.0.0.1", "--cores", "2", "--memory", "2g", "--webui-port", "0")
        wait_for(lambda: "Successfully registered with master" in log.read_text(), "a worker", 120)
        return url

    yield cluster
    for child in started:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def executors(work: Path) -> list[int]:
    """The processes of executors that work below a directory."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"CoarseGrainedExecutorBackend" in (each / "cmdline").read_bytes()
                and work in (each / "cwd").readlink().parents
            ):
                found.append(int(each.name))
        except OSError:
            continue  # it has ended
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(not is_bare(), reason=f"{BARE} is of another version, or has packages")
def test_the_commands_of_the_page_run_a_pipeline_on_a_cluster(
    topics: Topics, topic: str, tmp_path: Path, standalone: Callable[[], str]
) -> None:
    """In a checkout, with the packages that they install; an executor is killed between two micro-batches."""
    topics.create(topic, partitions=2)
    for partition in range(2):
        lines = [access(partition * 20_000 + number) for number in range(20_000)]
        fill(topics, topic, lines, partition, each=1000)
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "tests", "__pycache__"))
    (checkout / ".venv").symlink_to(sys.prefix)
    made = settings(tmp_path, topics, topic, input={"trigger_bytes": "200KB"})
    config = checkout / "p.toml"
    config.write_text(
        f'[pipeline]\nname = "{topic}"\nbootstrap = "{topics.server.native}"\n[input]\ntrigger_bytes = "200KB"\n'
        f'[[source]]\ntopics = ["{topic}"]\nparsers = ["access"]\n[output]\npath = "{made.output.path}"\n'
    )
    block = re.search(r"```sh\n(pip install.*?)```", (ROOT / "appliance/spark/CLUSTERS.md").read_text(), re.DOTALL)
    assert block is not None
    job = "appliance/spark/pipeline/__main__.py p.toml --once"
    script = block[1].replace("spark://master:7077", standalone()).replace("job.py", job)
    assert job in script and "7077" not in script
    environment = os.environ | {
        "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    for name in ("PYSPARK_PYTHON", "PYTHONPATH", "SPARK_HOME"):
        environment.pop(name, None)
    if (java := java_home(os.environ)) is not None:
        environment["JAVA_HOME"] = str(java)
    log = tmp_path / "driver.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            ["sh", "-e", "-c", script], cwd=checkout, env=environment, stdout=output, stderr=output
        )
    commits = Path(made.output.path) / "events/_delta_log"
    try:
        wait_for(lambda: driver.poll() is not None or len(list(commits.glob("*.json"))) > 3, "commits", 600)
        assert driver.poll() is None, log.read_text()[-3000:]
        (killed, *_) = executors(tmp_path / "work")
        os.kill(killed, signal.SIGKILL)
        assert driver.wait(timeout=300) == 0, log.read_text()[-3000:]
    finally:
        driver.kill()
        driver.wait()
    found = events(made)
    assert len(set(places(found))) == len(found) == 40_000
    assert sorted(found.column("path").to_pylist()) == sorted(f"/{number}" for number in range(40_000))
    assert "Lost executor" in log.read_text()
