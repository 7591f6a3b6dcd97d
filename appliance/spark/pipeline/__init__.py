"""The pipeline as a product: topics in, tables, aggregates, dead letters and an audit out.

    appliance pipeline run pipeline.toml

Every line is read once, by one streaming query from the source of this package to a sink of its own (``sink``).  The
sink's tasks parse (``parsers``), complete (``events``), write files of events and add up aggregates (``totals``); its
driver commits all that a micro-batch gave in one step (``tables``), so a micro-batch that Spark repeats after a crash
is in the output once, also for readers that are not Spark.

Why a sink, and not ``mapInArrow`` with ``foreachBatch``: both hand the same Arrow batches to the same Python worker,
but ``mapInArrow`` needs pandas, and its results would need a second action; a sink has the two phases (tasks write,
the driver commits) that this is about.

Reading order: ``settings``, ``times``, ``parsers``, ``events``, ``totals``, ``tables``, ``sink``, ``state``, ``run``,
``status``, ``audit``, ``report``.
"""
