"""Stores what groups set themselves in ZooKeeper, where Kafka keeps settings, and reads it: as operations::

    path                       value, JSON
    /config/groups             a new text after each change: what brokers watch
    /config/groups/<group>     {"version": 1, "config": {setting: text}}

Names are percent-encoded.  A node that cannot be read is logged and counts as if the group set nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import unquote
from uuid import uuid4

from ..errors import InvalidRequest, ZooKeeperAway
from .broker_registry import readable
from .operations import (
    ATTEMPTS_MAX,
    Failed,
    Node,
    Operation,
    Refused,
    ask,
    create,
    delete,
    get,
    list_children,
    multi,
    read_children,
    set_value,
)
from .security_nodes import decode_config, encode_config, encode_name

GROUPS: Final = "/config/groups"

SettingTexts = dict[str, str]
"""Of one group: text by name."""


def read_settings() -> Operation[dict[str, SettingTexts]]:
    """What each group sets that sets anything, by its name."""
    nodes = yield from read_children(GROUPS)
    read = {name: readable(decode_config, f"{GROUPS}/{name}", node.value) for name, node in nodes.items()}
    return {unquote(name, errors="surrogatepass"): settings for name, settings in read.items() if settings}


def alter_settings(
    group: str, change: Callable[[SettingTexts], SettingTexts], configured_max: int
) -> Operation[dict[str, SettingTexts]]:
    """Store a change of what a group sets, in one transaction, and return what all groups set then.

    ``change`` is called again when others write meanwhile, or when a reply was lost: it accepts settings that have the
    change already.

    Raises:
        InvalidRequest: ``configured_max`` others set something.
        Whatever ``change`` raises.
    """
    path = f"{GROUPS}/{encode_name(group)}"
    for _ in range(ATTEMPTS_MAX):
        above, node = yield [get(GROUPS), get(path)]
        if not isinstance(above, Node):
            yield from ask([create(GROUPS)])
            continue
        before = (readable(decode_config, path, node.value) or {}) if isinstance(node, Node) else {}
        after = change(before)
        if after == before:
            return (yield from read_settings())
        if not isinstance(node, Node) and len((yield from list_children(GROUPS))) >= configured_max:
            raise InvalidRequest(f"{configured_max} groups have settings of their own: take back those of others first")
        value = encode_config(after)
        if not after:
            part = delete(path, node.version)
        elif isinstance(node, Node):
            part = set_value(path, value, node.version)
        else:
            part = create(path, value)
        (reply,) = yield [multi([part, set_value(GROUPS, uuid4().hex.encode(), above.version)])]
        if not isinstance(reply, Failed | Refused):
            return (yield from read_settings())
    raise ZooKeeperAway(f"the settings of group {group!r} keep changing; try again")
