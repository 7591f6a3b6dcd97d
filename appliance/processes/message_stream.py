"""Messages on a stream of bytes, as between a network worker and the coordinator: 4 bytes of size, then the message.

A :class:`~.control.Channel` takes messages of 128 KiB at most; a reply of the coordinator may be as large as a topic
list of a large cluster.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from msgspec import ValidationError
from msgspec.msgpack import Decoder, Encoder

from .messages import ProcessMessage, UnknownMessage

SIZE_BYTES: Final = 4
OVERHEAD_BYTES: Final = 4096
"""Bytes of a message besides the frame in it, at most."""
REPLY_BYTES_MAX: Final = 256 << 20
"""The frame in a message of the coordinator."""
SHOWN_BYTES: Final = 200

T = TypeVar("T")
"""What a process takes; see the unions of :mod:`.messages`."""

_encode_into = Encoder().encode_into


def packed(message: ProcessMessage) -> bytearray:
    """A message as it goes over the stream."""
    data = bytearray(SIZE_BYTES)
    _encode_into(message, data, SIZE_BYTES)
    data[:SIZE_BYTES] = (len(data) - SIZE_BYTES).to_bytes(SIZE_BYTES, "big")
    return data


class MessageReader(Generic[T]):
    """Cuts a stream into messages.  It keeps what it was fed and nobody has taken: the caller bounds that."""

    def __init__(self, decoder: Decoder[T], bytes_max: int) -> None:
        """``bytes_max``: of one message."""
        self._decode, self._bytes_max = decoder.decode, bytes_max
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        self._data += data

    def take_message(self) -> T | None:
        """The next message; None: it has not arrived yet, or not all of it.

        Raises:
            UnknownMessage: a bug.
        """
        if len(self._data) < SIZE_BYTES:
            return None
        end = SIZE_BYTES + int.from_bytes(self._data[:SIZE_BYTES], "big")
        if end - SIZE_BYTES > self._bytes_max:
            raise UnknownMessage(f"{end - SIZE_BYTES} bytes, more than {self._bytes_max}")
        if len(self._data) < end:
            return None
        try:
            with memoryview(self._data)[SIZE_BYTES:end] as body:
                message = self._decode(body)
        except ValidationError as error:
            raise UnknownMessage(f"{bytes(self._data[SIZE_BYTES:][:SHOWN_BYTES])!r}: {error}") from error
        del self._data[:end]
        return message
