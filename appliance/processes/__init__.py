"""The processes: supervisor, network worker, writer, coordinator; one file and one ``run`` each."""
