"""Owns all layouts of shared memory: segment tables, arenas, doorbells, heartbeats."""
