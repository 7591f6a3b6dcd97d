"""Defines how the rows of both listeners say which rights an API or verb needs.

The rows are in ``wire/kafka/apis.py``, ``wire/native.py`` and ``wire/native_admin.py``.  An API needs every right of
its row; ``how`` says what a missing one leads to::

    WHOLE     the request is refused: CLUSTER_, GROUP_ or TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    EACH      each named resource by itself is refused, the others are served: TOPIC_AUTHORIZATION_FAILED...
    LISTED    resources that were not named are left out of the answer
    SUFFICES  none: whoever has it does not need the next rights of the row
    SHOWN     a part of the answer is empty

The rows are those of Kafka's documentation, "Operations and resources on protocols"; the tests name the differences.
Rights of followers (ClusterAction) are missing, since there are none.  Who may use an API without a right may use it
before others have granted anything, but after logging in where the listener asks for that.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from .acls import Operation, ResourceType


class How(Enum):
    """What a missing right leads to."""

    WHOLE = "the request is refused"
    EACH = "each named resource is refused by itself"
    LISTED = "left out of the answer"
    SUFFICES = "the rights after it are not needed"
    SHOWN = "a part of the answer is empty"


class Right(NamedTuple):
    operation: Operation
    resource: ResourceType
    how: How


NeededRights = tuple[Right, ...]


def cluster_rights(operation: Operation) -> NeededRights:
    return (Right(operation, ResourceType.CLUSTER, How.WHOLE),)


def each_rights(operation: Operation, resource: ResourceType) -> NeededRights:
    return (Right(operation, resource, How.EACH),)


def config_rights(operation: Operation) -> NeededRights:
    """For the settings of whatever has some."""
    having = ResourceType.CLUSTER, ResourceType.TOPIC, ResourceType.GROUP
    return tuple(Right(operation, resource, How.EACH) for resource in having)


NO_RIGHTS: Final[NeededRights] = ()
PRODUCER_ID_RIGHTS: Final[NeededRights] = (
    Right(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, How.SUFFICES),
    Right(Operation.WRITE, ResourceType.TOPIC, How.WHOLE),
)
"""To write to any topic is enough, as in Kafka since 3.0."""
CREATE_RIGHTS: Final[NeededRights] = (
    Right(Operation.CREATE, ResourceType.CLUSTER, How.SUFFICES),
    Right(Operation.CREATE, ResourceType.TOPIC, How.EACH),
)
LISTED_GROUPS_RIGHTS: Final[NeededRights] = (
    Right(Operation.DESCRIBE, ResourceType.CLUSTER, How.SUFFICES),
    Right(Operation.DESCRIBE, ResourceType.GROUP, How.LISTED),
)
SEEN_TOPICS_RIGHTS: Final[NeededRights] = (
    Right(Operation.DESCRIBE, ResourceType.TOPIC, How.EACH),
    Right(Operation.DESCRIBE, ResourceType.TOPIC, How.LISTED),
)
MEMBER_RIGHTS: Final[NeededRights] = (Right(Operation.READ, ResourceType.GROUP, How.WHOLE),)
TRANSACTION_RIGHTS: Final[NeededRights] = (Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, How.WHOLE),)
