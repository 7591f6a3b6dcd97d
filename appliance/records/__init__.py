"""Checks, places, encodes and decodes record batches: Kafka's RecordBatch v2, the only format of the appliance.

Reading order: ``batch`` (the header; a broker reads little else), ``encode``, ``decode``, ``compression``,
``partitioner``.  Bytes in, values out: no sockets, no files, no clocks.
"""
