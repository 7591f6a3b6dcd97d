"""Decodes requests and encodes replies of the two listeners, without I/O.  Replies are bytes and file ranges."""
