"""appliance.security.masking: known secrets and what looks like one go; everything else stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.security.masking import MASK, Masking

KEY = "-----BEGIN PRIVATE KEY-----\nMIIabc\ndef\n-----END PRIVATE KEY-----"


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="*"), min_size=6, max_size=20), min_size=1),
    st.lists(st.text(max_size=10), min_size=1),
)
def test_no_known_secret_is_left(secrets: list[str], between: list[str]) -> None:
    text = "".join(piece + secret for piece in between for secret in secrets)
    masked = Masking(secrets).text(text)
    assert not [secret for secret in secrets if secret.strip() and secret in masked]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"before {KEY} after", "before *** after"),
        (KEY[:40], "***"),
        ("https://user:pw@example.net/x", "https://***@example.net/x"),
        ("password=hunter2 user=bob", "password=*** user=bob"),
        ('"Passwords": "a b", "n": 1', '"Passwords": ***, "n": 1'),
        ("Authorization: Bearer abc.def.ghi", "Authorization: ***"),
        ("authorization=Basic dXNlcg==", "authorization=***"),
        ("GET /hook?token=abc&n=1", "GET /hook?token=***&n=1"),
        ("salt=c2FsdA==,stored_key=a2V5,iterations=4096", "salt=***,stored_key=***,iterations=4096"),
        ('password_file = "/etc/appliance/pw"', 'password_file = "/etc/appliance/pw"'),
        ("clients are refused: bad credentials, 3 since the start", None),
        ("sasl.password of /etc/appliance/token_file is wrong", None),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, left: str | None) -> None:
    assert Masking().text(text) == (text if left is None else left)


def test_a_short_secret_is_masked_as_a_word() -> None:
    assert Masking(["cat"]).text("cat: concatenate 'cat'") == f"{MASK}: concatenate '{MASK}'"


def test_values_and_names_of_json_are_masked() -> None:
    secret = 'with "quotes" and \\'
    value = {"a": [secret, 1, None, (secret,)], secret: {"b": f"x{secret}x"}}
    assert Masking([secret]).value(value) == {"a": [MASK, 1, None, [MASK]], MASK: {"b": f"x{MASK}x"}}
