"""Kafka's RecordBatch v2, the one format of the appliance: check, place, encode, decode.

Reading order: ``batch`` (the header, all that a broker looks at), ``encode``, ``decode``, ``compression``,
``partitioner``.  Bytes in, values out: no sockets, no files, no clocks.
"""
