"""The network worker: the sockets of both doors, epoll, sendfile."""

from .process import Post, run

__all__ = ["Post", "run"]
