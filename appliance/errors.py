"""Defines all exceptions of the appliance, grouped by what must happen next::

    ApplianceError
    ├── ClientFault            reply with the code, keep the connection
    │   ├── OffsetOutOfRange
    │   ├── CorruptBatch
    │   ├── UnknownPartition
    │   ├── MessageTooLarge
    │   ├── InvalidTimestamp
    │   ├── InvalidRequest
    │   ├── UnsupportedVersion
    │   ├── TopicExists
    │   ├── InvalidTopic
    │   ├── InvalidGroup
    │   ├── InvalidPartitions
    │   ├── InvalidSetting
    │   ├── OutOfOrderSequence
    │   ├── DuplicateSequence
    │   ├── StaleProducerEpoch
    │   ├── ProducerFenced
    │   ├── IllegalGeneration
    │   ├── InvalidRecord
    │   ├── OffsetsFull
    │   ├── UnknownGroup
    │   ├── UnknownTransactionalId
    │   ├── UnknownUser
    │   ├── UserExists
    │   ├── UnacceptableCredential
    │   ├── GroupTooLarge
    │   └── NotPermitted       an access rule is missing, or denies it
    │       ├── TopicNotPermitted
    │       ├── GroupNotPermitted
    │       ├── ClusterNotPermitted
    │       └── TransactionalIdNotPermitted
    ├── LoginFault             reply with the code, then close the connection
    │   ├── UnknownMechanism
    │   ├── LoginOutOfOrder
    │   └── BadCredentials            ── UserLocked
    ├── ProtocolFault          the peer broke the protocol: close its connection without a reply
    │   └── FrameTooLarge
    │       └── TlsOnPlain
    ├── Unavailable            a restart, an election or a full disk: the client may retry
    │   ├── WriterGone
    │   ├── NotLeader
    │   ├── ZooKeeperAway
    │   ├── NotCoordinator
    │   ├── BrokerAway
    │   ├── RequestTimedOut
    │   ├── ConcurrentTransactions
    │   ├── UnstableOffsets
    │   ├── BufferFull
    │   ├── OutOfResources
    │   └── DiskFull
    ├── StorageFault           the data on the disk cannot be trusted: take the partition offline
    │   ├── FileNotPermitted
    │   ├── CorruptLog
    │   │   └── SegmentMissing
    │   └── UnreadableLog
    ├── TransactionAborted     a transaction of the native client: the cause says why, begin another one
    ├── ConfigFault            a person must change a file or an argument: name it and the change
    │   ├── UnknownKey
    │   ├── BadValue
    │   ├── NoDirectory
    │   ├── OthersDirectory
    │   ├── AddressInUse
    │   └── AlreadyRunning
    └── ClientBroken           a client failed, its ``__cause__`` is the reason: make another one
        └── CallbackFailed     a callback of the application failed: the client continues

A handler catches one of the branches, never ``Exception``.  Both wire protocols carry ``code`` (the numbers of
the Kafka protocol, which have names that operators know); the command line exits with ``exit_status``
(``sysexits.h``).  :func:`from_code` turns a received code back into the class that a client raises.
"""

from __future__ import annotations

import errno
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final


class ApplianceError(Exception):
    """``remedy``: what to do in this case, with commands in backticks; "" where the message says it.

    ``about``: the partition or other thing that an error from another process is about, "" if it is not known.
    """

    code: ClassVar[int] = -1
    exit_status: ClassVar[int] = 1

    def __init__(self, message: object = "", *, remedy: str = "", about: str = "") -> None:
        super().__init__(message)
        self.remedy, self.about = remedy, about

    @property
    def retriable(self) -> bool:
        return isinstance(self, Unavailable)


class ClientFault(ApplianceError):
    exit_status = 65  # EX_DATAERR


class OffsetOutOfRange(ClientFault):
    code = 1


class CorruptBatch(ClientFault):
    code = 2


class UnknownPartition(ClientFault):
    """The cluster has no such topic or partition."""

    code = 3
    exit_status = 66  # EX_NOINPUT


class MessageTooLarge(ClientFault):
    code = 10


class InvalidTopic(ClientFault):
    code = 17


class InvalidGroup(ClientFault):
    code = 24


class InvalidTimestamp(ClientFault):
    code = 32


class UnsupportedVersion(ClientFault):
    code = 35
    exit_status = 76  # EX_PROTOCOL


class TopicExists(ClientFault):
    code = 36


class InvalidPartitions(ClientFault):
    code = 37


class InvalidSetting(ClientFault):
    code = 40


class InvalidRequest(ClientFault):
    code = 42


class OutOfOrderSequence(ClientFault):
    code = 45


class DuplicateSequence(ClientFault):
    """The producer's batch is in the log, at an offset that is not known any more.  Only native clients get it."""

    code = 46


class StaleProducerEpoch(ClientFault):
    code = 47


class ProducerFenced(ClientFault):
    """Another producer has begun with the same transactional id, or the transaction took too long: it is over."""

    code = 90


class IllegalGeneration(ClientFault):
    """Offsets of a group member for partitions that it does not own, or does not own any more."""

    code = 22


class UnknownMember(ClientFault):
    """A member that its group's coordinator does not know, or not any more.  Join again."""

    code = 25


class InvalidTransactionState(ClientFault):
    """A batch of a transaction whose producer is in none, or one outside of the transaction that it is in."""

    code = 48


class TransactionCoordinatorFenced(ClientFault):
    """Another coordinator has taken over the transaction."""

    code = 52


class UnknownFetchSession(ClientFault):
    """The client starts another one."""

    code = 70


class UnknownTopicId(ClientFault):
    code = 100


class MixedTopicIds(ClientFault):
    """A fetch names topics by their ids and the one that began its session by their names, or the other way round."""

    code = 106


class InvalidSessionEpoch(ClientFault):
    """A fetch of a session came twice, or one before it is missing.  The client starts another session."""

    code = 71


class InvalidRecord(ClientFault):
    """A batch with a right checksum that no client could read.  Sent again it would be refused again."""

    code = 87


class OffsetsFull(ClientFault):
    """There are ``offsets.committed_max`` committed offsets: new ones are refused, existing ones can be changed."""

    code = 28


class UnknownGroup(ClientFault):
    code = 69
    exit_status = 66


class UnknownTransactionalId(ClientFault):
    code = 105
    exit_status = 66


class UnknownUser(ClientFault):
    code = 91
    exit_status = 66


class UserExists(ClientFault):
    code = 92


class UnacceptableCredential(ClientFault):
    """A verifier with too few or too many iterations, or of the wrong size."""

    code = 93


class GroupTooLarge(ClientFault):
    """A group, or a value of one of its members, is larger than allowed."""

    code = 81


class NotPermitted(ClientFault):
    exit_status = 77  # EX_NOPERM

    def __init__(self, message: str, name: str = "", **details: str) -> None:
        """``name``: of the topic, group or other resource."""
        super().__init__(message, **details)
        self.name = name


class TopicNotPermitted(NotPermitted):
    code = 29


class GroupNotPermitted(NotPermitted):
    code = 30


class ClusterNotPermitted(NotPermitted):
    code = 31


class TransactionalIdNotPermitted(NotPermitted):
    code = 53


class LoginFault(ApplianceError):
    exit_status = 77  # EX_NOPERM


class UnknownMechanism(LoginFault):
    code = 33


class LoginOutOfOrder(LoginFault):
    """A message of a login where none, or another, is expected; or a request without the login it needs."""

    code = 34


class BadCredentials(LoginFault):
    """Wrong password or unknown user: which of them is never told."""

    code = 58


class UserLocked(BadCredentials):
    """The password is right, and the user is locked or has expired."""


class ProtocolFault(ApplianceError):
    exit_status = 76


class FrameTooLarge(ProtocolFault):
    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"peer announced a frame of {size_bytes} bytes, limit {limit_bytes}")


class TlsOnPlain(FrameTooLarge):
    """The size of the first frame is the beginning of a TLS handshake."""

    FIRST_BYTES: ClassVar[int] = 0x1603
    """Handshake record, version 3.x; the next byte is x."""

    def __str__(self) -> str:
        return "it speaks TLS, and this listener has none: connect to one with SSL, or without TLS"


class Unavailable(ApplianceError):
    exit_status = 75  # EX_TEMPFAIL: scripts may retry


class WriterGone(Unavailable):
    """The partition's writer is being restarted.  Its last batches may or may not be in the log."""

    code = 5


class NotLeader(Unavailable):
    code = 6


class RequestTimedOut(Unavailable):
    code = 7


class BrokerAway(Unavailable):
    """No connection to the appliance."""

    code = 8


class ZooKeeperAway(Unavailable):
    code = 15


class NotCoordinator(Unavailable):
    """Another broker coordinates the group: find it and send the request there."""

    code = 16


class TransactionUnverified(Unavailable):
    """Nobody has said yet whether the producer is in a transaction: Kafka's brokers answer NOT_ENOUGH_REPLICAS."""

    code = 19


class ConcurrentTransactions(Unavailable):
    """The transaction of the same id that came before is about to end."""

    code = 51


class UnstableOffsets(Unavailable):
    """Committed offsets that an open transaction may still change (KIP-447)."""

    code = 88


class BufferFull(Unavailable):
    code = 89


class OutOfResources(Unavailable):
    """The machine has no memory, process or descriptor left.  The message says which, and what to do."""

    code = 56


class StorageFault(ApplianceError):
    """The partition is offline until ``appliance log repair`` or an operator decides."""

    code = 56
    exit_status = 74  # EX_IOERR


class FileNotPermitted(StorageFault):
    """A file belongs to somebody else: nothing is wrong with what is in it, and it cannot be used."""

    exit_status = 77  # EX_NOPERM: starting again does not help


class DiskFull(Unavailable):
    """No room on the disk.  Retriable: the service resumes when there is room."""

    code = 56
    exit_status = 75


NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


NOT_PERMITTED: Final = frozenset({errno.EACCES, errno.EPERM})


def disk_fault(error: OSError, where: str | os.PathLike[str]) -> DiskFull | StorageFault:
    """Turn an operating system's error about a file or directory into DiskFull, FileNotPermitted or StorageFault."""
    if error.errno in NOT_PERMITTED:
        return not_permitted(error.filename or where)
    text = f"{error.filename or where}: {error.strerror}"
    return DiskFull(text + _free(where)) if error.errno in NO_ROOM else StorageFault(text)


ZOOKEEPER_DIRECTORY: Final = "zookeeper"
"""Where a data directory has its local ensemble, if it has one."""


def damaged_file(path: Path, reason: object) -> StorageFault:
    """The error about a file of the data directory whose content is also in ZooKeeper, if there is one."""
    quoted, name = shlex.quote(str(path)), shlex.quote(path.name)
    if (path.parent / ZOOKEEPER_DIRECTORY).is_dir():
        todo = f"`mv {quoted} {quoted}.damaged`, and start it: ZooKeeper has all that was in this file"
    else:
        todo = f"restore it: `cp -p BACKUP/{name} {quoted}`; what an ensemble of your own has may be moved away instead"
    return StorageFault(f"{path}: damaged: {reason}", remedy=todo)


def not_permitted(where: str | os.PathLike[str]) -> FileNotPermitted:
    """The error about a file that may not be used: whose it is, or whose directory before it, and what helps.

    The message has the remedy: as the reason why a partition is offline it goes through other processes.
    """
    path, me = Path(where).absolute(), os.geteuid()
    place = next((above for above in reversed(path.parents) if not os.access(above, os.X_OK)), path)
    text = f"{path}: not permitted to {_user(me)}"
    try:
        status, above = place.lstat(), place.parent.stat()
    except OSError:
        return FileNotPermitted(text)
    what, owner, quoted = "it" if place == path else place, _user(status.st_uid), shlex.quote(str(place))
    text += f": {what} belongs to {owner} (mode {stat.S_IMODE(status.st_mode):04o})"
    if status.st_uid == me:
        return FileNotPermitted(f"{text}: `chmod u+rwX {quoted}`")
    if above.st_uid == me:  # a file of somebody else among ours: they have copied it, or made it
        user = _user(me)  # one without a name has no group of a login, which "USER:" stands for
        mine = f"{me}:{os.getegid()}" if user == str(me) else f"{user}:"
        return FileNotPermitted(f"{text}: `chown -R {mine} {quoted}` as root, or run it as {owner}")
    return FileNotPermitted(f"{text}: run it as {owner}: `sudo -u {owner} ...`")


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _free(where: str | os.PathLike[str]) -> str:
    """Text about the free bytes on the disk of a file or directory, which may not exist yet."""
    for path in (Path(where), Path(where).parent):
        try:
            disk = os.statvfs(path)
        except OSError:
            continue
        return f", {disk.f_bavail * disk.f_frsize} bytes are free"
    return ""


class CorruptLog(StorageFault):
    """The bytes of a log at a position of a file are no whole batches."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        """``path``: of a file in the directory of the partition, or that directory."""
        directory = path if not path.endswith((".log", ".index")) else os.path.dirname(path)  # noqa: PTH120
        shows, mends = (f"`{shlex.join(['appliance', 'log', verb, directory])}`" for verb in ("verify", "repair"))
        super().__init__(
            f"{path}:{position}: {reason}", remedy=f"{shows} shows all damage, {mends} keeps all that is not damaged"
        )
        self.path, self.position, self.reason = path, position, reason


class SegmentMissing(CorruptLog):
    """There is no file for a segment that retention has not removed."""

    def __init__(self, path: str) -> None:
        super().__init__(path, 0, "the segment file is missing")


class UnreadableLog(StorageFault):
    """The system refuses to read a file of a log, from a position on: what the bytes are is not known.

    Never a reason to truncate: they may be whole.
    """

    def __init__(self, path: str, position: int, error: OSError) -> None:
        self.path, self.position, self.reason = path, position, f"cannot be read: {error.strerror}"
        super().__init__(f"{path}:{position}: {self.reason}")


class ConfigFault(ApplianceError):
    exit_status = 78  # EX_CONFIG


class UnknownKey(ConfigFault): ...


class BadValue(ConfigFault): ...


class NoDirectory(ConfigFault):
    """A named directory is missing, or is not of the expected kind."""

    exit_status = 66


class OthersDirectory(ConfigFault):
    """Root would work in a directory of another user, who could exchange its files meanwhile."""

    exit_status = 77  # EX_NOPERM


class AddressInUse(ConfigFault):
    """Another program listens there: wait until it ends, or choose another address."""

    exit_status = 75


class AlreadyRunning(ConfigFault):
    exit_status = 75


class ClientBroken(ApplianceError):
    """An unexpected exception ended a thread of a client, or interrupted a call."""

    exit_status = 70  # EX_SOFTWARE


class TransactionAborted(ApplianceError):
    """A transaction of the native client was aborted at its end: the cause says why.  Begin another one."""


class CallbackFailed(ClientBroken):
    """A callback of the application raised an exception.  The event that it was called for did happen."""


LACKS: Final = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOBUFS}
)


def is_lack(error: BaseException | None) -> bool:
    """Whether the root cause of an error is only a lack of room or resources: a retry may succeed later."""
    while error is not None:
        if isinstance(error, DiskFull | OutOfResources | MemoryError):
            return True
        if isinstance(error, OSError) and error.errno in LACKS:
            return True
        error = error.__cause__
    return False


def _classes(cls: type[ApplianceError] = ApplianceError) -> Iterator[type[ApplianceError]]:
    yield cls
    for inner in cls.__subclasses__():
        yield from _classes(inner)


_BY_NAME = {cls.__name__: cls for cls in _classes()}
_BY_CODE = {
    cls.code: cls
    for cls in reversed(_BY_NAME.values())
    if cls is not OutOfResources and not issubclass(cls, StorageFault)
}


def branch_codes(branch: type[ApplianceError]) -> frozenset[int]:
    """The positive codes of all errors of a branch."""
    return frozenset(cls.code for cls in _classes(branch) if cls.code > 0)


def named(name: str, message: str) -> ApplianceError:
    """Make an exception from the name of its class, which another process of the appliance has sent."""
    cls = _BY_NAME[name]
    while "__init__" in vars(cls):  # its constructor takes more than the message: use its base class
        cls = cls.__mro__[1]
    return cls(message)


WORDS: dict[int, str] = {
    OffsetOutOfRange.code: "the offset is out of the partition's range",
    CorruptBatch.code: "a batch is damaged",
    UnknownPartition.code: "there is no such topic or partition",
    WriterGone.code: "the partition's writer is being restarted",
    NotLeader.code: "no live appliance leads the partition",
    RequestTimedOut.code: "the appliance took too long",
    BrokerAway.code: "the appliance cannot be reached",
    MessageTooLarge.code: "a message is larger than max.message.bytes of its topic",
    14: "the group coordinator is starting",
    ZooKeeperAway.code: "ZooKeeper cannot be reached; groups and changes of topics need it",
    16: "another appliance coordinates the group",
    InvalidTopic.code: "the name of the topic is not valid",
    TopicNotPermitted.code: "not permitted to this user: `appliance acl list` shows the access rules of the topic",
    GroupNotPermitted.code: "not permitted to this user: `appliance acl list` shows the access rules of the group",
    ClusterNotPermitted.code: "not permitted to this user: `appliance acl list` shows the access rules of the cluster",
    UnknownMechanism.code: "the appliance does not accept this mechanism for logins",
    LoginOutOfOrder.code: "the appliance wants a login first, or wants none",
    BadCredentials.code: "wrong password or unknown user",
    InvalidTimestamp.code: "the timestamp is out of range",
    UnsupportedVersion.code: "the appliance does not support this version of the request",
    TopicExists.code: "the topic exists already",
    InvalidPartitions.code: "the number of partitions is not valid",
    InvalidSetting.code: "the setting is not valid",
    InvalidRequest.code: "the request is not valid",
    OutOfOrderSequence.code: "a batch of the producer is missing before this one",
    DuplicateSequence.code: "the batch is in the log already",
    StaleProducerEpoch.code: "a newer producer has this producer id",
    ProducerFenced.code: "another producer has the transactional id now, or the transaction took too long",
    UnknownMember.code: "the coordinator does not know this member of the group any more",
    IllegalGeneration.code: "another member of the group owns the partition",
    ConcurrentTransactions.code: "the transaction before this one is about to end",
    UnstableOffsets.code: "an open transaction may change the committed offsets",
    InvalidTransactionState.code: "the producer is in no transaction, or in one that this is no part of",
    TransactionCoordinatorFenced.code: "another appliance coordinates the transaction now",
    TransactionUnverified.code: "it is not known yet whether the producer is in a transaction",
    InvalidRecord.code: "a batch cannot be read: its records contradict its header, or cannot be unpacked",
    StorageFault.code: "the partition is offline or its disk is full: `appliance status` says which, and why",
    UnknownGroup.code: "there is no such group",
    UnknownTransactionalId.code: "there is no such transactional id",
    UnknownUser.code: "there is no such user",
    UserExists.code: "the user exists already",
    BufferFull.code: "too much data is in flight",
}
"""Messages for codes that a peer sends without a message."""


def from_code(code: int, message: str = "", *, about: str = "") -> ApplianceError:
    """Make an exception from a code received from a peer.  An unknown code becomes a plain ApplianceError.

    Code 56 (Kafka's KAFKA_STORAGE_ERROR) becomes the retriable :class:`DiskFull`, as in Kafka's clients.

    Args:
        message: the peer's message; "" for that of :data:`WORDS`.
        about: the subject, to be put before the message.
    """
    cls = _BY_CODE.get(code, ApplianceError)
    if cls is FrameTooLarge:
        cls = ApplianceError
    words = (
        message or WORDS.get(code) or f"error {code}, which this client does not know: is it older than the appliance?"
    )
    return cls(f"{about}: {words}" if about and about not in words else words, about=about)
