"""A Spark driver to be killed: copies a topic to another one, in small micro-batches, until nothing is left.

python -m tests.spark.driver BOOTSTRAP FROM TO CHECKPOINT
"""

from __future__ import annotations

import sys

from appliance.spark.spark_session import build_session


def main(bootstrap: str, source: str, sink: str, checkpoint: str) -> None:
    spark = build_session("driver", {"spark.master": "local[2]"})
    reading = {"bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"}
    frame = spark.readStream.format("appliance").options(**reading, maxBytesPerTrigger="20000").load()
    writing = {"bootstrap.servers": bootstrap, "topic": sink, "checkpointLocation": checkpoint, "batchBytes": "2000"}
    stream = frame.select("key", "value").writeStream.format("appliance").options(**writing)
    stream.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
