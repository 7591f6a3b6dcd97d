"""Topics to read."""

from ..support.topics import topics, topics_of

__all__ = ["topics", "topics_of"]
