"""The messages between the processes: one tagged struct each, and for each receiver the union of all that it takes.

A message is a msgpack array: the name of its class, then its fields in order.  S is the supervisor, W a network worker,
R the writer of a partition, N the nursery, C the coordinator, I the inspector, *side* each of console, metrics and
alerts; ``+fd``: a descriptor travels with it.  ``A → B → C``: A makes it, B passes it on.  A test compares the tables
with the code (``tests/rules/test_messages_table.py``).

Over control channels (:mod:`.control`)::

    message              from → to        meaning
    PartitionTable       S → W, C         its segment table, in which it can be read from now on
    PartitionDropped     S → W, C, I      it is deleted, or moved away
    RangesDamaged        S → W            all ranges of it that are not served; none: all of it is served
    FilesChanged         S → W, C         a file of it was replaced: open it anew
    FilesChanged         I, scrubber → S  ... tell W and C
    WriterChannel +fd    S → W            the channel to its writer
    WriterRetires        S → W            send its writer what waits, and nothing after that
    CoordinatorStreamOpened +fd  S → W    the stream to the coordinator
    TlsChanged           S → W            load the files of the certificate again
    LogLevel             S → W            log from this level on
    Stop                 S → all but R    end in order; a writer is told to retire
    Reload               S → R, N, C, scrubber, side  the configuration is another now
    WriterNeeded         W → S            start its writer: append requests wait
    WorkerStats          W → S            numbers for ``status``
    ClientsCounted       W → S            who is connected to it, for ``clients``
    LimitsReached        W → S            all limits that it has reached now
    RefusalsReport       W, C, console → S  clients refused since its last message, by reason
    DamageSuspected      W, scrubber, compactor → S  offsets that could not be read, or have a wrong checksum
    Unreceivable         any → S          no descriptor, or no mapping, was left for this message: send it again
    Lacking              R, N, opener → S  the machine lacks something to open a log with

    WorkerChannel +fd    S → R            the channel to a worker, and the name of its arena
    ChangeSettings       C → S            the settings of a topic
    ChangeSettings       S → R            ... of this partition
    DeleteBefore         C → S → R        move the log start offset, and remove the segments before it
    CompactLog           C → S            compact this partition's log, unless one is being compacted
    Roll                 C → S → R        seal the active segment, so that it can be removed
    StoreProducers       C → S → R        store what is known of the producers
    OpenTransaction      C → S → R        the producer, with this epoch, is in a transaction from now on
    WriteMarker          C → S → R        end its transaction: append the marker, if anything of it is in the log
    AbortHanging         C → S → R        end what is open in the log, and no coordinator knows of
    TransactionsSent     C → S → R        the writer has been sent an OpenTransaction for all that is open there
    TransactionStep      R → S → C        OpenTransaction, WriteMarker or AbortHanging is done, and flushed
    TransactionStep      S → C            ... or cannot be: there is no writer for it
    WriterStarted        S → C            a writer has opened the log: see below
    Retire               S → R            answer what has come, close the log, and end
    Forked               R, N → S         the writer's process
    WriterOpened         R → S            its log is open: it serves
    Idle                 R → S            nobody has produced for ``writer.idle_ms``
    LogClosed            R → S            the log is closed; the process ends
    Offline              R → S            the log cannot be trusted, or the disk fails; the process ends
    LogFull              R → S            the disk has no room for the log; "": it has again

    ForkWriter +fd       S → N            fork a writer; the descriptor is its end of the channel to S
    WriterEnded          N → S            it was killed, or ended by a bug: its exit status
    Reap                 S → N            this writer's channel has reported a hang-up: it has ended, or is about to
    PartitionsOpened     opener → S       what has become of partitions
    PartitionsRemoved    remover → S      likewise
    LogRepaired          repairer → S     what it has done to a log
    ScrubSoon            S → scrubber     read this partition first: a part of it is damaged
    SegmentCompacted     compactor → S    a segment is written anew: let its writer put it in place
    SwapSegment          S → R            put it in place
    SegmentSwapped       R → S → compactor  it is, or the segment has gone meanwhile
    LogCompacted         compactor → S    what it has done to a log

    Inspect              S → I            look at this partition: it is new, or was opened again
    LeaveAlone           S → I            somebody changes its files: do not look until the next Inspect
    LookAt               C → S → I        read these offsets, in which somebody has met damage
    LookAt               S → I            ... for nobody who waits for an answer
    Damaged              I → S            all damaged ranges of a partition
    FilesGone            I → S            its files are not those that were opened
    FilesBack            I → S            those of an offline one have changed
    Strays               I → S            directories that belong to no topic
    Judged               I → S → C        the damage of a partition, after LookAt
    Judged               S → C            ... or why nobody has looked
    InputStats           input → S        what it has taken in, for ``status``

    CreatePartitions     C → S            open partitions, and make those that are new
    DeletePartitions     C → S            close partitions and free their names
    CleanUp              C → S            the files of topics that have left the trash can be deleted
    OrderDone            S → C            what has become of the partitions of such an order
    RepairLog            C → S            take a partition out of service and repair its log
    RepairDone           S → C            what has become of it
    Published            C → S            a worker has its first snapshot
    Shown                C → S            a part of ``status``
    CannotStart          C → S            why, and what to do; the process ends
    ZooKeeperState       C → S            the session
    WorkerStreamOpened +fd  S → C         the stream to a worker
    Listening            S → C            the addresses of the listeners; after the tables, so all partitions are known
    ConnectZooKeeper     S → C            the addresses of the local ensemble

Between a worker and a writer (:mod:`.handoff` has the states of a connection)::

    Append               W → R            append requests: positions of record batches in the arena
    FlushSoon            W → R            a client waits for a flush: do not delay the next
    FlushNow             W → R            a client waits for the log end offset, or for room in the arena
    Handoff +fd          W → R            a connection, with the bytes that were received and not parsed
    Recall               W → R            give all connections back
    Appended             R → W            answers of append requests
    Received             R → W            bytes of a connection that were received and not parsed, in order
    Unsent               R → W            bytes of its replies that were not sent yet, in order
    Carried              R → W            bytes that connections have received and sent since its last message
    ProduceFailed        R → W            a request of it with acks=0 has failed: to be closed when it is back
    GivenBack +fd        R → W            the connection itself, after its bytes
    ConnectionLost       R → W            its descriptor did not arrive: the kernel has closed it

Between a worker and the coordinator, on a stream (:mod:`.message_stream`)::

    ForwardRequest       W → C            a request that the coordinator answers, and where it comes from
    LimitsTaken          W → C            what its clients have taken from their limits
    RequestAnswered      C → W            the reply
    SnapshotBegins       C → W            what follows replaces the worker's snapshot (:mod:`.snapshot`)
    FactsChanged         C → W            what it has besides topics
    SecurityPublished    C → W            users, rules, quotas
    TopicsChanged        C → W            topics that are new, or others now
    TopicsDeleted        C → W            topics that are gone
    SnapshotEnds         C → W            all of it has been sent
    LimitsUsed           C → W            what clients of other workers have taken from their limits

Transactions.  OpenTransaction and WriteMarker take effect in their order, and between the batches of the partition: a
batch of a transaction is admitted only after its OpenTransaction, and before its WriteMarker.  Both may be repeated.
Either is refused when its epoch is older than the producer's.  A WriteMarker of a transaction that is not open, or has
no batch in the log, writes nothing, and is done.  The supervisor starts a writer for them; where it cannot, it answers
with an error, :class:`~appliance.errors.UnknownPartition` for a partition that is not there.  A writer that ends leaves
steps unanswered, and forgets what was opened and has no batch in the log.  So at WriterStarted, also when the
coordinator is the one that was started, the coordinator sends all again that is open there or not answered, then
TransactionsSent with the same ``writer``.  Until then transactional batches that the writer does not know are refused
with an error after which they are sent again.

A message that a receiver's union lacks is a bug, and raises :class:`UnknownMessage` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.msgpack import Decoder

from ..catalog import Topic
from ..config import Config, TopicDefaults
from ..connected_clients import ClientRow
from ..machine_limits import DESCRIPTORS
from ..names import TopicPartition
from ..security.configuration import Tls
from ..security.principals import Origin

PartitionOutcome = tuple[TopicPartition, str, str]
"""What has become of a partition: the name of the error's class in ``errors``, "" after success, and its message."""
OUTCOMES_PER_MESSAGE: Final = 50
"""An outcome has a name and a text, well below 2 KiB: so many fit a packet."""

DamagedPlace = tuple[int, int, str, int, str]
"""Offsets from start to stop, the file and the position in it of the first, and the reason."""

AppendRow = tuple[Any, int, Sequence[int]]
"""Token of the sender, acks, positions of requests' record batches in the arena: start, stop, start, stop, ..."""

AnswerRow = tuple[int, list[int], dict[int, str], int]
"""Token, then the fields of :class:`~.answers.AppendAnswer`."""

UsageRow = tuple[str, str, str, float, float]
"""Key, user and client id of a limit, its rate, and what clients have taken from it."""


class UnknownMessage(Exception):
    """A bug: a process has got a message that it does not take.  The text has the beginning of it."""


class ProcessMessage(Struct, tag=True, array_like=True, gc=False):
    """One message.  The table above says what each means."""


class Stop(ProcessMessage):
    pass


class Reload(ProcessMessage):
    config: Config


# ---- to network workers


class PartitionTable(ProcessMessage):
    partition: TopicPartition
    table: str
    """The name in /dev/shm."""


class PartitionDropped(ProcessMessage):
    partition: TopicPartition


class RangesDamaged(ProcessMessage):
    partition: TopicPartition
    ranges: list[tuple[int, int]]


class FilesChanged(ProcessMessage):
    partition: TopicPartition


class WriterChannel(ProcessMessage):
    partition: TopicPartition


class WriterRetires(ProcessMessage):
    partition: TopicPartition


class CoordinatorStreamOpened(ProcessMessage):
    pass


class TlsChanged(ProcessMessage):
    tls: Tls


class LogLevel(ProcessMessage):
    level: str


# ---- from network workers


class WriterNeeded(ProcessMessage):
    partition: TopicPartition


class WorkerStats(ProcessMessage):
    connections: int
    refused: int


class ClientsCounted(ProcessMessage):
    rows: list[ClientRow]
    others: int
    """Connections of clients without a row."""


class LimitReached(NamedTuple):
    """A limit: its name (:mod:`appliance.machine_limits`), its value, and how much is in use; None: to be measured."""

    limit: str
    value: int | None
    in_use: int | None


class LimitsReached(ProcessMessage):
    limits: list[LimitReached]


class RefusalsReport(ProcessMessage):
    counts: dict[str, int]


class DamageSuspected(ProcessMessage):
    partition: TopicPartition
    start: int
    stop: int


# ---- writers and the nursery


class WorkerChannel(ProcessMessage):
    arena: str


class ChangeSettings(ProcessMessage):
    partitions: list[TopicPartition]
    settings: dict[str, str]


class DeleteBefore(ProcessMessage):
    partition: TopicPartition
    offset: int


class Roll(ProcessMessage):
    partition: TopicPartition


class SwapSegment(ProcessMessage):
    partition: TopicPartition
    base: int


class SegmentSwapped(ProcessMessage):
    partition: TopicPartition
    base: int
    done: bool
    """False: retention has removed the segment."""


class StoreProducers(ProcessMessage):
    partition: TopicPartition


class OpenTransaction(ProcessMessage):
    partition: TopicPartition
    token: int
    producer_id: int
    epoch: int


class WriteMarker(ProcessMessage):
    partition: TopicPartition
    token: int
    producer_id: int
    epoch: int
    coordinator_epoch: int
    committed: bool
    decided_ms: int
    """When it was decided, in ms since 1970: above that of the producer's decision before."""
    inherited: bool
    """By an earlier coordinator."""


class AbortHanging(ProcessMessage):
    partition: TopicPartition
    token: int
    known_producers: list[int]
    """The producers whose transactions there somebody will end: they stay open."""


class TransactionsSent(ProcessMessage):
    partition: TopicPartition
    writer: int


class TransactionStep(ProcessMessage):
    partition: TopicPartition
    token: int
    error: str
    """The name of the error's class in ``errors``; "" when it is done."""


class WriterStarted(ProcessMessage):
    partition: TopicPartition
    writer: int
    """Which one, for TransactionsSent: its pid."""


class Retire(ProcessMessage):
    pass


class Forked(ProcessMessage):
    pid: int


class WriterOpened(ProcessMessage):
    pass


class Idle(ProcessMessage):
    pass


class LogClosed(ProcessMessage):
    pass


class Offline(ProcessMessage):
    reason: str


class Lacking(ProcessMessage):
    reason: str
    limit: str


class LogFull(ProcessMessage):
    reason: str


class ForkWriter(ProcessMessage):
    partition: TopicPartition
    settings: dict[str, str]
    table: str
    heart: int
    """The index of the cell in which the writer beats."""


class WriterEnded(ProcessMessage):
    partition: TopicPartition
    status: int


class Reap(ProcessMessage):
    pid: int


# ---- those that do one piece of work


class PartitionsOpened(ProcessMessage):
    outcomes: list[PartitionOutcome]


class PartitionsRemoved(ProcessMessage):
    outcomes: list[PartitionOutcome]


class LogRepaired(ProcessMessage):
    partition: TopicPartition
    error: str
    message: str
    result: dict[str, Any]
    """The fields of :class:`~appliance.log.repair.Repaired`; none after an error."""


class SegmentCompacted(ProcessMessage):
    partition: TopicPartition
    base: int


class LogCompacted(ProcessMessage):
    partition: TopicPartition
    error: str
    """Why it could not be; "" after success."""
    counts: dict[str, Any]
    """The fields of :class:`~appliance.log.compaction.PassCounts`; none after an error."""


class ScrubSoon(ProcessMessage):
    partition: TopicPartition


# ---- the inspector


class Inspected(NamedTuple):
    """A partition, as the supervisor tells the inspector.  ``away``: its files are not looked at now."""

    partition: TopicPartition
    topic_id: str
    table: str
    offline: bool
    away: bool


class Inspect(ProcessMessage):
    row: Inspected


class LeaveAlone(ProcessMessage):
    partition: TopicPartition


class LookAt(ProcessMessage):
    token: int
    """Of the order; 0: nobody waits for an answer."""
    partition: TopicPartition
    start: int
    stop: int


class Damaged(ProcessMessage):
    partition: TopicPartition
    topic_id: str
    places: list[DamagedPlace]


class FilesGone(ProcessMessage):
    partition: TopicPartition
    topic_id: str
    reason: str


class FilesBack(ProcessMessage):
    partition: TopicPartition
    topic_id: str


class Strays(ProcessMessage):
    names: list[str]


class Judged(ProcessMessage):
    token: int
    error: str
    message: str
    places: list[DamagedPlace]


# ---- inputs


class InputStats(ProcessMessage):
    """Counted since its process began.

    ``trouble``: what it waits for, "" while it waits for nothing; ``refusing``: whom it has refused something lately,
    and ``refused_lately``: how many lines, requests or connections.
    """

    lines: int = 0
    bytes: int = 0
    messages: int = 0
    refused: int = 0
    gaps: int = 0
    sources: int = 0
    trouble: str = ""
    refusing: str = ""
    refused_lately: int = 0


# ---- the coordinator


class NewPartition(NamedTuple):
    """``is_new``: to be made; else it was made before, and may have lost its directory."""

    partition: TopicPartition
    topic_id: str
    settings: dict[str, str]
    is_new: bool


class CreatePartitions(ProcessMessage):
    token: int
    rows: list[NewPartition]


class DeletePartitions(ProcessMessage):
    token: int
    partitions: list[TopicPartition]
    topic_id: str
    trash: bool = False
    """Their files are kept."""


class CleanUp(ProcessMessage):
    pass


class OrderDone(ProcessMessage):
    token: int
    outcomes: list[PartitionOutcome]


class CompactLog(ProcessMessage):
    """See :class:`~appliance.log.compaction.Policy`."""

    partition: TopicPartition
    limit: int
    tombstones_ms: int
    now_ms: int
    batch_bytes_max: int
    interval_bytes: int


class RepairLog(ProcessMessage):
    token: int
    partition: TopicPartition
    cut: bool


class RepairDone(ProcessMessage):
    token: int
    error: str
    message: str
    result: dict[str, Any]


class Published(ProcessMessage):
    pass


ShownKey = Literal["clock", "cluster", "compaction", "retention", "transactions", "trash"]
"""Parts of state.json that are as in ``status.NOTHING`` until a coordinator has sent them."""


class Shown(ProcessMessage):
    key: ShownKey
    value: dict[str, Any] | None


class CannotStart(ProcessMessage):
    reason: str
    todo: str


class ZooKeeperState(ProcessMessage):
    connect: str
    state: str


class WorkerStreamOpened(ProcessMessage):
    index: int


class Listening(ProcessMessage):
    listeners: dict[str, str]


class ConnectZooKeeper(ProcessMessage):
    connect: str


# ---- between a worker and a writer


class Append(ProcessMessage):
    requests: list[AppendRow]


class FlushSoon(ProcessMessage):
    pass


class FlushNow(ProcessMessage):
    pass


class Handoff(ProcessMessage):
    token: int
    protocol: str
    listener: int
    """The number of its kind of listener (:func:`appliance.shared.counters.listener_number`)."""
    acks: int
    buffer_bytes: int
    received: bytes


class Recall(ProcessMessage):
    pass


class Appended(ProcessMessage):
    answers: list[AnswerRow]


class Received(ProcessMessage):
    token: int
    data: bytes


class Unsent(ProcessMessage):
    token: int
    data: bytes


class Carried(ProcessMessage):
    rows: list[tuple[int, int, int]]
    """Token, bytes received, bytes sent."""


class ProduceFailed(ProcessMessage):
    token: int
    reason: str


class GivenBack(ProcessMessage):
    token: int


class ConnectionLost(ProcessMessage):
    token: int


# ---- between a worker and the coordinator


class ForwardRequest(ProcessMessage):
    token: int
    origin: Origin
    frame: bytes


class LimitsTaken(ProcessMessage):
    rows: list[UsageRow]


class RequestAnswered(ProcessMessage):
    token: int
    reply: bytes | None
    """None: it cannot be answered, and its connection is closed."""


class Facts(Struct, frozen=True):
    """The part of the snapshot besides the topics.

    ``advertised``: by protocol, as text, the listeners that clients get instead of those that they connected to;
    ``peers``: the other live brokers, with their listeners likewise; ``defaults``: the settings of topics that do not
    set their own.
    """

    cluster_id: str
    broker_id: int
    auto_create: bool
    zookeeper: str
    advertised: dict[str, str]
    peers: dict[int, dict[str, str]]
    defaults: TopicDefaults


class SnapshotBegins(ProcessMessage):
    pass


class FactsChanged(ProcessMessage):
    facts: Facts
    """All of them."""


class SecurityPublished(ProcessMessage):
    packed: bytes
    """All of the :class:`~appliance.security.security_state.SecurityState`."""


class TopicsChanged(ProcessMessage):
    topics: list[Topic]
    """New, or changed."""


class TopicsDeleted(ProcessMessage):
    names: list[str]


class SnapshotEnds(ProcessMessage):
    pass


class LimitsUsed(ProcessMessage):
    rows: list[UsageRow]


# ---- who takes what

Refusable = (
    PartitionTable
    | WriterChannel
    | CoordinatorStreamOpened
    | WorkerChannel
    | WorkerStreamOpened
    | ForkWriter
    | Handoff
    | GivenBack
)
"""All messages with descriptors, and the table, which a process may be unable to map."""


class Unreceivable(ProcessMessage):
    """A channel makes it in place of a message for whose descriptors its process has no room; see :mod:`.control`."""

    message: Refusable
    limit: str = DESCRIPTORS
    """The limit of the machine that is in the way (:mod:`appliance.machine_limits`)."""


ToWorker = (
    PartitionTable
    | PartitionDropped
    | RangesDamaged
    | FilesChanged
    | WriterChannel
    | WriterRetires
    | CoordinatorStreamOpened
    | TlsChanged
    | LogLevel
    | Stop
    | Unreceivable
)
ToWriter = (
    WorkerChannel
    | ChangeSettings
    | DeleteBefore
    | Roll
    | SwapSegment
    | StoreProducers
    | OpenTransaction
    | WriteMarker
    | AbortHanging
    | TransactionsSent
    | Retire
    | Reload
    | Unreceivable
)
ToNursery = ForkWriter | Reap | Reload | Stop | Unreceivable
ToCoordinator = (
    PartitionTable
    | PartitionDropped
    | FilesChanged
    | OrderDone
    | RepairDone
    | Judged
    | TransactionStep
    | WriterStarted
    | WorkerStreamOpened
    | Listening
    | ConnectZooKeeper
    | Reload
    | Stop
    | Unreceivable
)
ToScrubber = ScrubSoon | Reload | Stop
ToCompactor = SegmentSwapped | Stop
ToInspector = Inspect | PartitionDropped | LeaveAlone | LookAt | Stop
ToSideProcess = Reload | Stop
ToStoppable = Stop
"""What those take that are told nothing else: an input, an opener, a remover, a cleaner, a repairer."""

FromServer = (
    WriterNeeded
    | WorkerStats
    | ClientsCounted
    | LimitsReached
    | RefusalsReport
    | DamageSuspected
    | Published
    | Shown
    | CannotStart
    | ZooKeeperState
    | InputStats
)
"""Messages of workers, the coordinator, side processes and inputs about themselves."""
FromLog = (
    WriterOpened
    | WriterEnded
    | Idle
    | LogClosed
    | Offline
    | Lacking
    | LogFull
    | TransactionStep
    | PartitionsOpened
    | PartitionsRemoved
    | LogRepaired
    | SegmentSwapped
    | SegmentCompacted
    | LogCompacted
)
"""Messages of processes that have logs open: writers, openers, removers, repairers, compactors."""
FromInspector = Damaged | FilesGone | FilesBack | FilesChanged | Strays | Judged
"""... of the inspector; FilesChanged comes from the scrubber, too."""
PartitionOrder = (
    CreatePartitions
    | DeletePartitions
    | CleanUp
    | ChangeSettings
    | DeleteBefore
    | Roll
    | StoreProducers
    | OpenTransaction
    | WriteMarker
    | AbortHanging
    | TransactionsSent
    | CompactLog
    | RepairLog
    | LookAt
)
"""Orders of the coordinator about partitions."""
FromChild = FromServer | FromLog | FromInspector | PartitionOrder | Unreceivable
ToSupervisor = FromChild | Forked

FromWorker = Append | FlushSoon | FlushNow | Handoff | Recall | Unreceivable
"""What a writer gets from a worker."""
FromWriter = Appended | Received | Unsent | Carried | ProduceFailed | GivenBack | ConnectionLost | Unreceivable
"""What a worker gets from a writer."""

SnapshotChange = (
    SnapshotBegins | FactsChanged | SecurityPublished | TopicsChanged | TopicsDeleted | SnapshotEnds | LimitsUsed
)
"""The changes of a worker's snapshot (:mod:`.snapshot`)."""
ToCoordinatorStream = ForwardRequest | LimitsTaken
"""What the coordinator gets from a worker."""
FromCoordinatorStream = RequestAnswered | SnapshotChange
"""What a worker gets from the coordinator."""

TO_WORKER: Final[Decoder[ToWorker]] = Decoder(ToWorker)
TO_WRITER: Final[Decoder[ToWriter]] = Decoder(ToWriter)
TO_NURSERY: Final[Decoder[ToNursery]] = Decoder(ToNursery)
TO_COORDINATOR: Final[Decoder[ToCoordinator]] = Decoder(ToCoordinator)
TO_SCRUBBER: Final[Decoder[ToScrubber]] = Decoder(ToScrubber)
TO_COMPACTOR: Final[Decoder[ToCompactor]] = Decoder(ToCompactor)
TO_INSPECTOR: Final[Decoder[ToInspector]] = Decoder(ToInspector)
TO_STOPPABLE: Final[Decoder[ToStoppable]] = Decoder(ToStoppable)
TO_SIDE_PROCESS: Final[Decoder[ToSideProcess]] = Decoder(ToSideProcess)
TO_SUPERVISOR: Final[Decoder[ToSupervisor]] = Decoder(ToSupervisor)
FROM_WORKER: Final[Decoder[FromWorker]] = Decoder(FromWorker)
FROM_WRITER: Final[Decoder[FromWriter]] = Decoder(FromWriter)
TO_COORDINATOR_STREAM: Final[Decoder[ToCoordinatorStream]] = Decoder(ToCoordinatorStream)
FROM_COORDINATOR_STREAM: Final[Decoder[FromCoordinatorStream]] = Decoder(FromCoordinatorStream)
