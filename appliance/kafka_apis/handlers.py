"""Answers the Kafka requests that network workers forward: a request frame in, a reply frame out.

What a worker does not answer itself comes here.  ``wire.kafka.forwarded`` decodes it.  :mod:`.refusals` refuses it if
its client lacks a right; else one handler of this package or of :mod:`appliance.groups` answers it.  The reply goes
back the same way.  Requests run side by side; the worker puts their replies into the order of its connection.

Every API of ``wire.kafka.apis`` that workers do not serve has a handler: checked when :class:`KafkaApis` is made.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from ..errors import ApplianceError, ClientFault
from ..groups.consumer_group_api import ConsumerGroupApi
from ..groups.group_coordinator import GroupCoordinator
from ..groups.group_lookup_api import GroupLookupApi
from ..groups.member_api import MemberApi
from ..groups.offsets_api import OffsetsApi
from ..groups.store import GroupStore
from ..security.acls import NotedAccess
from ..security.authorizer import Authorizer
from ..security.principals import Origin
from ..transactions.lookup_api import TransactionLookupApi
from ..transactions.offsets_api import TransactionOffsetsApi
from ..transactions.transaction_api import TransactionApi
from ..transactions.transaction_coordinator import TransactionCoordinator
from ..wire.kafka import forwarded
from ..wire.kafka.apis import APIS, Server
from ..wire.kafka.call import Call, Encoded, Handler
from .absent_api import AbsentApi
from .access_api import AccessApi
from .appliance import Appliance
from .cluster_api import ClusterApi
from .credentials_api import CredentialsApi
from .find_coordinator_api import FindCoordinatorApi
from .quota_api import QuotaApi
from .refusals import check_asked, refusal
from .settings_api import SettingsApi
from .topic_api import TopicApi

AT_ONCE_BYTES_MAX: Final = 16 * 1024
"""Frames up to here are decoded within 20 ms, whatever is in them; larger ones may take half a second."""
API_KEY_BYTES: Final = 2
"""Of a frame, at its beginning."""
AT_ONCE_ROWS_MAX: Final = 1_000
"""Answers with up to this many rows in all arrays are encoded within 20 ms; larger ones may take a second."""


class _Codec:
    """Decodes requests and encodes answers, large ones in a thread so that others are answered meanwhile.

    There is one thread, so it does one at a time, and frames of one peer come out in their order.
    """

    def __init__(self, elements_max: int) -> None:
        self._elements_max = elements_max
        self._thread = ThreadPoolExecutor(1, "codec")
        self._peers: Counter[str] = Counter()
        """How many frames of a peer the thread has."""

    async def decode(self, frame: bytes | memoryview, peer: str) -> tuple[forwarded.Header, Any]:
        """See :func:`appliance.wire.kafka.forwarded.decode`."""
        if len(frame) <= AT_ONCE_BYTES_MAX and peer not in self._peers:
            return forwarded.decode(frame, self._elements_max)
        self._peers[peer] += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, forwarded.decode, frame, self._elements_max)
        finally:
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]

    async def encode(self, answer: Mapping[str, Any], reply_to: tuple[int, int, int]) -> bytes:
        """See :func:`appliance.wire.kafka.forwarded.encode`."""
        if not _has_more_rows(answer, AT_ONCE_ROWS_MAX):
            return forwarded.encode(answer, *reply_to)
        return await asyncio.get_running_loop().run_in_executor(self._thread, forwarded.encode, answer, *reply_to)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _errors(answer: Mapping[str, Any]) -> int:
    """The number of errors in an answer, at all depths."""
    count = int(bool(answer.get("error_code")))
    for value in answer.values():
        if isinstance(value, list):
            for element in value:
                if isinstance(element, dict):
                    count += _errors(element)
    return count


def _has_more_rows(answer: Mapping[str, Any], rows: int) -> bool:
    """Whether the arrays of an answer have more elements than this, at all depths."""
    arrays = [value for value in answer.values() if isinstance(value, list)]
    while arrays and rows >= 0:
        array = arrays.pop()
        rows -= len(array)
        if rows >= 0:
            for element in array:
                if isinstance(element, dict):
                    arrays += [value for value in element.values() if isinstance(value, list)]
    return rows < 0


class KafkaApis:
    """One for all connections.

    ``on_answer`` is called with the API and the fields of each answer, of an encoded one with its rows; ``on_errors``
    with the API and the number of errors of each answer that has any.  ``elements_max``: as in ``forwarded.decode``.
    """

    def __init__(
        self,
        appliance: Appliance,
        groups: GroupCoordinator,
        group_store: GroupStore,
        transactions: TransactionCoordinator,
        authorizer: Authorizer,
        on_answer: Callable[[str, Call, Mapping[str, Any]], object],
        on_errors: Callable[[Origin, int, int], None],
        elements_max: int = forwarded.ELEMENTS_MAX,
    ) -> None:
        self._codec = _Codec(elements_max)
        self._authorizer, self._on_answer, self._on_errors = authorizer, on_answer, on_errors
        apis = (
            MemberApi(groups, group_store),
            ConsumerGroupApi(groups, group_store),
            OffsetsApi(groups, group_store, transactions.all_pending),
            GroupLookupApi(groups, group_store),
            FindCoordinatorApi(group_store, transactions.store),
            TransactionApi(transactions, lambda: appliance.config.transactions.timeout_ms_max),
            TransactionOffsetsApi(transactions, groups),
            TransactionLookupApi(transactions),
            ClusterApi(appliance),
            TopicApi(appliance),
            SettingsApi(appliance),
            CredentialsApi(appliance.security),
            AbsentApi(appliance),
            AccessApi(appliance),
            QuotaApi(appliance.security),
        )
        handlers = {name: handler for api in apis for name, handler in api.handlers.items()}
        self._handlers: dict[int, Handler] = {
            key: handlers.pop(api.name) for key, api in APIS.items() if api.server is Server.COORDINATOR
        }
        assert not handlers, f"not advertised: {sorted(handlers)}"

    async def answer(self, frame: bytes | memoryview, origin: Origin) -> bytes:
        """The reply frame.

        Raises:
            ProtocolFault: close the connection.
        """
        try:
            header, request = await self._codec.decode(frame, origin.peer)
        except ClientFault as error:
            return self._refuse(frame, error, origin)
        access = NotedAccess(self._authorizer.access(origin))
        api = APIS[header.api_key]
        call = Call(request, header.api_version, header.correlation_id, header.client_id, origin, access)
        try:
            answer = refusal(api, call)
            refused = answer is not None
            if answer is None:
                access.asked.clear()
                answer = await self._handlers[header.api_key](call)
        except ApplianceError as error:  # something is missing just now; handlers answer all else themselves
            return self._refuse(frame, error, origin)
        fields: Mapping[str, Any] = {"rows": answer.rows} if isinstance(answer, Encoded) else answer
        self._on_answer(api.name, call, fields)
        if not refused:  # behind the line in the audit log, which tells of what has been done all the same
            check_asked(api, access, answer)
        if errors := _errors(fields):
            self._on_errors(origin, header.api_key, errors)
        return answer.frame if isinstance(answer, Encoded) else await self._codec.encode(answer, header.reply_to)

    def _refuse(self, frame: bytes | memoryview, error: ApplianceError, origin: Origin) -> bytes:
        self._on_errors(origin, int.from_bytes(frame[:API_KEY_BYTES], "big"), 1)
        return forwarded.encode_refusal(frame, error.code)

    def close(self) -> None:
        self._codec.close()
