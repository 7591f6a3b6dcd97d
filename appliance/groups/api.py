"""The cold half of the Kafka door: a request frame in, a reply frame out.

What the network worker does not answer itself comes here.  ``wire.kafka.cold`` decodes it, one handler of
:mod:`.cluster_api`, :mod:`.topic_api`, :mod:`.settings_api` or :mod:`.group_api` answers it, and the reply goes back
the same way.  Requests run side by side; the worker puts their replies into the order of its connection.

Every API of ``wire.kafka.apis`` that is not hot has a handler: checked when the door is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from appliance.errors import ApplianceError, UnsupportedVersion
from appliance.wire.kafka import cold
from appliance.wire.kafka.apis import APIS, HOT

from .call import Call, Handler
from .cluster import Cluster
from .cluster_api import ClusterApi
from .group_api import GroupApi
from .settings_api import SettingsApi
from .state import Group, Limits
from .topic_api import TopicApi


class KafkaDoor:
    """One for all connections.  ``new_id``: gives a text that is unique for ever, such as a random UUID."""

    def __init__(self, cluster: Cluster, new_id: Callable[[], str], limits: Limits | None = None) -> None:
        self._groups = GroupApi(cluster, limits or Limits(), new_id)
        apis = (self._groups, ClusterApi(cluster), TopicApi(cluster), SettingsApi(cluster))
        handlers = {name: handler for api in apis for name, handler in api.handlers.items()}
        self._handlers: dict[int, Handler] = {
            key: handlers.pop(api.name) for key, api in APIS.items() if key not in HOT
        }
        assert not handlers, f"not advertised: {sorted(handlers)}"

    async def answer(self, frame: bytes | memoryview, listener: str, peer: str) -> bytes:
        """The reply frame.  ``listener`` and ``peer``: "host:port" of our and of the client's end.

        Raises:
            ProtocolFault: close the connection.
        """
        try:
            header, request = cold.decode(frame)
        except UnsupportedVersion as error:
            return cold.encode_refusal(frame, error.code)
        call = Call(request, header.api_version, header.correlation_id, header.client_id, listener, peer)
        try:
            answer = await self._handlers[header.api_key](call)
        except ApplianceError as error:  # a picture that is missing just now: handlers answer all else themselves
            return cold.encode_refusal(frame, error.code)
        if isinstance(answer, bytes):
            return answer
        return cold.encode(answer, *header.reply_to)

    def groups(self) -> Mapping[str, Group]:
        """The groups that have members at this door; to look at, not to change."""
        return self._groups.groups()

    def close(self) -> None:
        self._groups.close()
