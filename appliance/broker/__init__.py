"""What the broker decides: plans for requests, sequence checks of idempotent producers.  Values only, no I/O."""
