"""The writer: owns one partition's files; the only process that writes them."""

from .writer import WriterArguments, run

__all__ = ["WriterArguments", "run"]
