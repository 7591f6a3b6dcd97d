"""Quotas have Kafka's precedence, and a bucket lets its clients use the rate and no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import InvalidRequest
from appliance.security import quotas
from appliance.security.quotas import (
    BURST_MS,
    BYTES_IN,
    BYTES_OUT,
    DEBT_MS_MAX,
    REPORT_MS,
    REQUESTS,
    THROTTLE_MS_MAX,
    Bucket,
    Limit,
    Quota,
    Quotas,
    Sharers,
    changed,
    check_entity,
)

ORDER = [  # Kafka's precedence: the entity, and who shares its limit
    ({"user": "ann", "client-id": "app"}, ("ann", "app")),
    ({"user": "ann", "client-id": None}, ("ann", "app")),
    ({"user": "ann"}, ("ann", "")),
    ({"user": None, "client-id": "app"}, ("ann", "app")),
    ({"user": None, "client-id": None}, ("ann", "app")),
    ({"user": None}, ("ann", "")),
    ({"client-id": "app"}, ("", "app")),
    ({"client-id": None}, ("", "app")),
]


def quota(entity: dict[str, str | None], **limits: float) -> Quota:
    return Quota(check_entity(entity.items()), tuple(sorted(limits.items())))


def bucket_of(rate: float, now_ms: int = 0) -> Bucket:
    return Bucket(Limit(Sharers(BYTES_IN, "ann", ""), rate), now_ms)


def test_the_most_specific_entity_holds() -> None:
    every = [quota(entity, producer_byte_rate=number + 1) for number, (entity, _) in enumerate(ORDER)]
    for first, (_, shared) in enumerate(ORDER):
        found = Quotas(reversed(every[first:])).limits("ann", "app")
        assert found == {BYTES_IN: Limit(Sharers(BYTES_IN, *shared), first + 1)}
    others = [quota({"user": "bob"}, producer_byte_rate=1), quota({"client-id": "other"}, producer_byte_rate=1)]
    assert Quotas(others).limits("ann", "app") == {}


def test_each_key_has_its_own_entity() -> None:
    found = Quotas(
        [quota({"user": "ann"}, producer_byte_rate=5), quota({"user": None}, producer_byte_rate=1, request_rate=2)]
    ).limits("ann", "app")
    assert {key: limit.rate for key, limit in found.items()} == {BYTES_IN: 5, REQUESTS: 2}


@given(
    st.integers(1, 10**6),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 2_000)), min_size=1, max_size=50),
)
def test_a_client_that_waits_as_told_uses_the_rate(rate: int, steps: list[tuple[int, int]]) -> None:
    """In all it has used at most what the rate and one burst bring, and its last request."""
    now = 0
    bucket = bucket_of(rate)
    used = reported = 0
    for amount, pause_ms in steps:
        now += pause_ms
        amount = min(amount, rate * DEBT_MS_MAX // 1000)  # a larger one is forgiven what is above the bound
        assert used <= rate * (now + BURST_MS) / 1000 + 1e-6
        throttle_ms = bucket.take_tokens(amount, now)
        reported += bucket.report(now)
        now += throttle_ms
        used += amount
        while owed_ms := bucket.take_for_others(0, now):
            now += owed_ms
    assert reported == used
    assert bucket.report(now) == 0


def test_what_others_have_used_is_taken_but_not_reported() -> None:
    bucket = bucket_of(1_000)
    assert bucket.take_for_others(1_500, 0) == 501
    assert bucket.report(0) == 0
    assert bucket.take_tokens(0, 501) == 0


def test_a_late_report_has_only_what_has_not_flowed_back() -> None:
    """As after minutes without a coordinator: a client that kept to its rate is not throttled elsewhere for it."""
    rate, seconds = 1_000, 60
    ours, theirs = bucket_of(rate), bucket_of(rate)
    for second in range(seconds):
        assert ours.take_tokens(rate, 1_000 * second) == 0
    now_ms = 1_000 * (seconds - 1)
    amount = ours.report(now_ms)
    assert rate <= amount <= rate * (1 + 2 * REPORT_MS / 1_000)
    assert theirs.take_for_others(amount, now_ms) <= 2 * REPORT_MS
    assert ours.report(now_ms) == 0


def test_a_debt_is_bounded() -> None:
    bucket = bucket_of(10)
    assert bucket.take_tokens(10**9, 0) == THROTTLE_MS_MAX
    assert bucket.take_tokens(0, DEBT_MS_MAX - THROTTLE_MS_MAX // 2) == THROTTLE_MS_MAX // 2 + 1
    assert bucket.take_tokens(0, DEBT_MS_MAX + 1) == 0


@given(st.integers(1, 10**6), st.integers(0, 10**7), st.integers(0, 10**6))
def test_a_bucket_is_full_when_it_says_so(rate: int, amount: int, later_ms: int) -> None:
    """Until then it differs from a new one, afterwards not: whoever forgets it then forgives nothing."""
    bucket = bucket_of(rate)
    bucket.take_tokens(amount, 0)
    now = max(0, bucket.full_ms(0)) + later_ms
    assert bucket.full_ms(now) <= 0
    assert bucket.take_tokens(rate, now) == bucket_of(rate, now).take_tokens(rate, now) == 0
    assert bucket.take_tokens(rate, now) == bucket_of(rate, now).take_tokens(2 * rate, now)


def test_what_is_owed_stays_owed_at_another_rate() -> None:
    bucket = bucket_of(10)
    assert bucket.take_tokens(110, 0) == 10_001
    bucket.set_rate(100, 0)
    assert (bucket.take_tokens(0, 0), bucket.take_tokens(0, 1_001)) == (1_001, 0)


def test_changes_set_and_remove_limits() -> None:
    entity = check_entity([("user", "ann")])
    first = changed([], entity, {BYTES_IN: 10.0, BYTES_OUT: 20.0})
    assert first == [Quota(entity, ((BYTES_OUT, 20.0), (BYTES_IN, 10.0)))]
    assert changed(first, entity, {BYTES_IN: None, REQUESTS: 3.0}) == [
        Quota(entity, ((BYTES_OUT, 20.0), (REQUESTS, 3.0)))
    ]
    assert changed(first, entity, {BYTES_IN: None, BYTES_OUT: None}) == []
    assert changed([], entity, {BYTES_IN: None}) == []


@pytest.mark.parametrize(
    ("key", "rate", "message"),
    [
        ("request_percentage", 5.0, "not measured here"),
        ("speed", 5.0, "cannot be limited"),
        (BYTES_IN, 0.0, "above 0"),
        (BYTES_IN, float("nan"), "above 0"),
        (BYTES_IN, float("inf"), "at most"),
    ],
)
def test_refuses_limits_without_a_meaning(key: str, rate: float, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        changed([], check_entity([("user", "ann")]), {key: rate})


@pytest.mark.parametrize(
    "parts", [[], [("ip", "10.0.0.1")], [("user", "a"), ("user", "b")], [("user", "")], [("user", "x" * 256)]]
)
def test_refuses_entities_that_are_none(parts: list[tuple[str, str | None]]) -> None:
    with pytest.raises(InvalidRequest):
        check_entity(parts)


def test_the_number_of_quotas_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "QUOTAS_MAX", 1)
    one = changed([], check_entity([("user", "ann")]), {BYTES_IN: 1.0})
    with pytest.raises(InvalidRequest, match="already"):
        changed(one, check_entity([("user", "bob")]), {BYTES_IN: 1.0})
