"""The supervisor: creates what the others share, forks them, reaps them, stops them in order."""

from .process import run

__all__ = ["run"]
