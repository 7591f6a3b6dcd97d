"""``appliance demo``: ships the logs of this host through an appliance of its own and accounts for every line.

``command`` is the command.  ``scenario`` runs the demo from its start to its end.  ``log_sources`` chooses the lines;
``spooling_consumer`` is the process that reads them back, and that is killed.  ``ledger`` compares what went in with
what came out.  ``pipeline_step`` runs the Spark pipeline over the same lines.  ``results`` prints what was found.
``display`` shows progress meanwhile.  ``sandbox`` owns the directory and the processes, and removes them.
"""
