"""Defines the messages that kafka-python lacks (KIP-848, KIP-932), in the form that its own have: a JSON file for each.

A file has the fields in the order of the wire; ``versions`` and ``nullableVersions`` say where a field is, and where it
may be null.  kafka-python makes a class of the file that has the class's name.
"""

from __future__ import annotations

from ..protocol_package import api_message


class ConsumerGroupHeartbeatRequest(api_message.ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """See the file of this name."""


class ConsumerGroupHeartbeatResponse(api_message.ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """See the file of this name."""


class ConsumerGroupDescribeRequest(api_message.ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """See the file of this name."""


class ConsumerGroupDescribeResponse(api_message.ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """See the file of this name."""


class ShareGroupHeartbeatRequest(api_message.ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """See the file of this name."""


class ShareGroupHeartbeatResponse(api_message.ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """See the file of this name."""
