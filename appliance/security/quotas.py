"""Limits what each user and client id may use: bytes per second in and out, requests per second.

A :class:`Quota` belongs to an entity, as in Kafka: a user, a client id, or both, each by name or as the default of all
that have no quota of their own.  For each key, the first of these entities that sets it holds::

    entity                                  clients that share the limit
    user NAME, client id NAME               those of that user with that client id
    user NAME, default client id            as above
    user NAME                               all of that user
    default user, client id NAME            those of one user with that client id
    default user, default client id         as above
    default user                            all of one user
    client id NAME                          all with that client id
    default client id                       as above

Clients that share a limit share a :class:`Bucket` of tokens.  It is filled at the rate of the limit, up to what
``BURST_MS`` bring.  A request is never refused: it takes what it needs, and the debt is how long the client is
throttled.  The debt belongs to the clients that share the limit, and not to the connection that made it.

Several processes serve the clients of one appliance.  Each has its own bucket for a limit, and takes from it what the
others have used, as soon as they report it (:meth:`Bucket.report`).  So a limit holds for all of them together, late
by the time between two reports.

Bounds: ``QUOTAS_MAX`` quotas; a debt of at most ``DEBT_MS_MAX``, of which a client is told ``THROTTLE_MS_MAX`` at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from ..errors import InvalidRequest

USER: Final = "user"
CLIENT_ID: Final = "client-id"
ENTITY_TYPES: Final = (CLIENT_ID, USER)
DEFAULT: Final = ""
"""The name of an entity that stands for all without a quota of their own."""
BYTES_IN: Final = "producer_byte_rate"
BYTES_OUT: Final = "consumer_byte_rate"
REQUESTS: Final = "request_rate"
KEYS: Final = (BYTES_IN, BYTES_OUT, REQUESTS)
"""What can be limited, per second.  The first two are Kafka's; Kafka has no limit of requests by their number."""
ABSENT_KEYS: Final = ("request_percentage", "controller_mutation_rate", "connection_creation_rate")
"""Kafka's other keys."""

QUOTAS_MAX: Final = 10_000
RATE_MAX: Final = 2.0**53
"""Larger numbers are not exact."""
BURST_MS: Final = 1_000
THROTTLE_MS_MAX: Final = 60_000
DEBT_MS_MAX: Final = 600_000
"""A larger debt is forgiven: one request that was too large does not keep a client out for hours."""
REPORT_MS: Final = 200
"""How often processes tell each other what their clients have taken."""
NAME_CHARACTERS_MAX: Final = 255

EntityPart = tuple[str, str]
"""The type of an entity ("user" or "client-id"), and its name or DEFAULT."""


class Quota(Struct, frozen=True, order=True, array_like=True):
    """The limits of one entity.  Both fields are sorted.

    ``limits``: pairs of one of KEYS and the amount per second.
    """

    entity: Annotated[tuple[EntityPart, ...], Meta(min_length=1, max_length=len(ENTITY_TYPES))]
    limits: Annotated[tuple[tuple[str, float], ...], Meta(max_length=len(KEYS))]


def check_entity(parts: Iterable[tuple[str, str | None]]) -> tuple[EntityPart, ...]:
    """The entity with these parts; a name None is the default.

    Raises:
        InvalidRequest: the message says what is wrong.
    """
    entity = list(parts)
    types = [part for part, _ in entity]
    if not entity or len(set(types)) != len(types) or not set(types) <= set(ENTITY_TYPES):
        raise InvalidRequest(f"the entity of a quota is a {USER}, a {CLIENT_ID}, or one of each, not {types}")
    for part, name in entity:
        if name is not None and not 0 < len(name) <= NAME_CHARACTERS_MAX:
            raise InvalidRequest(f"the name of a {part} has 1 to {NAME_CHARACTERS_MAX} characters, not {len(name)}")
    return tuple(sorted((part, name or DEFAULT) for part, name in entity))


def check_limit(key: str, rate: float) -> None:
    """Raises InvalidRequest: there is no such key, or no such rate."""
    if key in ABSENT_KEYS:
        raise InvalidRequest(f"{key} is not measured here: use {', '.join(KEYS)}")
    if key not in KEYS:
        raise InvalidRequest(f"{key!r:.100} cannot be limited: use {', '.join(KEYS)}")
    if not 0 < rate <= RATE_MAX:
        raise InvalidRequest(f"{key} = {rate}: must be above 0, and at most {RATE_MAX:.0f}")


def changed(quotas: Iterable[Quota], entity: tuple[EntityPart, ...], limits: Mapping[str, float | None]) -> list[Quota]:
    """The quotas with these limits set, or (None) removed.

    Raises:
        InvalidRequest: see :func:`check_limit`; or there would be more than QUOTAS_MAX quotas.
    """
    by_entity = {quota.entity: dict(quota.limits) for quota in quotas}
    own = by_entity.setdefault(entity, {})
    for key, rate in limits.items():
        if rate is None:
            own.pop(key, None)
        else:
            check_limit(key, rate)
            own[key] = rate
    if not own:
        del by_entity[entity]
    if len(by_entity) > QUOTAS_MAX:
        raise InvalidRequest(f"there are {QUOTAS_MAX} quotas already: remove some, or use the default of users")
    return sorted(Quota(entity, tuple(sorted(limits.items()))) for entity, limits in by_entity.items())


class Sharers(NamedTuple):
    """The clients that share a limit: those with this key, user and client id; "" is any."""

    key: str
    user: str
    client_id: str


class Limit(NamedTuple):
    sharers: Sharers
    rate: float


class Quotas:
    """All quotas, by entity.  Immutable: a change makes a new one."""

    def __init__(self, quotas: Iterable[Quota] = ()) -> None:
        self._by_entity = {quota.entity: dict(quota.limits) for quota in quotas}

    def __bool__(self) -> bool:
        return bool(self._by_entity)

    def limits(self, user: str, client_id: str) -> dict[str, Limit]:
        """What holds for a client, by key."""
        limits: dict[str, Limit] = {}
        for entity, shared_user, shared_client in _entities(user, client_id):
            for key, rate in self._by_entity.get(entity, {}).items():
                if key not in limits:
                    limits[key] = Limit(Sharers(key, shared_user, shared_client), rate)
        return limits


def _entities(user: str, client_id: str) -> Iterator[tuple[tuple[EntityPart, ...], str, str]]:
    """The entities that may limit a client, the first one first, each with the user and client id that share it."""
    for named_user in (user, DEFAULT):
        for named_client in (client_id, DEFAULT):
            yield ((CLIENT_ID, named_client), (USER, named_user)), user, client_id
        yield ((USER, named_user),), user, ""
    for named_client in (client_id, DEFAULT):
        yield ((CLIENT_ID, named_client),), "", client_id


class Bucket:
    """The tokens of one limit in one process.  Times are ms of a monotonic clock."""

    __slots__ = ("__weakref__", "_level", "_since_ms", "_unreported", "rate", "sharers")

    def __init__(self, limit: Limit, now_ms: int) -> None:
        self.sharers, self.rate = limit
        self._level = self.rate * BURST_MS / 1000
        self._since_ms = now_ms
        self._unreported = 0

    def take_tokens(self, amount: int, now_ms: int) -> int:
        """Take tokens; return for how many ms the client is to be throttled."""
        self._unreported += amount
        return self.take_for_others(amount, now_ms)

    def take_for_others(self, amount: int, now_ms: int) -> int:
        """As :meth:`take_tokens`, for clients of other processes."""
        rate = self.rate
        level = min(rate * BURST_MS / 1000, self._level + rate * (now_ms - self._since_ms) / 1000) - amount
        self._level = max(level, -rate * DEBT_MS_MAX / 1000)
        self._since_ms = now_ms
        return 0 if self._level >= 0 else min(int(-self._level * 1000 / rate) + 1, THROTTLE_MS_MAX)

    def full_ms(self, now_ms: int) -> int:
        """In how many ms the bucket is as full as a new one; at most 0 if it is."""
        return int((self.rate * BURST_MS / 1000 - self._level) * 1000 / self.rate) + 1 - (now_ms - self._since_ms)

    def set_rate(self, rate: float, now_ms: int) -> None:
        """Another rate from now on.  What is owed stays owed."""
        self.take_for_others(0, now_ms)
        self.rate = rate
        self.take_for_others(0, now_ms)

    def report(self, now_ms: int) -> int:
        """How much the clients of this process have taken since the last report.

        Of a report that comes late, as while the coordinator is away, what was taken long ago has flowed back since:
        it is at most what is missing now, and what flows back between two reports.
        """
        missing = self.rate * (max(0, self.full_ms(now_ms)) + REPORT_MS) / 1000
        amount, self._unreported = min(self._unreported, int(missing)), 0
        return amount
