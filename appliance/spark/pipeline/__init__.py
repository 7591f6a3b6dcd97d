"""The pipeline: it reads topics and writes tables, aggregates, dead letters and an audit::

    appliance pipeline run pipeline.toml

One streaming query reads every line once, from the source of this package to a sink of its own (``pipeline_sink``).
The sink's tasks parse lines (``parsers``), complete events (``events``), write files of events and compute aggregates
(``totals``).  Its driver commits all results of a micro-batch in one step (``tables``).  So a micro-batch that Spark
repeats after a crash is in the output once, also for readers that are not Spark.

Why a sink, and not ``mapInArrow`` with ``foreachBatch``: both pass the same Arrow batches to the same Python worker.
But ``mapInArrow`` needs pandas, and its results would need a second action.  A sink has the two phases that are needed:
tasks write, the driver commits.

Reading order: ``settings``, ``times``, ``parsers``, ``events``, ``totals``, ``tables``, ``table_files``,
``parquet_store``, ``delta_store``, ``pipeline_sink``, ``state_directory``, ``run``, ``audit_verdicts``,
``pipeline_status``, ``report``.
"""
