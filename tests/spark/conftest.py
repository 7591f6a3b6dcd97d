"""One Spark session for the whole run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..support.topics import topics, topics_of

pyspark_sql = pytest.importorskip("pyspark.sql")
__all__ = ["short_lived_java", "spark", "topics", "topics_of"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def short_lived_java() -> None:
    """Every Java of these tests, in this process and below it, does without the second compiler: it runs too short."""
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pyspark_sql.SparkSession]:
    from appliance.spark.spark_session import build_session

    logging.getLogger("py4j").setLevel(logging.WARNING)  # it says goodbye when pytest's streams are closed already
    session = build_session(
        "tests",
        {
            "spark.master": "local[2]",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.sql.streaming.stopTimeout": "60s",  # else the end of a failed test waits for ever
        },
        scratch=tmp_path_factory.mktemp("spark"),
    )
    yield session
    session.stop()
