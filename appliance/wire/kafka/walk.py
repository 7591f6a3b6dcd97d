"""Checks a forwarded request before kafka-python decodes it, so that decoding takes bounded memory and time.

kafka-python trusts its input: a negative length moves backwards, a varint may not end, a string beyond the frame is
silently short, and each tagged field copies the rest of the frame.  The walk uses the same definitions and checks

* every length and count against the bytes of the frame, and nulls against the definition;
* the elements of all arrays of one frame together, the tagged fields, and strings (32,767 bytes, as in Kafka);
* the fields of :data:`BOUNDS`, which are kept, or stored in ZooKeeper, while their group exists.

A violation is a ProtocolFault.  Only one of :data:`BOUNDS` is a ClientFault, which is raised after the walk: such a
request can be answered.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from ...errors import ClientFault, GroupTooLarge, InvalidRequest, ProtocolFault
from ...names import ASSIGNMENT_BYTES_MAX, INSTANCE_BYTES_MAX, PROTOCOL_BYTES_MAX, SUBSCRIPTION_BYTES_MAX
from .apis import CONSUMER_GROUP_HEARTBEAT, JOIN_GROUP, SYNC_GROUP
from .primitives import STRING_BYTES_MAX, read_varint
from .protocol_package import codecs

TAGS_MAX: Final = 100
"""Largest number of tagged fields in one frame.  No client sends any in these APIs; newer ones may."""

BOUNDS: Final[dict[tuple[int, str], tuple[int, type[ClientFault]]]] = {
    (JOIN_GROUP, "group_instance_id"): (INSTANCE_BYTES_MAX, InvalidRequest),
    (JOIN_GROUP, "protocol_type"): (PROTOCOL_BYTES_MAX, InvalidRequest),
    (JOIN_GROUP, "name"): (PROTOCOL_BYTES_MAX, InvalidRequest),
    (JOIN_GROUP, "metadata"): (SUBSCRIPTION_BYTES_MAX, GroupTooLarge),
    (CONSUMER_GROUP_HEARTBEAT, "member_id"): (INSTANCE_BYTES_MAX, InvalidRequest),
    (CONSUMER_GROUP_HEARTBEAT, "instance_id"): (INSTANCE_BYTES_MAX, InvalidRequest),
    (CONSUMER_GROUP_HEARTBEAT, "rack_id"): (INSTANCE_BYTES_MAX, InvalidRequest),
    (SYNC_GROUP, "assignment"): (ASSIGNMENT_BYTES_MAX, GroupTooLarge),
}
"""By API and field: largest size in bytes, and the error above it.  See :mod:`appliance.names`."""

PRESENCE: Final = 1
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


class _Step(NamedTuple):
    """One field: ``size`` > 0 bytes; or a length and bytes; or, with ``element``, a count and elements.

    An optional struct has one element or none.
    """

    name: str
    nullable: bool
    size: int = 0
    length_bytes: int = 0
    """2 or 4; 0 = a varint of length + 1; PRESENCE = one byte: 0xff for none, else one."""
    length_max: int = 2**31 - 1
    element: WalkPlan | None = None
    bound: tuple[int, type[ClientFault]] | None = None


class WalkPlan(NamedTuple):
    steps: tuple[_Step, ...]
    flexible: bool


def plan_of(definition: Any, api_key: int, version: int, flexible: bool) -> WalkPlan:
    """Make the plan of a walk over kafka-python's ``definition`` in one version."""
    steps = [_field_step(field, api_key, version, flexible) for field in definition.untagged_fields(version)]
    return WalkPlan(tuple(steps), flexible)


def _field_step(field: Any, api_key: int, version: int, flexible: bool) -> _Step:
    nullable = field.nullable_for_version_q(version)
    length_bytes = 0 if flexible else 4
    if field.is_struct_array():
        element = plan_of(field.array_of, api_key, version, flexible)
        return _Step(field.name, nullable, 0, length_bytes, element=element)
    if field.is_array():
        step = _field_step(field.array_of, api_key, version, flexible)._replace(nullable=False)
        return _Step(field.name, nullable, 0, length_bytes, element=WalkPlan((step,), flexible=False))
    if field.is_struct():
        assert nullable, "no served request has a struct outside an array that is always there"
        return _Step(field.name, nullable, 0, PRESENCE, element=plan_of(field, api_key, version, flexible))
    if isinstance(field._type.size, int):
        return _Step(field.name, nullable, field._type.size)
    bound = BOUNDS.get((api_key, field.name))
    if not isinstance(field._type, codecs.String):
        return _Step(field.name, nullable, 0, length_bytes, bound=bound)
    return _Step(field.name, nullable, 0, length_bytes and 2, STRING_BYTES_MAX, bound=bound)


class Walk:
    """Walks over one frame.  Raises ProtocolFault, IndexError or struct.error where it is malformed."""

    def __init__(self, data: memoryview, elements_max: int) -> None:
        self._data = data
        self._elements_max = self._elements_left = elements_max
        self._tags_left = TAGS_MAX
        self._fault: ClientFault | None = None

    def check_bounds(self) -> None:
        """Raises ClientFault: a field is larger than allowed."""
        if self._fault is not None:
            raise self._fault

    def skip_struct(self, plan: WalkPlan, position: int) -> int:
        for step in plan.steps:
            if step.size:
                position += step.size
                continue
            length, position = self._length(step, position)
            if step.element is None:
                position += length
            else:
                self._elements_left -= length
                if self._elements_left < 0:
                    raise ProtocolFault(f"more than {self._elements_max} array elements in one request")
                for _ in range(length):
                    position = self.skip_struct(step.element, position)
        if plan.flexible:
            position = self.skip_tags(position)
        if position > len(self._data):
            raise ProtocolFault(f"request needs {position} bytes, its frame has {len(self._data)}")
        return position

    def skip_tags(self, position: int) -> int:
        count, position = read_varint(self._data, position)
        self._tags_left -= count
        if self._tags_left < 0:
            raise ProtocolFault(f"more than {TAGS_MAX} tagged fields in one request")
        for _ in range(count):
            _, position = read_varint(self._data, position)
            size, position = read_varint(self._data, position)
            position += size
        return position

    def _length(self, step: _Step, position: int) -> tuple[int, int]:
        """The length or count at ``position``, 0 for null.  Every element has at least one byte."""
        if step.length_bytes == PRESENCE:
            return int(self._data[position] != 0xFF), position + 1
        if step.length_bytes == 0:
            length, position = read_varint(self._data, position)
            length -= 1
        else:
            length = (_I16 if step.length_bytes == 2 else _I32).unpack_from(self._data, position)[0]
            position += step.length_bytes
        if length == -1 and step.nullable:
            return 0, position
        if not 0 <= length <= len(self._data) - position:
            raise ProtocolFault(f"{step.name}: length {length}, {len(self._data) - position} bytes are left")
        if length > step.length_max:
            raise ProtocolFault(f"{step.name}: a text of {length} bytes, limit {step.length_max}")
        if step.bound is not None and length > step.bound[0]:
            self._fault = step.bound[1](f"{step.name} of {length} bytes: at most {step.bound[0]} are allowed")
        return length, position
