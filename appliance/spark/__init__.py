"""A Spark data source that reads and writes the log in Arrow batches::

    import appliance.spark
    lines = spark.read.format("appliance").option("subscribe", "logs").load()

Importing this package registers the format with the active session; :func:`register` does so for a later one.

Reading order: ``options``, ``stream_offsets`` (pure), ``arrow`` (bytes to rows), ``access`` (requests to appliances),
``source``, ``sink``, ``spark_session``.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from .source import ApplianceSource


def register(spark: SparkSession) -> SparkSession:
    """Register the format "appliance" with ``spark``."""
    spark.dataSource.register(ApplianceSource)
    return spark


if (_active := SparkSession.getActiveSession()) is not None:
    register(_active)

__all__ = ["ApplianceSource", "register"]
