"""Topics for queries."""

from ..spark.conftest import topics, topics_of

__all__ = ["topics", "topics_of"]
