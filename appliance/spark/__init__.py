"""A Spark data source that reads and writes the log in Arrow batches::

    import appliance.spark
    lines = spark.read.format("appliance").option("subscribe", "logs").load()

Importing this package registers the format with the active session; :func:`register` does so for a later one.  The
import also lets Spark's Python workers run in this Python, unless something else is set: Spark itself takes the first
``python3`` of PATH, which is another one in a virtual environment that is not activated.

Reading order: ``options``, ``stream_offsets`` (pure), ``source``, ``sink``, ``spark_session``.  What reads
and decodes the bytes of logs is :mod:`appliance.log_access`.

pyspark is imported with the first name that needs it.  Whoever parses lines without Spark (``sql``) needs none, and a
process without pyspark has no session that could be active.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from .stream_offsets import behind_latest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .source import ApplianceSource


def __getattr__(name: str) -> Any:
    if name != "ApplianceSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .source import ApplianceSource

    return ApplianceSource


def register(spark: SparkSession) -> SparkSession:
    """Register the format "appliance" with ``spark``, for as many tasks at a time as its executors have cores."""
    from .source import ApplianceSource

    # A class of __main__ travels by value, with its attributes; others are imported by name where they arrive.
    attributes = {"cores": parallelism(spark), "__module__": "__main__"}
    spark.dataSource.register(type("ApplianceSource", (ApplianceSource,), attributes))
    return spark


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at a time: on the executors that are there, or that are asked for."""
    from pyspark.errors import PySparkException

    from .source import ApplianceSource

    try:
        context = spark.sparkContext
    except PySparkException:  # a session of Spark Connect does not know
        return ApplianceSource.cores
    conf = context.getConf()
    executor_cores = int(conf.get("spark.executor.cores", "1") or 1)
    executors_cores = int(conf.get("spark.executor.instances", "0") or 0) * executor_cores
    return max(context.defaultParallelism, executors_cores, 1)


def _use_this_python() -> None:
    """Lets Python workers run in this Python, unless PYSPARK_PYTHON or spark-submit chooses another one."""
    if os.environ.get("PYSPARK_PYTHON") or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if "pyspark.core.context" not in sys.modules:
        return
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None and str(context.master).startswith("local"):
        context.pythonExec = sys.executable


def _register_with_active_session() -> None:
    if "pyspark.sql.session" not in sys.modules:
        return
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)


_use_this_python()
_register_with_active_session()

__all__ = ["ApplianceSource", "behind_latest", "register"]
