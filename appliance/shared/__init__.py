"""The only owner of shared-memory layouts: segment tables, arenas, doorbells."""
