"""The writer: owns one partition's files; the only process that writes them."""

from .process import Assignment, run

__all__ = ["Assignment", "run"]
