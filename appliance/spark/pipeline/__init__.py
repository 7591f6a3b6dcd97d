"""The pipeline: it reads topics and writes a table of events, dead letters, and views of the table::

    appliance pipeline run pipeline.toml

One streaming query reads every line once.  The tasks of its source (``pipeline_source``) read ranges of the log, parse
lines (``parsers``), complete events (``events``) and write files of them, all in one Python process each
(``task_work``).  What they have done goes through Spark to a sink (``pipeline_sink``), whose driver commits all results
of a micro-batch in one step (``delta_store``).  So a micro-batch that Spark repeats after a crash is in the output
once, also for readers that are not Spark.

Everything else is a question to a version of the table: views are kept as tables of their own, what ``status``, the
audit and the page show is asked when it is shown (``event_questions``).

Reading order: ``settings``, ``times``, ``parsers``, ``events``, ``lookups``, ``quality``, ``unknown_fields``,
``tables``, ``table_files``, ``delta_store``, ``task_work``, ``pipeline_source``, ``pipeline_sink``,
``state_directory``, ``run``, ``commit_follower``, ``letters``, ``event_questions``, ``audit_counts``,
``audit_verdicts``, ``line_counts``, ``pipeline_status``, ``report``; then views: ``view_definitions``,
``event_versions``, ``view_table``, ``view_states``, ``view_refresh``, ``view_messages``, ``view_alerts``,
``view_keeper``; and ``reparse``, ``forget``, ``verify``, ``iceberg_table``.
"""
