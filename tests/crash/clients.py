"""Clients under load that record what they do and see, as operations of a history.

``python -m tests.crash.clients FILE SPEC...`` runs them in threads of one process until SIGTERM, and appends to FILE.
A SPEC is a :class:`Spec` as JSON; ``kind`` is one of

* ``kafka-producer``, ``native-producer``: librdkafka and the native client, with any acks, idempotent or not;
* ``raw-producer``: requests with acks=0 to all logs, pipelined on one native connection, and some with acks=1 between;
* ``http-lines``, ``syslog-lines``, ``relp``, ``log-files``: who gives logs to inputs (``input_senders.py``);
* ``kafka-reader``, ``native-reader``: consumers that are assigned all logs, from their beginnings;
* ``kafka-member``, ``consumer-member``, ``native-member``: members of a group, of one of Kafka's protocols or native,
  that commit what they have recorded, and nothing before it;
* ``watch``: asks again and again what the groups have committed.

A value is recorded before it is sent, a record before it is committed: whoever reads the file of a process that was
killed knows of everything that it may have done.  Values end in blanks, so that they have sizes; readers take them off.
A log of incarnation -1 in a SPEC is one that may be deleted and made again: what is read belongs where the values say.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec

from .client import Client, Guarded, Recorder, Spec
from .consumers import ConsumerMember, KafkaMember, KafkaReader, NativeMember, NativeReader, Watch
from .input_senders import HttpLines, LogFiles, Relp, SyslogLines
from .producers import KafkaProducer, NativeProducer, RawProducer

KINDS: Final[dict[str, type[Client]]] = {
    "kafka-producer": KafkaProducer,
    "native-producer": NativeProducer,
    "raw-producer": RawProducer,
    "http-lines": HttpLines,
    "syslog-lines": SyslogLines,
    "relp": Relp,
    "log-files": LogFiles,
    "kafka-reader": KafkaReader,
    "native-reader": NativeReader,
    "kafka-member": KafkaMember,
    "consumer-member": ConsumerMember,
    "native-member": NativeMember,
    "watch": Watch,
}


def main(path: str, *specs: str) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    recorder = Recorder(Path(path))
    given = [msgspec.json.decode(text, type=Spec) for text in specs]
    threads = [Guarded(KINDS[spec.kind](spec, recorder, stopping).run) for spec in given]
    for thread in threads:
        thread.start()
    while not stopping.wait(0.2) and all(thread.is_alive() for thread in threads):
        pass
    stopping.set()
    for thread in threads:
        thread.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
