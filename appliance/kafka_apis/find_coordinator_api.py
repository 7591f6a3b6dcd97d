"""Answers FindCoordinator: who coordinates a group, or a transactional id.

Where there can be no transactions, a transactional producer is refused at this, its first request, with
UNSUPPORTED_VERSION: clients give up at once, and show a text that is true, Java's our message.  librdkafka, which asks
in version 2, repeats every refusal but TRANSACTIONAL_ID_AUTHORIZATION_FAILED for ever; of that it shows our message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..groups.group_coordinator import coordinator_of
from ..groups.store import GroupStore
from ..names import GROUP_CHARACTERS_MAX, TRANSACTIONAL_ID_CHARACTERS_MAX
from ..security.acls import Operation, ResourceType
from ..transactions.store import TransactionStore
from ..wire.kafka.call import Answer, Call, Handler
from ..wire.kafka.codes import Code
from ..wire.kafka.metadata_reply import Broker

GROUP_KEY, TRANSACTION_KEY = 0, 1
NO_TRANSACTIONS: Final = "transactions need ZooKeeper: unset transactional.id (idempotence works without it)"
VERSION_OF_LIBRDKAFKA: Final = 2


class FindCoordinatorApi:
    def __init__(self, groups: GroupStore, transactions: TransactionStore) -> None:
        self._groups, self._transactions = groups, transactions

    @property
    def handlers(self) -> dict[str, Handler]:
        return {"FindCoordinator": self._find}

    async def _find(self, call: Call) -> Answer:
        request = call.request
        brokers = self._groups.brokers(call.listener)
        if call.version >= 4:
            return {
                "coordinators": [
                    {"key": key} | self._coordinator_row(call, key, request.key_type, brokers)
                    for key in request.coordinator_keys
                ]
            }
        return self._coordinator_row(call, request.key, request.key_type, brokers)

    def _coordinator_row(self, call: Call, key: str, key_type: int, brokers: Sequence[Broker]) -> dict[str, Any]:
        error, message = self._refusal(call, key, key_type)
        name = self._transactions.owner_of(key) if key_type == TRANSACTION_KEY else key
        broker = coordinator_of(name, brokers) if not error else Broker(-1, "", -1)
        return {
            "error_code": error,
            "error_message": message,
            "node_id": broker.id,
            "host": broker.host,
            "port": broker.port,
        }

    def _refusal(self, call: Call, key: str, key_type: int) -> tuple[Code, str | None]:
        """The error, and what to say about it."""
        if key_type == TRANSACTION_KEY:
            if not call.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key):
                return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, f"not permitted on transactional id {key!r}"
            if not self._transactions.serves:
                repeats = call.version == VERSION_OF_LIBRDKAFKA
                return (
                    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if repeats else Code.UNSUPPORTED_VERSION,
                    NO_TRANSACTIONS,
                )
            if len(key) > TRANSACTIONAL_ID_CHARACTERS_MAX:
                most = TRANSACTIONAL_ID_CHARACTERS_MAX
                return Code.INVALID_REQUEST, f"a transactional id has at most {most} characters"
        elif key_type != GROUP_KEY:
            return Code.INVALID_REQUEST, f"there are no coordinators of key type {key_type}"
        elif not call.may(Operation.DESCRIBE, ResourceType.GROUP, key):
            return Code.GROUP_AUTHORIZATION_FAILED, f"not permitted on group {key!r}"
        elif len(key) > GROUP_CHARACTERS_MAX:
            return Code.INVALID_GROUP_ID, f"a group id has at most {GROUP_CHARACTERS_MAX} characters"
        if not self._groups.leads:
            return Code.COORDINATOR_NOT_AVAILABLE, "ZooKeeper cannot be reached: try again"
        return Code.NONE, None
