"""`appliance sql` needs its own extra only: neither Spark nor what else pipelines use."""

from __future__ import annotations

import subprocess
import sys

ABSENT = ("pyspark", "pandas", "pyiceberg", "sqlalchemy", "maxminddb")
PROGRAM = f"""
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
import appliance.sql
names = [module.name for module in pkgutil.iter_modules(appliance.sql.__path__, "appliance.sql.")]
assert len(names) > 3
for name in names:
    importlib.import_module(name)
"""


def test_its_modules_import_without_what_pipelines_use() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
