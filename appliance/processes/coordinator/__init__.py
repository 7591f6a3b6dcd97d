"""The coordinator: the one process that speaks with ZooKeeper, and the one that answers cold requests."""

from .process import run

__all__ = ["run"]
