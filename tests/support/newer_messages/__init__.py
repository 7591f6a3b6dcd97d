"""Messages in versions that kafka-python does not have yet, in the form that its own have: see
``appliance.wire.kafka.definitions``.
"""

from __future__ import annotations

from typing import Any

from appliance.wire.kafka.protocol_package import api_message


class ApiVersionsRequest(api_message.ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """Up to version 5 (KIP-1242)."""


class ApiVersionsResponse(api_message.ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """Likewise; its header has no tagged fields."""

    @classmethod
    def parse_header(cls, data: Any, version: int | None = None) -> Any:
        return cls.header_class.decode(data, flexible=False)
