"""A Spark data source that reads and writes the log in Arrow batches.

    import appliance.spark
    lines = spark.read.format("appliance").option("subscribe", "logs").load()

Importing this package registers the format with the session that is active; :func:`register` does so for one that is
made later.  Reading order: ``options``, ``offsets`` (pure), ``arrow`` (bytes to rows), ``access`` (questions and
bytes), ``source``, ``sink``.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from .source import ApplianceSource


def register(spark: SparkSession) -> SparkSession:
    """Make the format "appliance" known to ``spark``."""
    spark.dataSource.register(ApplianceSource)
    return spark


if (_active := SparkSession.getActiveSession()) is not None:
    register(_active)

__all__ = ["ApplianceSource", "register"]
