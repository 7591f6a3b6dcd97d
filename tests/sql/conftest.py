"""Topics for queries."""

from ..support.topics import topics, topics_of

__all__ = ["topics", "topics_of"]
