"""``appliance demo``: ships the logs of this host through an appliance of its own and accounts for every line.

``command`` is the command.  ``scenario`` runs the demo from its start to its end.  ``log_sources`` chooses the lines.
``spooling_consumer`` is the process that reads them back; one is killed.  ``ledger`` compares input and output.
``pipeline_step`` runs the Spark pipeline over the same lines.  ``display`` shows the progress, ``results`` prints the
results.  ``sandbox`` owns the directory and the processes, and removes them.
"""
