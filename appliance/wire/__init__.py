"""Sans-IO codecs of the two listeners: bytes in, values out, and replies as lists of bytes and file ranges."""
