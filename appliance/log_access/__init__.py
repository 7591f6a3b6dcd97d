"""Reads logs in large ranges, for Spark and for SQL: whole batches, by fetches or from the files, and as Arrow.

Reading order: ``ranges`` (pure), ``record_starts`` and ``arrow`` (bytes to rows), ``access`` (requests to appliances).
"""
