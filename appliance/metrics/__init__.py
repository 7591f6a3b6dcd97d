"""Serves the counters and the health of the processes to monitors and people, outside of the data path."""
