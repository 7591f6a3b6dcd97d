"""Lets a rig's writer have transactions: the coordinator, and batches of producers."""

from __future__ import annotations

import shutil
from pathlib import Path

from appliance.log.partition_directory import METADATA_NAME
from appliance.names import TopicPartition
from appliance.processes.messages import (
    TO_SUPERVISOR,
    AbortHanging,
    OpenTransaction,
    ToWriter,
    TransactionStep,
    WriteMarker,
)
from appliance.records.batch import TRANSACTIONAL
from appliance.records.encode import encode_values

from .log_batches import labelled
from .server import Server
from .writer_rig import Rig

T0 = TopicPartition("t", 0)


class Coordinator:
    """Gives a rig's writer steps, and makes its turns until it says what has become of them."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._tokens = 0
        self._decided_ms = 1_700_000_000_000

    def open(self, producer_id: int, epoch: int) -> str:
        return self._done(OpenTransaction(T0, self._token(), producer_id, epoch))

    def end(
        self,
        producer_id: int,
        epoch: int,
        committed: bool = True,
        coordinator_epoch: int = 0,
        decided_ms: int | None = None,
        inherited: bool = False,
    ) -> str:
        """``decided_ms``: None for a decision behind all before."""
        if decided_ms is None:
            self._decided_ms = decided_ms = self._decided_ms + 1
        outcome = coordinator_epoch, committed, decided_ms, inherited
        return self._done(WriteMarker(T0, self._token(), producer_id, epoch, *outcome))

    def abort_hanging(self, known: list[int]) -> str:
        return self._done(AbortHanging(T0, self._token(), known))

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _done(self, message: ToWriter) -> str:
        """The name of the error, "" when it is done."""
        self._rig.order(message)
        while True:
            self._rig.writer.turn(0.002)
            for answer, _ in self._rig.supervisor.receive(TO_SUPERVISOR):
                if isinstance(answer, TransactionStep):
                    assert answer.token == self._tokens
                    return answer.error


def transactional(values: list[bytes], producer_id: int = 7, epoch: int = 3, sequence: int = 0) -> bytes:
    raw = encode_values(values, 1_000, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return labelled(raw, attributes=TRANSACTIONAL)


def plain(values: list[bytes], producer_id: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
    return encode_values(values, 1_000, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def produce(rig: Rig, batch: bytes) -> int:
    """The error of a batch, once it is answered; the offset after it goes to ``rig.end``."""
    token = rig.produce(batch)
    while token not in rig.answers():
        rig.writer.turn(0.002)
    return rig.answer(token)[0]


SENT = [b"before", b"aborted", b"between", b"committed", b"open", b"after"]
COMMITTED = [b"before", b"between", b"committed"]


def give(server: Server, topic: str, path: Path) -> Server:
    """A stopped appliance gets a log of these messages in the place of an empty topic, and is started again.

    A writer has written it, for a coordinator; ``path`` is a directory for that.
    """
    with Rig(path, serves=False) as rig:
        coordinator = Coordinator(rig)
        for value in SENT:
            if value in (b"aborted", b"committed", b"open"):
                sequence = (b"aborted", b"committed", b"open").index(value)
                assert coordinator.open(7, 3) == ""
                assert produce(rig, transactional([value], sequence=sequence)) == 0
                assert value == b"open" or coordinator.end(7, 3, committed=value == b"committed") == ""
            else:
                assert produce(rig, plain([value])) == 0
    directory = server.data_dir / f"{topic}-0"
    for old in directory.iterdir():
        if old.name != METADATA_NAME:
            old.unlink()
    for new in (path / "t-0").iterdir():
        if new.name != METADATA_NAME:
            shutil.copy(new, directory)
    return server.start()
