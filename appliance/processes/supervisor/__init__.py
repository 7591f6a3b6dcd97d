"""The supervisor: creates shared memory, forks the other processes, reaps them, stops them in order."""

from .supervisor import run

__all__ = ["run"]
