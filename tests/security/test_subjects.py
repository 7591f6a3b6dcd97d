"""appliance.security.subjects: the names of certificates, which no two different ones share."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.security.subjects import subject_text

Subject = tuple[tuple[tuple[str, str], ...], ...]


@pytest.mark.parametrize(
    "subject, text",
    [
        ((), ""),
        (((("countryName", "DE"),), (("organizationName", "A, B"),), (("commonName", "web"),)), r"CN=web,O=A\, B,C=DE"),
        (((("commonName", "a"), ("userId", "b")),), "CN=a+UID=b"),
        (((("commonName", " #x "),),), r"CN=\ #x\ "),
        (((("commonName", "#1"),),), r"CN=\#1"),
        (((("commonName", "a\0b\nc"),),), r"CN=a\00b\0Ac"),
        (((("emailAddress", "a@b"),),), "emailAddress=a@b"),
    ],
)
def test_subjects_are_written_as_kafka_writes_them(subject: Subject, text: str) -> None:
    assert subject_text({"subject": subject}) == text


names = st.sampled_from(["commonName", "organizationName", "1.2.3"])
subjects = st.lists(st.lists(st.tuples(names, st.text(max_size=5)), min_size=1, max_size=2).map(tuple), max_size=3)


@given(subjects.map(tuple), subjects.map(tuple))
def test_different_subjects_have_different_texts_of_one_line(one: Subject, other: Subject) -> None:
    first, second = subject_text({"subject": one}), subject_text({"subject": other})
    assert (first == second) == (one == other)
    assert not re.search(r"[\x00-\x1f\x7f]", first)


def test_no_certificate_has_no_subject() -> None:
    assert subject_text({}) == ""
