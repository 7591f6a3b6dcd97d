"""Plans replies, answers metadata and checks the sequences of idempotent producers.  No sockets, no writes."""
