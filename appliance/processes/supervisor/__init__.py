"""The supervisor: creates what the others share, forks them, reaps them, stops them in order."""

from .supervisor import run

__all__ = ["run"]
