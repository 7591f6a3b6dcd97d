"""Messages of Loki's push requests in protobuf, as its clients make them: those of pkg/push/push.proto."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto
FIELDS = {
    "Timestamp": [("seconds", 1, FIELD.TYPE_INT64), ("nanos", 2, FIELD.TYPE_INT32)],
    "LabelPairAdapter": [("name", 1, FIELD.TYPE_STRING), ("value", 2, FIELD.TYPE_STRING)],
    "EntryAdapter": [("timestamp", 1, "Timestamp"), ("line", 2, FIELD.TYPE_BYTES), ("metadata", 3, "LabelPairAdapter")],
    "StreamAdapter": [("labels", 1, FIELD.TYPE_STRING), ("entries", 2, "EntryAdapter"), ("hash", 3, FIELD.TYPE_UINT64)],
    "PushRequest": [("streams", 1, "StreamAdapter")],
}


@cache
def push_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="push.proto", package="logproto", syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, label=FIELD.LABEL_OPTIONAL)
            if isinstance(kind, str):
                added.type, added.type_name = FIELD.TYPE_MESSAGE, f".logproto.{kind}"
                added.label = FIELD.LABEL_OPTIONAL if field == "timestamp" else FIELD.LABEL_REPEATED
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("logproto.PushRequest"))
