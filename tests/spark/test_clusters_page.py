"""The page about clusters: a driver whose planning Pythons are bare, as those of the executors are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from ..support.server import Server
from .conftest import ROOT, Topics
from .pipelines import access, fill

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
