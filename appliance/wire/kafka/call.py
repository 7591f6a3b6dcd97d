"""Defines the arguments and answers of the handlers of forwarded Kafka requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from ...addresses import Listener
from ...errors import ApplianceError, Unavailable
from ...names import TopicPartition
from ...security.acls import CLUSTER_NAME, UNRESTRICTED, Access, Operation, ResourceType
from ...security.principals import Origin
from .codes import Code

T = TypeVar("T")

ReplyRow = dict[str, Any]
"""A part of a reply, in the names of Kafka's fields."""


class Call(NamedTuple):
    """A forwarded request.  ``request`` has kafka-python's field names; a field that the version lacks has its default.

    ``origin``: who sends it, from where, through which listener.
    """

    request: Any
    version: int
    correlation_id: int
    client_id: str
    origin: Origin
    access: Access = UNRESTRICTED
    """What the client may do."""

    @property
    def listener(self) -> Listener:
        """The listener that the client connected to."""
        return self.origin.listener

    def may(self, operation: Operation, resource: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether the client may do this; the API's row (``apis.py``) says what it has to ask."""
        return self.access.may(operation, resource, name)

    @property
    def client_host(self) -> str:
        """The peer's address as Kafka's tools show it: "/10.0.0.1"."""
        return f"/{self.origin.host}"


class Encoded(NamedTuple):
    """A reply frame that its handler has encoded itself, where speed matters.

    ``rows``: names and error codes in it, for the audit log and for counting; those without an error may be missing.
    ``served``: how many of what it is about it tells something of, or refuses no more than by their names.
    """

    frame: bytes
    rows: list[dict[str, Any]]
    served: int


Answer = Mapping[str, Any] | Encoded
"""The fields of the response by Kafka's names in snake case, or the whole reply."""

Handler = Callable[[Call], Awaitable[Answer]]


def rows_by_topic(
    rows: Mapping[TopicPartition, T], fields: Callable[[T], Mapping[str, Any]], partitions: str = "partitions"
) -> list[dict[str, Any]]:
    """Rows of an answer, in the order of ``rows``: [{name: topic, <partitions>: [{partition_index, …fields(row)}]}]."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, number), row in rows.items():
        topics.setdefault(topic, []).append({"partition_index": number, **fields(row)})
    return [{"name": topic, partitions: rows_of_topic} for topic, rows_of_topic in topics.items()]


def error_row(code: int) -> dict[str, int]:
    """The fields of a partition that has an error code and nothing else."""
    return {"error_code": code}


def retriable(error: ApplianceError, while_unavailable: Code) -> int:
    """The code for an error.  Temporary errors get ``while_unavailable``, on which clients of this API retry."""
    return while_unavailable if isinstance(error, Unavailable) else error.code
