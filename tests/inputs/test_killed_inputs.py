"""One account of all kinds of inputs: what senders were told, what topics have, and what the ledger says is the same.

Goal: lines and bytes are equal by source, whatever is killed; what is there twice was sent twice, and is counted twice.
Method: a sender of each kind (:mod:`.counted_senders`), with a source of its own, sends odd lines to one appliance,
while the processes of its inputs, its writers and all of it are killed with SIGKILL, at moments of a seed: when so many
texts more were sent.  Then each sender sends some more, which nothing disturbs; the appliance is stopped in order, and
everything is read.

=====================  ==============================================  =================================================
kind                   each message that was acknowledged              others
=====================  ==============================================  =================================================
files, journal         is there once                                   there are none
RELP, HTTP             is there, at most as often as it was sent       likewise: those without an answer are sent again
UDP, TCP, Unix socket  without answers: none is                        at most once; those that nothing disturbs are
                                                                       there once, or the ledger names the loss (UDP)
=====================  ==============================================  =================================================
"""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from appliance.bench.local_appliance import LocalAppliance
from appliance.client import Consumer
from appliance.client.decoder import Message
from appliance.errors import UnknownPartition
from appliance.inputs.ledger import LedgerRow, PlacedBlock, read_rows
from appliance.inputs.syslog_datagrams import LOCAL
from appliance.wire.requests import EARLIEST, LATEST

from ..support.journald import journald
from ..support.long import LONG
from ..support.server import Server, wait_for
from .counted_senders import LISTENING, MESSAGE_BYTES_MAX, CountedSender, Local, LogFiles, OwnJournal, Reached
from .http_box import Box

TABLES: Final = f"""
[inputs.disk]
type = "files"
include = ["{{place}}/logs/*.log"]
topic = "disk"
scan_ms = 200
rotate_ms = 200
message_bytes_max = {MESSAGE_BYTES_MAX}

[inputs.net]
type = "syslog"
listen = ["udp://127.0.0.1:0", "tcp://127.0.0.1:0", "relp://127.0.0.1:0", "unix://{{place}}/log"]
topic = "net"
message_bytes_max = {MESSAGE_BYTES_MAX}

[inputs.web]
type = "http"
listen = ["127.0.0.1:0"]
topic = "web"
message_bytes_max = {MESSAGE_BYTES_MAX}
whole_journals = false
"""
JOURNAL_TABLE: Final = """
[inputs.host]
type = "journal"
directory = "{directory}"
topic = "host"
"""
WRITER, BOTH, ALL = "a writer", "an input and a writer", "the appliance"
TEXTS_BETWEEN: Final = 60
SEND_S_MAX: Final = 120
REACHED_S_MAX: Final = 120
LAST_TEXTS: Final = 20
LEDGER_S_MAX: Final = 130
"""What cannot be published while the appliance stops is published with the next minute."""


class Struck(Box):
    """The appliance, and what strikes it."""

    def __init__(self, server: Server, inputs: list[str]) -> None:
        super().__init__(server)
        self.inputs = inputs
        self._read: dict[str, list[Message]] = defaultdict(list)
        self.reached = Reached(lambda name: server.state.get("inputs", {}).get(name, {}).get("addresses", []))

    def messages(self, topic: str) -> list[Message]:
        """All messages of a topic now, of which there may be none yet; what was read before is not read again."""
        read = self._read[topic]
        with suppress(UnknownPartition), Consumer(self.server.native) as consumer:
            consumer.assign({(topic, 0): read[-1].offset + 1 if read else 0})
            end = consumer.offsets_at(LATEST)[topic, 0]
            while consumer.position(topic, 0) < end:
                read += consumer.poll(timeout=10, messages_max=10_000)
        return read

    def strike(self, what: str, random_: random.Random) -> None:
        if what == ALL:
            self.reached.is_up.clear()
            LocalAppliance.kill(self.server)
            self.server.start()
            self.reached.is_up.set()
            return
        pids = [self.pid(random_.choice(self.inputs) if what == BOTH else what)] if what != WRITER else []
        if what in (BOTH, WRITER):
            pids.append(random_.choice(wait_for(lambda: self.server.pids("writer"), "a writer")))
        random_.shuffle(pids)
        for pid in pids:
            with suppress(ProcessLookupError):  # it has ended since
                self.server.kill(pid)

    def by_source(self, topic: str, spans: dict[str, list[PlacedBlock]]) -> dict[str, list[Message]]:
        """The messages of a topic by the source whose spans have them: each of them is in one."""
        messages = {message.offset: message for message in self.messages(topic)}
        order = sorted(messages)
        places = {offset: place for place, offset in enumerate(order)}
        owners: dict[int, str] = {}
        for source, blocks in spans.items():
            for block in blocks:
                if block.topic == topic:
                    offsets = order[places[block.offset] : places[block.offset] + block.messages]
                    assert len(offsets) == block.messages
                    assert not owners.keys() & set(offsets), "a message is in two spans"
                    owners |= dict.fromkeys(offsets, source)
        nowhere = [messages[offset] for offset in order if offset not in owners]
        assert nowhere == [], f"{len(nowhere)} of {len(order)} messages of {topic} are not in the ledger"
        found: dict[str, list[Message]] = defaultdict(list)
        for offset in order:
            found[owners[offset]].append(messages[offset])
        return found


class Accounts(NamedTuple):
    """What the ledger says by source."""

    rows: list[LedgerRow]
    spans: dict[str, list[PlacedBlock]]

    @classmethod
    def read(cls, server: Server) -> Accounts:
        spans: dict[str, list[PlacedBlock]] = defaultdict(list)
        rows: list[LedgerRow] = []
        with suppress(UnknownPartition), Consumer(server.native) as consumer:
            rows = list(read_rows(consumer, "ledger", EARLIEST))
        for row in rows:
            spans[row.source] += row.spans
        return cls(rows, spans)

    @property
    def messages(self) -> int:
        return sum(row.messages for row in self.rows)


@contextmanager
def struck(place: Path, seed: int) -> Iterator[tuple[Struck, list[CountedSender]]]:
    """An appliance with an input of each kind, and a sender for all that they take; no journal where none can be."""
    (place / "logs").mkdir()
    tables, inputs = TABLES.format(place=place), ["disk", "net", "web"]
    with ExitStack() as stack:
        journal = None
        with suppress(pytest.skip.Exception):
            journal = stack.enter_context(journald(place / "systemd"))
            tables += JOURNAL_TABLE.format(directory=journal.directory)
            inputs.append("host")
        (place / "appliance.toml").write_text(tables)
        box = Struck(stack.enter_context(Server(place / "data", place / "appliance.toml")), inputs)
        box.reached.is_up.set()
        stack.callback(box.reached.is_over.set)
        senders: list[CountedSender] = [LogFiles(place / "logs" / "app.log", box.reached, seed)]
        if journal is not None:
            senders.append(OwnJournal(journal, box.reached, seed))
        for number, kind in enumerate(LISTENING, 2):
            senders.append(kind(LOCAL if kind is Local else f"127.0.0.{number}", box.reached, seed))
            stack.callback(senders[-1].close)
        yield box, senders


def texts_in(box: Struck, sender: CountedSender) -> Counter[bytes]:
    """What the topic of a sender has now, as far as it may be from it."""
    return Counter(sender.text_of(message) for message in box.messages(sender.topic) if sender.may_own(message))


def strike_all(box: Struck, senders: list[CountedSender], strikes: list[str], random_: random.Random) -> None:
    """Let all send while what is to be struck is, one after the other."""
    ended = threading.Event()
    with ThreadPoolExecutor(len(senders)) as pool:
        running: list[Future[None]] = [pool.submit(sender.run, ended) for sender in senders]
        try:
            for what in strikes:
                wait_for_texts(senders, running, random_.choice([0, random_.randrange(TEXTS_BETWEEN)]))
                box.strike(what, random_)
        except BaseException:
            box.reached.is_over.set()
            raise
        finally:
            ended.set()
        for future in running:
            future.result()


def wait_for_texts(senders: list[CountedSender], running: list[Future[None]], count: int) -> None:
    """Until each has sent so many more, or one of them has failed."""
    until = [sender.sent + count for sender in senders]

    def is_reached() -> bool:
        return all(sender.sent >= wanted for sender, wanted in zip(senders, until, strict=True)) or any(
            future.done() for future in running
        )

    wait_for(is_reached, "more to be sent", SEND_S_MAX)


def reach_all(box: Struck, senders: list[CountedSender]) -> None:
    """Wait until what is sent comes: nothing that was sent before is in the buffer of a socket then."""
    for sender in senders:
        sender.disconnect()
        probes: set[bytes] = set()

        def is_reached(sender: CountedSender = sender, probes: set[bytes] = probes) -> bool:
            if sender.is_answered and probes:
                return not probes - texts_in(box, sender).keys()
            (probe,) = sender.fresh(1)
            sender.send([probe])
            probes.update(sender.messages_of(probe))
            return not probes.isdisjoint(texts_in(box, sender))

        wait_for(is_reached, f"{sender.name} to reach its input", REACHED_S_MAX)


def send_last(box: Struck, senders: list[CountedSender]) -> None:
    """Send what nothing disturbs, and wait until it is there, and all that was acknowledged."""
    reach_all(box, senders)
    wanted: dict[CountedSender, set[bytes]] = {}
    for sender in senders:
        texts = sender.fresh(LAST_TEXTS)
        sender.send(texts)
        wanted[sender] = {message for text in texts for message in sender.messages_of(text)} | set(sender.acknowledged)

    def missing(sender: CountedSender) -> set[bytes]:
        return wanted[sender] - texts_in(box, sender).keys()

    for sender in senders:
        try:
            wait_for(lambda sender=sender: not missing(sender), "all texts", REACHED_S_MAX)
        except AssertionError:
            raise AssertionError(f"{sender.name}: {sorted(missing(sender))[:5]} and others are not there") from None


def check(box: Struck, senders: list[CountedSender]) -> list[str]:
    """What is not as the module's docstring says."""
    topics = {sender.topic for sender in senders}

    def is_told() -> bool:
        return Accounts.read(box.server).messages == sum(len(box.messages(topic)) for topic in topics)

    with suppress(AssertionError):  # what is wrong is told below
        wait_for(is_told, "the ledger to have all", LEDGER_S_MAX)
    accounts = Accounts.read(box.server)
    by_topic = {topic: box.by_source(topic, accounts.spans) for topic in topics}
    faults = [
        f"{row.source}: {row.refused} {row.gaps}"
        for row in accounts.rows
        if row.refused or (row.gaps and not row.source.startswith("udp:"))
    ]
    for sender in senders:
        sources = by_topic[sender.topic]
        own = sources[sender.source] if sender.has_source else [one for some in sources.values() for one in some]
        rows = [row for row in accounts.rows if any(span.topic == sender.topic for span in row.spans)]
        if sender.has_source:
            rows = [row for row in rows if row.source == sender.source]
        faults += [f"{sender.name}: {fault}" for fault in faults_of(sender, own, rows)]
    return faults


def faults_of(sender: CountedSender, messages: list[Message], rows: list[LedgerRow]) -> list[str]:
    """``messages`` and ``rows``: those of its source."""
    found = Counter(map(sender.text_of, messages))
    attempts = sender.attempts
    told = sum(row.lines for row in rows), sum(row.bytes for row in rows)
    stored = sender.stored(messages)
    faults = {
        "told and stored": (told, stored) if told != stored else None,
        "not there, and acknowledged": set(sender.acknowledged) - found.keys(),
        "not sent": found.keys() - attempts.keys() if sender.is_alone else None,
        "there too often": {text: count for text, count in found.items() if count > attempts[text] > 0},
        "of fewer bytes or lines than acknowledged": stored if stored < sender.promised() else None,
    }
    return [f"{fault}: {what}"[:2_000] for fault, what in faults.items() if what]


def strikes_of(inputs: list[str], random_: random.Random, rounds: int) -> list[str]:
    """Each input, and each other kind, in each round."""
    strikes: list[str] = []
    for _ in range(rounds):
        strikes += random_.sample(more := [*inputs, WRITER, BOTH, ALL], len(more))
    return strikes


ROUNDS: Final = 12 if LONG else 1
SEEDS: Final = range(5) if LONG else (1,)


@pytest.mark.parametrize("seed", SEEDS)
def test_ledger_topics_and_senders_agree_on_lines_and_bytes_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    with struck(tmp_path, seed) as (box, senders):
        reach_all(box, senders)
        strike_all(box, senders, strikes_of(box.inputs, random_, ROUNDS), random_)
        send_last(box, senders)
        box.server.stop()
        box.server.start()
        assert check(box, senders) == []
