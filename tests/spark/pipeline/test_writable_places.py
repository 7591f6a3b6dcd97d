"""Places that a run could not write: refused before it begins, and nothing is made there.  Without Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import BadValue
from appliance.spark.pipeline.run import run
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.startup import check
from appliance.spark.pipeline.writable_places import refuse_unwritable

from ...support.places import open_place

NOBODY = 65_534
KEYS = {
    "output.path": lambda path: {"output": {"path": path}},
    "pipeline.state": lambda path: {"pipeline": {"name": "p", "state": path}},
    "iceberg.catalogue": lambda path: {"iceberg": {"catalogue": f"{path}/catalogue.db"}},
}
READ_ONLY = 'mount -t tmpfs -o ro none "$1" && shift && exec "$@"'
CHECKED = "import sys; from tests.spark.pipeline.test_writable_places import say; say(sys.argv[1])"


def made(base: Path, **tables: Any) -> Settings:
    given = {
        "pipeline": {"name": "p", "bootstrap": "127.0.0.1:1"},
        "source": [{"topics": ["t"], "parsers": ["plain"]}],
        "output": {"path": "out"},
    }
    return parse(given | tables, base)


def say(base: str) -> None:
    with pytest.raises(BadValue) as refusal:
        refuse_unwritable(made(Path(base)))
    print(refusal.value)


@contextmanager
def ordinary_user() -> Iterator[None]:
    """For root, who may do everything: somebody else."""
    before = os.geteuid()
    os.seteuid(before or NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("key", KEYS)
def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path: Path, key: str) -> None:
    """By a check and a run, before they ask the appliance, which is not there."""
    (tmp_path / "file").write_text("somebody's")
    (tmp_path / "nowhere").symlink_to("gone")
    before = sorted(tmp_path.iterdir())
    for path, culprit in (("file", "file"), ("file/below", "file"), ("nowhere/below", "nowhere")):
        settings = made(tmp_path, **KEYS[key](path))
        for act in (check, run):
            with pytest.raises(BadValue, match=rf"^{key}: .* cannot be written: .*/{culprit} is no directory$"):
                act(settings)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("key", KEYS)
def test_a_directory_of_somebody_else_is_refused(key: str) -> None:
    with open_place() as place:
        place.chmod(0o755)
        (place / "closed").mkdir(mode=0o555)
        (place / "ours").mkdir()
        (place / "ours").chmod(0o777)
        with ordinary_user():
            refuse_unwritable(made(place / "ours", **KEYS[key]("new")))
            for path in ("closed", "closed/new"):
                settings = made(place / "ours", **KEYS[key](str(place / path)))
                with pytest.raises(BadValue, match=rf"^{key}: .*{path} cannot be written: .*closed: not permitted to"):
                    refuse_unwritable(settings)


def test_a_table_or_catalogue_of_somebody_else_is_refused() -> None:
    """What a run by root has left, for example, in a directory of ours."""
    with open_place() as place:
        place.chmod(0o777)
        catalogue, log = place / "catalogue.db", place / "out/events/_delta_log"
        log.mkdir(parents=True)
        for directory in (place / "out", place / "out/events", log):
            directory.chmod(0o777)
        catalogue.touch(0o444)
        settings = made(place, iceberg={"catalogue": "catalogue.db"})
        with ordinary_user(), pytest.raises(BadValue, match=r"^iceberg\.catalogue: .*catalogue.db: not permitted to"):
            refuse_unwritable(settings)
        for directory in (log, place / "out/events", place / "out"):
            directory.chmod(0o555)
            with ordinary_user(), pytest.raises(BadValue, match=rf"^output\.path: .*{directory}: not permitted to"):
                refuse_unwritable(settings)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare, to mount")
def test_a_file_system_that_is_mounted_read_only_is_named(tmp_path: Path) -> None:
    command = ["unshare", "-m", "sh", "-c", READ_ONLY, "sh", tmp_path, sys.executable, "-c", CHECKED, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    where = f"output.path: {tmp_path}/out cannot be written"
    assert done.stdout == f"{where}: the file system of {tmp_path} is mounted read-only\n"
