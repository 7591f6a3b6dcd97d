"""Real clients against the real server."""
