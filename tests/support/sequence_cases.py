"""What a partition answers to the numbers of an idempotent producer: the rules of Kafka 4, case by case.

A step is a batch (epoch, first sequence, records) and what it is answered: APPENDED, ("repeat", index of the step that
wrote it), or an error.  MADE_AGAIN: the topic is deleted and created.  EMPTIED: all its records are deleted.
"""

from __future__ import annotations

from typing import Any, Final

from appliance.errors import DuplicateSequence, OutOfOrderSequence, StaleProducerEpoch

APPENDED: Final = "appended"
MADE_AGAIN: Final = "made again"
EMPTIED: Final = "emptied"
LAST: Final = 2**31 - 1
"""The highest sequence; 0 follows."""
GAP, STALE, KNOWN = OutOfOrderSequence, StaleProducerEpoch, DuplicateSequence
"""KNOWN: older than the batches that are kept.  Kafka's clients get what Kafka answers: GAP."""

CASES: Final[dict[str, list[Any]]] = {
    "the next one": [((0, 0, 3), APPENDED), ((0, 3, 1), APPENDED)],
    "a repeat": [((0, 0, 3), APPENDED), ((0, 0, 3), ("repeat", 0)), ((0, 3, 1), APPENDED), ((0, 0, 3), ("repeat", 0))],
    "the last five are kept": [
        *[((0, number, 1), APPENDED) for number in range(7)],
        ((0, 6, 1), ("repeat", 6)),
        ((0, 2, 1), ("repeat", 2)),
        ((0, 1, 1), KNOWN),
        ((0, 0, 2), KNOWN),
        ((0, 7, 1), APPENDED),
    ],
    "a gap": [((0, 0, 1), APPENDED), ((0, 2, 1), GAP), ((0, 1, 1), APPENDED), ((0, 2, 1), APPENDED)],
    "unknown, anywhere": [((0, 50, 2), APPENDED), ((0, 50, 2), ("repeat", 0)), ((0, 52, 1), APPENDED)],
    "unknown, then earlier than its first": [((0, 50, 2), APPENDED), ((0, 49, 1), GAP), ((0, 40, 10), GAP)],
    "unknown, in any epoch": [((3, 50, 2), APPENDED), ((3, 52, 1), APPENDED)],
    "a new epoch": [((1, 7, 1), APPENDED), ((2, 0, 1), APPENDED), ((2, 1, 1), APPENDED), ((5, 0, 1), APPENDED)],
    "a new epoch that does not start at 0": [((1, 0, 1), APPENDED), ((2, 1, 1), GAP), ((2, 0, 1), APPENDED)],
    "an old epoch": [((1, 0, 1), APPENDED), ((2, 0, 1), APPENDED), ((1, 1, 1), STALE), ((1, 0, 1), STALE)],
    "the last epoch": [((32767, 0, 1), APPENDED), ((0, 0, 1), STALE), ((32767, 1, 1), APPENDED)],
    "wrapping in a batch": [
        ((0, LAST - 1, 3), APPENDED),
        ((0, 1, 1), APPENDED),
        ((0, LAST - 1, 3), ("repeat", 0)),
        ((0, 2, 1), APPENDED),
    ],
    "wrapping between batches": [((0, LAST, 1), APPENDED), ((0, 0, 1), APPENDED), ((0, LAST, 1), ("repeat", 0))],
    "longer, shorter, joined": [
        ((0, 0, 10), APPENDED),
        ((0, 10, 5), APPENDED),
        ((0, 10, 6), GAP),
        ((0, 10, 4), KNOWN),
        ((0, 0, 15), KNOWN),
        ((0, 15, 1), APPENDED),
    ],
    "a topic made again": [
        ((0, 0, 1), APPENDED),
        ((0, 1, 1), APPENDED),
        MADE_AGAIN,
        ((0, 2, 1), APPENDED),
        ((0, 1, 1), GAP),
        ((0, 4, 1), GAP),
        ((0, 3, 1), APPENDED),
    ],
    "records deleted": [
        ((0, 0, 1), APPENDED),
        ((0, 1, 1), APPENDED),
        EMPTIED,
        ((0, 3, 1), GAP),
        ((0, 1, 1), ("repeat", 1)),
        ((0, 2, 1), APPENDED),
    ],
}
