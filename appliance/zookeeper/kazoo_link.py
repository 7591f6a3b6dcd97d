"""Wraps kazoo: its client, the requests that it sends, its replies and states.

Nothing is handed to kazoo while it is not connected, because kazoo's queue has no bound.

kazoo reports a lost session only after it has reconnected.  Its thread may end by itself; :class:`KazooLink` then
starts another client.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo import exceptions as refusals
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from ..errors import ConfigFault, InvalidRequest, ZooKeeperAway
from .kazoo_connection import Connection, DirectHandler, SaslConnection
from .login import ZooKeeperLogin
from .multi_read import MultiRead
from .multi_write import MultiWrite, PartReply
from .operations import Failed, Node, Refused, Request

log = logging.getLogger(__name__)

RENEW_MS: Final = 2_000
"""How long kazoo's thread must be gone before another client is started.  A shorter gap may be a thread that starts."""

_REFUSED = {
    refusals.NoNodeError: Refused.NO_NODE,
    refusals.NodeExistsError: Refused.NODE_EXISTS,
    refusals.BadVersionError: Refused.BAD_VERSION,
    refusals.NotEmptyError: Refused.NOT_EMPTY,
}
_REPEAT = (refusals.ConnectionLoss, refusals.OperationTimeoutError)
_LOST: Final = object()
"""In the place of a value: the request must be sent again."""


def kazoo_client(connect: str, login: ZooKeeperLogin | None, **options: Any) -> Any:
    """A kazoo client that logs in, and creates nodes for its own user only.  Without ``login``, nodes are open."""
    if login is not None:
        options["default_acl"] = CREATOR_ALL_ACL
        if login.scheme == "digest":
            options["auth_data"] = [("digest", f"{login.user}:{login.password}")]
        else:
            options["sasl_options"] = {}
    client = KazooClient(hosts=connect, **options)
    connection = client._connection
    connection.__class__ = Connection  # kazoo has no other way to choose it
    if "sasl_options" in options:
        connection.__class__, connection.login = SaslConnection, login
    return client


class KazooLink:
    """One kazoo client at a time.

    ``changed(state, session id)`` is called in kazoo's thread with each of its states: CONNECTED, SUSPENDED, LOST.
    """

    def __init__(
        self,
        connect: str,
        timeout_ms: int,
        name: str,
        login: ZooKeeperLogin | None,
        changed: Callable[[str, int], None],
    ) -> None:
        self.connect = connect
        self._login = login
        self.live = threading.Event()
        """Set while kazoo is connected."""
        self.live_id = 0
        """The session of kazoo's present or last connection."""
        self._timeout_ms = timeout_ms
        self._name = name
        self._changed = changed
        self._client: Any = None
        self._ended_ms = 0  # since when kazoo's thread is gone

    def start(self) -> None:
        """Begin to connect, and retry for ever.  Returns at once."""
        kazoo_log = logging.getLogger(f"{__name__}.kazoo")
        kazoo_log.setLevel(logging.ERROR)  # one line per attempt to connect would fill a disk; we log the states
        retry = KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=1.0)
        options = {"timeout": self._timeout_ms / 1000, "connection_retry": retry, "logger": kazoo_log}
        options["handler"] = DirectHandler()
        self._client = kazoo_client(self.connect, self._login, **options)
        self._client.add_listener(self._state_changed)
        self._client.start_async()

    def set_connect(self, connect: str) -> None:
        """Use other addresses from the next attempt to connect on."""
        self.connect = connect
        if self._client is not None:
            self._client.set_hosts(connect)

    def stop(self, timeout_ms: int) -> None:
        """End kazoo's session and threads, waiting for up to ``timeout_ms``."""
        if self._client is not None:
            # kazoo's stop() joins its threads, which takes long while an attempt to connect hangs: so in a thread.
            stopper = threading.Thread(target=_stop_kazoo, args=[self._client], daemon=True)
            stopper.start()
            stopper.join(timeout_ms / 1000)
            self._client = None

    def renew_due_ms(self, now_ms: int) -> int | None:
        """When :meth:`renew_if_ended` is due; None while kazoo's thread runs."""
        if self._client is None or self._client.client_state != KeeperState.CLOSED:
            return None
        return (self._ended_ms or now_ms) + RENEW_MS

    def renew_if_ended(self, now_ms: int) -> None:
        """Start another client if kazoo's thread has ended by itself.

        The thread ends after an error of kazoo ("xids do not match" after a lost quorum) or a refused authentication.
        The session ends with it.
        """
        if self._client is None or self._client.client_state != KeeperState.CLOSED:
            self._ended_ms = 0
        elif not self._ended_ms:
            self._ended_ms = now_ms
        elif now_ms - self._ended_ms >= RENEW_MS:
            log.warning("ZooKeeper session %s: its client has ended; starting another", self._name)
            self._ended_ms = 0
            threading.Thread(target=_stop_kazoo, args=[self._client], daemon=True).start()
            self.start()

    def _state_changed(self, kazoo_state: str) -> None:  # in kazoo's thread
        if kazoo_state == "CONNECTED":
            self.live_id = int(self._client.client_id[0])
            self.live.set()
            self._changed(kazoo_state, self.live_id)
        else:
            self.live.clear()
            self._changed(kazoo_state, 0)

    def issue(self, request: Request) -> Any:
        """Hand one request to kazoo; returns an IAsyncResult, which :func:`reply_of` reads."""
        client, path = self._client, request.path
        if request.verb == "get":
            return client.get_async(path, watch=request.watch)
        if request.verb == "exists":
            return client.exists_async(path, watch=request.watch)
        if request.verb == "children":
            return client.get_children_async(path, watch=request.watch)
        if request.verb == "create":
            return client.create_async(path, request.value, ephemeral=request.ephemeral)
        if request.verb == "set":
            return client.set_async(path, request.value, version=request.version)
        if request.verb == "sync":
            return client.sync_async(path)
        if request.verb == "multi":
            return self._call(MultiWrite.encode(client.chroot, self._acl, request.parts, _error_of))
        assert request.verb == "delete", request.verb
        return client.delete_async(path, version=request.version)

    def issue_reads(self, requests: Sequence[Request]) -> Any:
        """Hand reads to kazoo as one request; returns an IAsyncResult, which :func:`replies_of` reads."""
        return self._call(MultiRead.encode(self._client.chroot, requests))

    def _call(self, request: MultiRead | MultiWrite) -> Any:
        """Hand kazoo a request that it has no method for."""
        result = self._client.handler.async_result()
        self._client._call(request, result)
        return result

    @property
    def _acl(self) -> Sequence[Any]:
        """Of the nodes that are created."""
        acl: Sequence[Any] = self._client.default_acl or OPEN_ACL_UNSAFE
        return acl


def _stop_kazoo(client: Any) -> None:
    try:
        client.stop()
        client.close()
    except (refusals.KazooException, OSError) as error:
        log.debug("closing the ZooKeeper session: %s", error)


def _error_of(code: int) -> Exception:
    error: Exception = refusals.EXCEPTIONS[code]()
    return error


def reply_of(verb: str, result: Any) -> Any:
    """Converts kazoo's result to an operation's reply; None when the request must be sent again.

    Raises:
        ZooKeeperAway: no answer (yet), or the session is over.
        ConfigFault: ZooKeeper refuses us; a person must change its permissions.
    """
    value = _value_of(result)
    if value is _LOST:
        return None
    if isinstance(value, Refused):
        return value
    if verb == "get":
        return _node(value[0], value[1])
    if verb == "exists":
        return Refused.NO_NODE if value is None else _node(b"", value)
    if verb == "children":
        return value
    if verb == "multi":
        return _reply_of_multi(value)
    return value.version if verb == "set" else 0


def replies_of(requests: Sequence[Request], result: Any) -> list[Any] | None:
    """The same for reads that were sent as one request, one reply for each.  Raises as :func:`reply_of`."""
    parts = _value_of(result)
    if parts is _LOST:
        return None
    replies = []
    for request, part in zip(requests, parts, strict=True):
        if isinstance(part, int):
            refusal = refusals.EXCEPTIONS.get(part, refusals.ZookeeperError)
            if refusal in (refusals.NoAuthError, refusals.AuthFailedError):
                raise ConfigFault(f"ZooKeeper refuses access to {request.path}; correct its ACLs")
            if refusal not in _REFUSED:
                raise ZooKeeperAway(f"ZooKeeper cannot serve this now: {refusal.__name__}")
            replies.append(_REFUSED[refusal])
        else:
            replies.append(part)
    return replies


def _value_of(result: Any) -> Any:
    """What kazoo's result has: a value, a Refused, or _LOST.  Raises as :func:`reply_of`."""
    try:
        return result.get(block=False)
    except tuple(_REFUSED) as refusal:
        return _REFUSED[type(refusal)]
    except _REPEAT:
        return _LOST
    except KazooTimeoutError:
        raise ZooKeeperAway("ZooKeeper did not answer in time; try again") from None
    except refusals.BadArgumentsError as refusal:
        raise InvalidRequest(f"ZooKeeper does not accept this: {refusal!r}") from None
    except refusals.UnimplementedError:
        raise ConfigFault("the ZooKeeper ensemble is too old: it must be 3.6 or newer") from None
    except (refusals.NoAuthError, refusals.AuthFailedError) as refusal:
        raise ConfigFault(f"ZooKeeper refuses access ({refusal!r}); correct its ACLs") from None
    except (refusals.KazooException, RuntimeError, OSError) as error:  # also what ends kazoo's own thread
        raise ZooKeeperAway(f"ZooKeeper cannot serve this now: {error!r}") from None


def _node(value: bytes, stat: Any) -> Node:
    return Node(value, stat.version, stat.ephemeralOwner, stat.mtime, stat.dataLength, stat.pzxid)


def _reply_of_multi(results: list[PartReply]) -> list[PartReply] | Failed:
    """``results``: for each part the version of its node; or, of a failed multi, an error for each."""
    if not (results and isinstance(results[0], Exception)):
        return results
    for index, result in enumerate(results):
        if type(result) in _REFUSED:
            return Failed(index, _REFUSED[type(result)])
        if isinstance(result, (refusals.NoAuthError, refusals.AuthFailedError)):
            raise ConfigFault(f"ZooKeeper refuses access ({result!r}); correct its ACLs")
    raise ZooKeeperAway(f"ZooKeeper cannot serve this now: {results!r:.200}")
