"""The coordinator: the one process that speaks with ZooKeeper, and the one that answers forwarded requests."""

from .coordinator import run

__all__ = ["run"]
