"""HTTP, both ways: connections to web servers that the configuration names, and a server for sockets that are bound.

``pinned_connection`` asks one server and no other, ``webhook`` posts JSON through it; ``server`` serves what a protocol
class of uvicorn makes of connections.  uvicorn comes with the extras that have something to serve.
"""
