"""appliance.security.certificate_names: users of certificates, by the rules of Kafka and by alternative names;
subjects, of which no two different ones share a text.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.addresses import Listener
from appliance.errors import BadValue
from appliance.security.certificate_names import CertificateNames, parse_rules, subject_text
from appliance.security.configuration import Security, Tls, faults_of

OF_KAFKA = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    " RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
)
"""The example of Kafka's documentation, and what its tests expect of it."""


def certificate(*parts: tuple[str, str], names: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
    """As ssl shows it: the most general part first."""
    return {"subject": tuple(((name, value),) for name, value in reversed(parts)), "subjectAltName": names}


def mapped(rules: str, name: str) -> str | None:
    return next((found for rule in parse_rules(rules) if (found := rule(name)) is not None), None)


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("CN=duke.a,ST=MD", "DUKE.A"),
        ("O=Org", "O=Org"),
    ],
)
def test_the_rules_are_those_of_kafka(name: str, user: str) -> None:
    assert mapped(OF_KAFKA, name) == user


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        (r"RULE:^CN=(\w+)$/user-$1/", "CN=web", "user-web"),
        (r"RULE:^spiffe:\/\/([^\/]+)\/(.*)$/$2@$1/", "spiffe://example/web", "web@example"),
        (r"RULE:CN=(a)?b/x$1x/", "CN=b", "xx"),
        (r"RULE:a/\$1/", "a", "$1"),
        ("RULE:b/c/\nRULE:a/b/", "a", "b"),
        ("RULE:CN=web/w/", "CN=web,O=x", None),
    ],
)
def test_a_rule_matches_the_whole_name(rules: str, name: str, user: str | None) -> None:
    assert mapped(rules, name) == user


@pytest.mark.parametrize(
    "rules", ["", " ", "default", "RULE:a", "RULE:a/b", "RULE:a/b/X", "RULE:(/b/", "RULE:a/$1/", "DEFAULT;DEFAULT",
              r"RULE:(a)\1/b/", "RULE:(?=a)a/b/"],
)  # fmt: skip
def test_what_is_no_rule_is_refused_by_the_configuration(rules: str) -> None:
    listeners = [Listener("kafka", "PLAINTEXT", "127.0.0.1:1")]
    (fault,) = faults_of(listeners, [], Tls(principal_rules=rules), Security())
    assert fault.startswith("tls.principal_rules: ")


@given(st.text(), st.sampled_from([OF_KAFKA, "DEFAULT", r"RULE:(.*)/$1/L"]))
def test_whatever_the_name_there_is_a_user_or_a_reason(name: str, rules: str) -> None:
    names = CertificateNames("uri", rules)
    try:
        user = names.user(certificate(names=(("URI", name),)))
        assert user and user.isprintable() and len(user) <= 249
    except BadValue as error:
        assert "tls.principal_" in str(error)


def test_alternative_names_count_by_kind() -> None:
    names = (("DNS", "web.example"), ("URI", "spiffe://example/web"), ("URI", "urn:2"), ("email", "a@b"))
    shown = certificate(("commonName", "web"), ("organizationName", "Example"), names=names)
    found = {kind: CertificateNames(kind, "DEFAULT").user(shown) for kind in ("subject", "dns", "uri", "email")}
    assert found == {
        "subject": "CN=web,O=Example", "dns": "web.example", "uri": "spiffe://example/web", "email": "a@b",
    }  # fmt: skip


@pytest.mark.parametrize("source", ["subject", "uri"])
def test_a_certificate_without_the_name_is_nobody_and_not_anonymous(source: str) -> None:
    names = CertificateNames(source, "DEFAULT")
    assert names.user({}) == names.user(None) == "", "no certificate at all"
    with pytest.raises(BadValue, match=f"no {source}"):
        names.user(certificate(names=(("DNS", "web.example"),)))


def test_a_name_that_no_rule_matches_is_refused() -> None:
    with pytest.raises(BadValue, match=r"no rule of tls\.principal_rules"):
        CertificateNames("subject", "RULE:^CN=web$/web/").user(certificate(("commonName", "app")))


# ---- subjects


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
