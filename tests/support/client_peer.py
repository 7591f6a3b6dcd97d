"""A broker in one thread for the client's tests: the real codec and sequence check, logs in memory, faults on
demand.

It answers in order and at once, long polls excepted.  ``peer.faults`` is a list of functions that see each
produce request before it is handled and may return an error code (nothing is appended), ``AFTER`` (append,
then say WriterGone), ``DROP`` (close the connection, nothing appended), ``DROP_AFTER`` (append, then close)
or None (no fault).
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from typing import Any

from appliance.broker.sequences import Sequences
from appliance.errors import ClientFault, ProducerFenced, UnknownPartition, WriterGone
from appliance.records import batch as batches
from appliance.records.decode import decode_batch
from appliance.wire.bounds import WireLimits
from appliance.wire.frames import split
from appliance.wire.native import ADMIN, METADATA, NativeCodec, decode_header, encode_frame
from appliance.wire.requests import (
    EARLIEST,
    LATEST,
    Fetch,
    FetchResult,
    Forwarded,
    Local,
    Offsets,
    OffsetsResult,
    Produce,
    ProduceResult,
)

AFTER, DROP, DROP_AFTER = "after", "drop", "drop after"
Fault = Callable[[str, int, bytes], "int | str | None"]
FRAME_BYTES_MAX = 8 * 1024 * 1024
LIMITS = WireLimits(FRAME_BYTES_MAX, 1024 * 1024, 10_000)


class Partition:
    def __init__(self) -> None:
        self.data = bytearray()
        self.start = 0
        self.sequences = Sequences(1000)
        self.batches: list[int] = []  # positions

    def append(self, records: bytes) -> tuple[int, int]:
        first = -1
        at = 0
        while at < len(records):
            info = batches.check_batch(memoryview(records), at, len(records), FRAME_BYTES_MAX)
            end = len(self.data) + info.size
            base = end - info.count
            if info.producer_id >= 0:
                repeat = self.sequences.check_sequence(
                    info.producer_id, info.producer_epoch, info.base_sequence, info.count
                )
                if repeat is not None:
                    return repeat
                numbers = info.producer_id, info.producer_epoch, info.base_sequence, info.count
                self.sequences.record(*numbers, base, end, info.max_timestamp)
                self.sequences.commit()
            self.batches.append(len(self.data))
            placed = bytearray(records[at : at + info.size])
            batches.place(memoryview(placed), 0, len(self.data), info.size, info.count)
            self.data += placed
            first = base if first < 0 else first
            at += info.size
        return first, len(self.data)

    def values(self) -> list[bytes | None]:
        return [record.value for at in self.batches for record in decode_batch(self.data, at)]


class Peer:
    """``topics``: name -> number of partitions; each led by this broker."""

    def __init__(self, topics: dict[str, int], *, broker_id: int = 0, brokers: list[Peer] | None = None) -> None:
        self.topics = topics
        self.broker_id = broker_id
        self.leaders: dict[tuple[str, int], int] = {}
        self.logs: dict[tuple[str, int], Partition] = {}
        self.faults: list[Fault] = []
        self.settings: dict[str, str] = {}
        self.requests = 0
        self.answering = True
        self.instead: bytes | None = None  # sent in place of answers; b"" hangs up
        self.next_producer_id = 1000 * (broker_id + 1)
        self.epoch = -1
        """Of the one transactional id that it knows."""
        self.ends: list[bool] = []
        """What its transactions have ended with: whether they were committed."""
        self.refusals: dict[str, int] = {}
        """Error codes instead of the answers to verbs of transactions."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._stop_r, self._stop_w = socket.socketpair()
        self._thread = threading.Thread(target=self._run)
        self._connections: dict[int, tuple[socket.socket, NativeCodec, bytearray]] = {}
        self._brokers = brokers if brokers is not None else []
        self._brokers.append(self)  # once it has all that the threads of the others look at
        self._thread.start()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stop_w.send(b"x")
        self._thread.join()
        for sock in (self._listener, self._stop_r, self._stop_w, *(c[0] for c in self._connections.values())):
            sock.close()

    def hang_up(self) -> None:
        """Close all connections."""
        for sock, _, _ in list(self._connections.values()):
            sock.shutdown(socket.SHUT_RDWR)

    def log(self, topic: str, partition: int) -> Partition:
        return self.logs.setdefault((topic, partition), Partition())

    def leader(self, topic: str, partition: int) -> int:
        return self.leaders.get((topic, partition), self.broker_id)

    # ---- the loop

    def _run(self) -> None:
        while True:
            watched = [self._listener, self._stop_r, *(c[0] for c in self._connections.values())]
            poll, by_fd = select.poll(), {sock.fileno(): sock for sock in watched}  # select() knows 1023 descriptors
            for fd in by_fd:
                poll.register(fd, select.POLLIN)
            for sock in [by_fd[fd] for fd, _ in poll.poll()]:
                if sock is self._stop_r:
                    return
                if sock is self._listener:
                    conn, _ = self._listener.accept()
                    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._connections[conn.fileno()] = conn, NativeCodec(self.broker_id, LIMITS), bytearray()
                else:
                    self._serve(sock)

    def _serve(self, sock: socket.socket) -> None:
        _, codec, pending = self._connections[sock.fileno()]
        try:
            data = sock.recv(1 << 20)
        except ConnectionError:
            data = b""
        pending += data
        view = memoryview(bytes(pending))
        frames, rest = split(view, 0, len(view), FRAME_BYTES_MAX)
        del pending[:rest]
        alive = bool(data)
        for start, stop in frames:
            alive = alive and self._answer(sock, codec, view[start:stop])
        if not alive and sock.fileno() in self._connections:
            del self._connections[sock.fileno()]
            sock.close()

    def _answer(self, sock: socket.socket, codec: NativeCodec, frame: memoryview) -> bool:
        self.requests += 1
        if not self.answering:
            return True
        if self.instead is not None:
            sock.sendall(self.instead)
            return bool(self.instead)
        request = codec.decode(frame)
        reply = b""
        alive = True
        match request:
            case Local():
                reply = request.reply
            case Forwarded():
                reply = self._answer_forwarded(*decode_header(frame)[0])
            case Produce():
                result, alive = self._produce(request, frame)
                if request.acks and alive:
                    reply = codec.encode_produce(request, [result])
            case Fetch():
                pieces = codec.encode_fetch(request, [self._fetch(part) for part in request.parts])
                reply = b"".join(piece for piece in pieces if isinstance(piece, bytes))
            case Offsets():
                reply = codec.encode_offsets(request, [self._offset(part) for part in request.parts])
        try:
            sock.sendall(reply)
        except ConnectionError:
            return False
        return alive

    def _produce(self, request: Produce, frame: memoryview) -> tuple[ProduceResult, bool]:
        topic, partition, start, stop = request.parts[0]
        records = bytes(frame[start:stop])
        fault = next((f for f in [fault(topic, partition, records) for fault in self.faults] if f is not None), None)
        if topic not in self.topics or self.leader(topic, partition) != self.broker_id:
            fault = 6
        if isinstance(fault, int):
            return ProduceResult(fault, -1, -1, 0, ""), True
        if fault == DROP:
            return ProduceResult(0, -1, -1, 0), False
        try:
            base, end = self.log(topic, partition).append(records)
        except ClientFault as error:
            return ProduceResult(error.code, -1, -1, 0, str(error)), True
        if fault == AFTER:
            return ProduceResult(WriterGone.code, -1, -1, 0, ""), True
        return ProduceResult(0, base, end, 0), fault != DROP_AFTER

    def _fetch(self, part: Any) -> FetchResult:
        log = self.log(part.topic, part.partition)
        end = len(log.data)
        if not log.start <= part.offset <= end:
            return FetchResult(1, log.start, end, 0, ())
        first = max((at for at in log.batches if at <= part.offset), default=0)
        stop = next(
            (at for at in [*log.batches, end] if at > first and at - first >= min(part.bytes_max, end - first)), end
        )
        data = bytes(log.data[first:stop]) if part.offset < end else b""
        return FetchResult(0, log.start, end, len(data), (data,))

    def _offset(self, part: Any) -> OffsetsResult:
        log = self.log(part.topic, part.partition)
        if part.offset >= 0:
            return OffsetsResult(0, part.offset, -1, sum(1 for _ in log.values()))
        if part.timestamp == EARLIEST:
            return OffsetsResult(0, log.start, -1, 0)
        if part.timestamp == LATEST:
            return OffsetsResult(0, len(log.data), -1, len(log.values()))
        for at in log.batches:
            records = decode_batch(log.data, at)
            if max(record.timestamp for record in records) >= part.timestamp:
                return OffsetsResult(0, records[0].offset, records[0].timestamp, 0)
        return OffsetsResult(0, -1, -1, 0)

    def _answer_forwarded(self, api: int, correlation: int, *rest: Any) -> bytes:
        if api == METADATA:
            names = sorted(self.topics) if rest[0] is None else rest[0]
            brokers = [[p.broker_id, "127.0.0.1", int(p.address.rpartition(":")[2])] for p in self._brokers]
            topics = [self._topic(name) for name in names]
            body = {"cluster": "test", "broker": self.broker_id, "zookeeper": "", "brokers": brokers, "topics": topics}
            return encode_frame([correlation, 0, body])
        assert api == ADMIN
        verb, arguments = rest
        if verb == "init_producer":
            self.next_producer_id += 1
            return encode_frame([correlation, 0, "", {"producer_id": self.next_producer_id, "epoch": 0}])
        if verb == "ensure_topic":
            self.topics.setdefault(arguments["name"], 1)
            return encode_frame([correlation, 0, "", {}])
        if verb in ("init_transactions", "add_partitions", "end_transaction"):
            return encode_frame([correlation, *self._answer_transactional(verb, arguments)])
        return encode_frame([correlation, 42, f"unknown verb {verb}", None])

    def _answer_transactional(self, verb: str, arguments: dict[str, Any]) -> tuple[int, str, Any]:
        if refusal := self.refusals.get(verb, 0):
            return refusal, f"{verb} is refused", None
        if verb == "init_transactions":
            self.epoch += 1
            return 0, "", {"producer_id": 7, "epoch": self.epoch}
        if arguments["epoch"] != self.epoch:
            return ProducerFenced.code, "of an earlier epoch", None
        if verb == "end_transaction":
            self.ends.append(arguments["committed"])
        return 0, "", None

    def _topic(self, name: str) -> dict[str, Any]:
        if name not in self.topics:
            return {"name": name, "error": UnknownPartition.code, "settings": {}, "partitions": []}
        partitions = [[p, self.leader(name, p)] for p in range(self.topics[name])]
        return {"name": name, "error": 0, "settings": self.settings, "partitions": partitions}
