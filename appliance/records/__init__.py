"""Kafka's RecordBatch v2, the one format of the appliance: check, place, encode, decode."""
