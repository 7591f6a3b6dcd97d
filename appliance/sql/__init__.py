"""SQL over topics while they are written, and over the tables of pipelines, with DuckDB in the process of the asker::

    with Session(bootstrap) as session:
        for batch in session.run("select level, count(*) from web group by level").batches:
            ...

A topic is a table.  DuckDB says which columns it needs and what it compares; only the offsets in which that may hold
are read, through the native listener, with the rights of whoever asks.  A query reads each partition up to the end that
it had when the query began.

Reading order: ``pushdown`` (pure: what a filter leaves of a log), ``line_columns`` (what parsers make of lines),
``topic_table``, ``beside``, ``session``.  DuckDB and Arrow are the packages of the extra ``sql``; neither Spark nor a
JVM is needed.
"""
