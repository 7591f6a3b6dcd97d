"""Owns the layouts of shared memory: segment tables, arenas, doorbells, heartbeats."""
