"""The pipeline: it reads topics and writes tables, aggregates, dead letters and an audit::

    appliance pipeline run pipeline.toml

One streaming query reads every line once.  The tasks of its source (``pipeline_source``) read ranges of the log, parse
lines (``parsers``), complete events (``events``), write files of events and compute aggregates (``totals``), all in one
Python process each (``task_work``).  What they have done goes through Spark to a sink (``pipeline_sink``), whose driver
commits all results of a micro-batch in one step (``tables``).  So a micro-batch that Spark repeats after a crash is in
the output once, also for readers that are not Spark.

Reading order: ``settings``, ``times``, ``parsers``, ``events``, ``totals``, ``tables``, ``table_files``,
``parquet_store``, ``delta_store``, ``task_work``, ``pipeline_source``, ``pipeline_sink``, ``state_directory``, ``run``,
``audit_verdicts``, ``pipeline_status``, ``report``.
"""
