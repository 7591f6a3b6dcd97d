"""Sans-IO codecs of the two doors: bytes in, values out, and replies as lists of bytes and file ranges."""
