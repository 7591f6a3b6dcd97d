"""The writer, as the transaction coordinator speaks to it through the supervisor."""

from __future__ import annotations

from pathlib import Path

from appliance.names import TopicPartition
from appliance.processes.messages import (
    TO_SUPERVISOR,
    OpenTransaction,
    ToWriter,
    TransactionsSent,
    TransactionStep,
    WriteMarker,
)

from ...support.writer_rig import Rig

T0 = TopicPartition("t", 0)


class Coordinator:
    """Gives a rig's writer steps, and makes its turns until it says what has become of them."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._tokens = 0

    def open(self, producer_id: int, epoch: int) -> str:
        return self._done(OpenTransaction(T0, self._token(), producer_id, epoch))

    def end(self, producer_id: int, epoch: int, committed: bool = True, coordinator_epoch: int = 0) -> str:
        return self._done(WriteMarker(T0, self._token(), producer_id, epoch, coordinator_epoch, committed))

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _done(self, message: ToWriter) -> str:
        """The name of the error, "" when it is done."""
        self._rig.order(message)
        while True:
            self._rig.writer.turn(1)
            for answer, _ in self._rig.supervisor.receive(TO_SUPERVISOR):
                if isinstance(answer, TransactionStep):
                    assert answer.token == self._tokens
                    return answer.error


def test_steps_are_done_again_and_those_of_an_older_incarnation_are_refused(tmp_path: Path) -> None:
    with Rig(tmp_path, serves=False) as rig:
        coordinator = Coordinator(rig)
        rig.order(TransactionsSent(T0, 1))
        assert [coordinator.open(7, 3), coordinator.open(7, 3), coordinator.open(7, 2)] == [
            "",
            "",
            "StaleProducerEpoch",
        ]
        assert [coordinator.end(7, 2), coordinator.end(7, 3), coordinator.end(7, 3)] == ["StaleProducerEpoch", "", ""]
