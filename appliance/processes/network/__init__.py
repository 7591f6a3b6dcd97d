"""The network worker: the sockets of all listeners, epoll, sendfile."""

from .worker import WorkerArguments, run

__all__ = ["WorkerArguments", "run"]
