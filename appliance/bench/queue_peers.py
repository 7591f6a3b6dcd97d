"""Runs brokers with protocols of their own, each with its usual client for Python: what people would use instead.

All come from Debian: ``apt-get install rabbitmq-server activemq nats-server redis-server`` (RUNLEVEL=1 before it starts
no daemon).  Each runs with its defaults and keeps messages on the disk, flushed as its defaults say::

    name                published                                 read
    RabbitMQ, classic   persistent, confirmed by the broker       1,000 unacknowledged at most
    RabbitMQ, stream    as above                                  from the first offset, as above
    ActiveMQ            persistent, a receipt for each 500        acknowledged by hundreds, 1,000 prefetched
    NATS JetStream      acknowledged                              pulls of 1,000
    Redis Streams       pipelines of 50, append-only file         XREAD, 1,000 at a time

Producers run in their asynchronous modes, with at most 500 messages that are not acknowledged yet.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import shutil
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .. import extras
from . import stamps
from .brokers import Daemon, free_port, greets
from .compiling import Missing
from .kafka_clients import Run

FETCHED_AT_ONCE = 1000
PIPELINE = 50
WINDOW = 500
PATIENCE_S = 60


def find_program(command: str, package: str) -> str:
    """
    Raises:
        Missing: there is no such command.
    """
    program = shutil.which(command, path="/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")
    if program is None:
        raise Missing(f"{command}: RUNLEVEL=1 apt-get install {package}")
    return program


def import_client(module: str) -> None:
    """
    Raises:
        Missing: the client is not installed.
    """
    try:
        importlib.import_module(module)
    except ImportError:
        raise Missing(f"the client {module}: {extras.install('bench')}") from None


class QueuePeer(Daemon, ABC):
    """A broker and its client.  Topics are made by :meth:`topic`."""

    name: str
    data_dir: Path
    _number = 0

    def topic(self) -> str:
        self._number += 1
        name = f"bench-{self._number}"
        self._make(name)
        return name

    def produce(self, topic: str, count: int, size: int) -> Run:
        """Publish ``count`` messages and wait for all acknowledgements."""
        values = (stamps.message(number, size) for number in range(count))
        cpu, start = time.process_time(), time.perf_counter()
        self._publish(topic, values)
        seconds = time.perf_counter() - start
        return Run(count, seconds, time.process_time() - cpu, stamps.check(range(count)))

    def consume(self, topic: str, count: int, size: int) -> Run:
        """Read ``count`` messages from the beginning."""
        cpu, start = time.process_time(), time.perf_counter()
        values = self._read(topic, count)
        seconds = time.perf_counter() - start
        used = time.process_time() - cpu
        check = stamps.check(map(stamps.stamp_of, values))
        if len(values) != count or any(len(value) != size for value in values) or check != stamps.check(range(count)):
            raise stamps.Wrong(f"{self.name}: {len(values)} of {count} messages, or others than those that were sent")
        return Run(count, seconds, used, check)

    @abstractmethod
    def _make(self, topic: str) -> None: ...
    @abstractmethod
    def _publish(self, topic: str, values: Iterator[bytes]) -> None: ...
    @abstractmethod
    def _read(self, topic: str, count: int) -> list[bytes]: ...


class RabbitMq(QueuePeer):
    """Classic queues."""

    name = "RabbitMQ, classic"
    arguments: Mapping[str, str] = MappingProxyType({})

    def __init__(self, directory: Path) -> None:
        find_program("rabbitmq-server", "rabbitmq-server")  # where the package is; its own script would change the user
        import_client("pika")
        directory.mkdir(parents=True)
        self.port, self._mapper = free_port(), free_port()
        self.data_dir = directory / "mnesia"
        environment = {
            "HOME": str(directory), "ERL_EPMD_PORT": str(self._mapper), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost", "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port), "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.data_dir), "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"), "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_PID_FILE": str(directory / "pid"), "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
        }  # fmt: skip
        server = ["/usr/lib/rabbitmq/bin/rabbitmq-server"]
        super().__init__(server, directory, lambda: greets(f"127.0.0.1:{self.port}", b"AMQP\0\0\x09\x01"), environment)

    def stop(self) -> None:
        super().stop()
        # Erlang's port mapper is a daemon that outlives the node that started it.
        command = ["epmd", "-port", str(self._mapper), "-kill"]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _channel(self) -> Any:
        import pika

        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=0)).channel()

    def _make(self, topic: str) -> None:
        channel = self._channel()
        channel.queue_declare(topic, durable=True, arguments=dict(self.arguments))
        channel.connection.close()

    def _publish(self, topic: str, values: Iterator[bytes]) -> None:
        import pika

        persistent = pika.BasicProperties(delivery_mode=2)
        parameters = pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=0)
        sent = 0

        def opened(connection: Any) -> None:
            connection.channel(on_open_callback=lambda channel: channel.confirm_delivery(
                lambda frame: confirmed(channel, frame.method), lambda _: send(channel)))  # fmt: skip

        def confirmed(channel: Any, answer: Any) -> None:
            assert isinstance(answer, pika.spec.Basic.Ack), "a message was refused"
            if answer.delivery_tag == sent:
                send(channel)

        def send(channel: Any) -> None:
            nonlocal sent
            before = sent
            for _, value in zip(range(WINDOW), values, strict=False):
                channel.basic_publish("", topic, value, persistent)
                sent += 1
            if sent == before:  # nothing is left
                channel.connection.close()

        def closed(connection: Any, _: Any) -> None:
            connection.ioloop.stop()

        pika.SelectConnection(parameters, on_open_callback=opened, on_close_callback=closed).ioloop.start()

    def _read(self, topic: str, count: int) -> list[bytes]:
        channel, bodies = self._channel(), []
        channel.basic_qos(prefetch_count=FETCHED_AT_ONCE)
        offset = {"x-stream-offset": "first"} if self.arguments else None
        for method, _, body in channel.consume(topic, arguments=offset, inactivity_timeout=PATIENCE_S):
            if method is None:
                break
            bodies.append(body)
            if len(bodies) % (FETCHED_AT_ONCE // 2) == 0 or len(bodies) == count:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if len(bodies) == count:
                break
        channel.connection.close()
        return bodies


class RabbitMqStream(RabbitMq):
    """Stream queues, through AMQP."""

    name = "RabbitMQ, stream"
    arguments = MappingProxyType({"x-queue-type": "stream"})


class ActiveMq(QueuePeer):
    """KahaDB, with its default of a flush for each message that a producer waits for."""

    name = "ActiveMQ"

    def __init__(self, directory: Path) -> None:
        import_client("stomp")
        home = Path("/usr/share/activemq")
        if not (home / "bin/activemq.jar").exists():
            raise Missing("ActiveMQ: RUNLEVEL=1 apt-get install activemq")
        directory.mkdir(parents=True)
        self.port, self.data_dir = free_port(), directory / "data"
        paths = {"home": home, "base": directory, "conf": directory / "conf", "data": self.data_dir}
        properties = [f"-Dactivemq.{name}={path}" for name, path in paths.items()]
        stored = f"persistent=true&dataDirectory={self.data_dir}"
        broker = f"broker:(stomp://127.0.0.1:{self.port})?useJmx=false&{stored}"
        java = find_program("java", "default-jre-headless")
        command = [java, *properties, "-jar", str(home / "bin/activemq.jar"), "start"]
        greeting = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
        super().__init__([*command, broker], directory, lambda: greets(f"127.0.0.1:{self.port}", greeting))

    def _connection(self, listener: Any) -> Any:
        import stomp

        connection = stomp.Connection12([("127.0.0.1", self.port)], auto_decode=False)
        connection.set_listener("bench", listener)
        connection.connect(wait=True)
        return connection

    def _make(self, topic: str) -> None:
        """Queues are made by their first use."""

    def _publish(self, topic: str, values: Iterator[bytes]) -> None:
        receipts = Receipts()
        connection = self._connection(receipts)
        while window := list(itertools.islice(values, WINDOW)):
            for number, value in enumerate(window, 1):  # the broker handles the messages of a connection in order
                asked = {"receipt": topic} if number == len(window) else {}
                connection.send(f"/queue/{topic}", value, headers={"persistent": "true"} | asked)
            receipts.wait()
        connection.disconnect()

    def _read(self, topic: str, count: int) -> list[bytes]:
        bodies = Bodies(count)
        connection = self._connection(bodies)
        bodies.acknowledge = lambda headers: connection.ack(headers["ack"])
        prefetch = {"activemq.prefetchSize": str(FETCHED_AT_ONCE)}
        connection.subscribe(f"/queue/{topic}", "1", ack="client", headers=prefetch)
        bodies.done.wait(PATIENCE_S * 2)
        connection.disconnect()
        return bodies.received


class NatsJetStream(QueuePeer):
    """A file store, flushed every 2 minutes as its default says."""

    name = "NATS JetStream"

    def __init__(self, directory: Path) -> None:
        import_client("nats")
        server = find_program("nats-server", "nats-server")
        self.port, self.data_dir = free_port(), directory / "data"
        command = [server, "-js", "-sd", str(self.data_dir), "-a", "127.0.0.1", "-p", str(self.port)]
        super().__init__(command, directory, lambda: greets(f"127.0.0.1:{self.port}"))

    def _make(self, topic: str) -> None:
        async def make() -> None:
            client = await self._connected()
            await client.jetstream().add_stream(name=topic, subjects=[topic])
            await client.close()

        asyncio.run(make())

    async def _connected(self) -> Any:
        import nats

        return await nats.connect(f"nats://127.0.0.1:{self.port}")

    def _publish(self, topic: str, values: Iterator[bytes]) -> None:
        async def publish() -> None:
            client = await self._connected()
            stream = client.jetstream(publish_async_max_pending=WINDOW)
            waiting: list[Any] = []
            for value in values:
                waiting.append(await stream.publish_async(topic, value))
            await asyncio.gather(*waiting)
            await client.close()

        asyncio.run(publish())

    def _read(self, topic: str, count: int) -> list[bytes]:
        async def read() -> list[bytes]:
            client = await self._connected()
            subscription = await client.jetstream().pull_subscribe(topic, "reader")
            bodies: list[bytes] = []
            while len(bodies) < count:
                messages = await subscription.fetch(min(FETCHED_AT_ONCE, count - len(bodies)), timeout=PATIENCE_S)
                bodies += [message.data for message in messages]
                for message in messages:
                    await message.ack()
            await client.flush()
            await client.close()
            return bodies

        return asyncio.run(read())


class RedisStreams(QueuePeer):
    """Streams in memory, with the append-only file."""

    name = "Redis Streams"

    def __init__(self, directory: Path) -> None:
        import_client("redis")
        server = find_program("redis-server", "redis-server")
        self.port, self.data_dir = free_port(), directory
        command = [server, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory)]
        ready = lambda: greets(f"127.0.0.1:{self.port}", b"PING\r\n")  # noqa: E731
        super().__init__([*command, "--appendonly", "yes", "--save", ""], directory, ready)

    def _client(self) -> Any:
        import redis

        return redis.Redis("127.0.0.1", self.port)

    def _make(self, topic: str) -> None:
        """Streams are made by their first use."""

    def _publish(self, topic: str, values: Iterator[bytes]) -> None:
        with self._client() as client:
            while window := list(itertools.islice(values, PIPELINE)):
                pipeline = client.pipeline(transaction=False)
                for value in window:
                    pipeline.xadd(topic, {b"v": value})
                pipeline.execute()

    def _read(self, topic: str, count: int) -> list[bytes]:
        with self._client() as client:
            last = b"0"
            bodies: list[bytes] = []
            while len(bodies) < count:
                (_, entries), *_ = client.xread({topic: last}, FETCHED_AT_ONCE)
                bodies += [fields[b"v"] for _, fields in entries]
                last = entries[-1][0]
            return bodies


class Receipts:
    """A listener of stomp.py that waits for receipts."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)

    def on_receipt(self, frame: Any) -> None:
        self._arrived.release()

    def wait(self) -> None:
        assert self._arrived.acquire(timeout=PATIENCE_S), "no receipt"


class Bodies:
    """A listener of stomp.py that keeps ``count`` bodies and acknowledges each hundred together."""

    def __init__(self, count: int) -> None:
        self._count, self.done = count, threading.Event()
        self.received: list[bytes] = []
        self.acknowledge: Any = None

    def on_message(self, frame: Any) -> None:
        self.received.append(frame.body)
        if len(self.received) % 100 == 0 or len(self.received) == self._count:
            self.acknowledge(frame.headers)
        if len(self.received) == self._count:
            self.done.set()


QUEUE_PEERS: dict[str, type[QueuePeer]] = {
    "rabbitmq": RabbitMq,
    "rabbitmq-stream": RabbitMqStream,
    "activemq": ActiveMq,
    "nats": NatsJetStream,
    "redis": RedisStreams,
}
