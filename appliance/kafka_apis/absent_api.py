"""Answers APIs of absent features: reassignments, elections, and share groups (KIP-932).

Each partition is stored once, on a broker that does not change.
Tools send such requests all the same.  The answers are those of a Kafka broker where nothing is set.  A request that
would change nothing succeeds; any other is refused with the reason.
"""

from __future__ import annotations

from typing import Final

from ..wire.kafka.call import Answer, Call, Handler, ReplyRow
from ..wire.kafka.codes import Code
from ..wire.kafka.metadata_reply import NO_LEADER
from .appliance import Appliance

ELECTION_TYPES: Final = (0, 1)
"""Election types: of the preferred leader (0), and of one that is not in sync (1)."""
NO_SHARE_GROUPS: Final = "there are no share groups (KIP-932) here: use a consumer group"


class AbsentApi:
    def __init__(self, appliance: Appliance) -> None:
        self._appliance = appliance

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "ElectLeaders": self._elect,
            "AlterPartitionReassignments": self._reassign,
            "ListPartitionReassignments": self._reassignments,
            "ShareGroupHeartbeat": self._share,
        }

    async def _share(self, call: Call) -> Answer:
        """Refuse a member of a share group, as a Kafka in which there are none."""
        return {"error_code": Code.UNSUPPORTED_VERSION, "error_message": NO_SHARE_GROUPS}

    # -- where partitions are -------------------------------------------------------------------------

    async def _elect(self, call: Call) -> Answer:
        """The one broker that stores a partition leads it already, or is away; of all partitions, none is listed."""
        request = call.request
        if request.election_type not in ELECTION_TYPES:
            error, message = Code.INVALID_REQUEST, f"there is no election of type {request.election_type}"
        else:
            error, message = Code.NONE, ""
        results = [
            {
                "topic": topic.topic,
                "partition_result": [
                    {"partition_id": number} | (_fault(error, message) if error else self._elected(topic.topic, number))
                    for number in topic.partitions
                ],
            }
            for topic in request.topic_partitions or ()
        ]
        return {"error_code": error, "replica_election_results": results}

    def _elected(self, name: str, partition: int) -> ReplyRow:
        topic = self._appliance.topics().get(name)
        if topic is None or partition not in topic.partitions:
            return _fault(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{partition}")
        if self._appliance.leader(topic, partition) == NO_LEADER:
            return _fault(Code.PREFERRED_LEADER_NOT_AVAILABLE, f"the broker that stores {name}-{partition} is away")
        return _fault(Code.ELECTION_NOT_NEEDED, f"{name}-{partition} is led by the broker that stores it")

    async def _reassign(self, call: Call) -> Answer:
        """A partition may be assigned to where it is; nothing is under way that could be taken back."""
        rows = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": part.partition_index}
                    | self._reassigned(topic.name, part.partition_index, part.replicas)
                    for part in topic.partitions
                ],
            }
            for topic in call.request.topics
        ]
        return {"error_code": Code.NONE, "responses": rows}

    def _reassigned(self, name: str, partition: int, replicas: list[int] | None) -> ReplyRow:
        topic = self._appliance.topics().get(name)
        if topic is None or partition not in topic.partitions:
            return _fault(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{partition}")
        if replicas is None:
            return _fault(Code.NO_REASSIGNMENT_IN_PROGRESS, f"{name}-{partition} is not being moved")
        if list(replicas) != topic.partitions[partition]:
            here = topic.partitions[partition]
            return _fault(Code.INVALID_REPLICA_ASSIGNMENT, f"{name}-{partition} stays where it is stored: on {here}")
        return {"error_code": Code.NONE}

    async def _reassignments(self, call: Call) -> Answer:
        return {"error_code": Code.NONE, "topics": []}


def _fault(code: int, message: str) -> ReplyRow:
    return {"error_code": code, "error_message": message}
