"""Masks secrets in texts that people send to others, such as a report.

A text is masked twice: by the secrets that are known on this host, wherever they stand, and by what usually surrounds a
secret (a private key, ``password=``, a header of HTTP, the user in a URL, Kafka's verifiers), for those that are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

MASK: Final = "***"
WORD_CHARACTERS: Final = 6
"""A known secret that is shorter is masked only where it stands as a word of its own."""

_BLOCKS: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_USER_OF_URL: Final = re.compile(r"(?<=://)[^/\s\"'@]+@")
_NAMED: Final = re.compile(
    r"""((?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|credential|salt|stored_key|server_key)
         s?["']?\s*[:=]\s*|(?:proxy-)?authorization["']?\s*[:=]\s*)
        ("[^"\n]*"|'[^'\n]*'|(?:(?:Bearer|Basic|Digest)\s+)?[^\s,;&"']+)""",
    re.IGNORECASE | re.VERBOSE,
)


class Masking:
    """Masks the ``secrets`` that are known, and what looks like others."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in (secret, quote(secret, safe="")) if form.strip()}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))  # one may be a part of another
        self._known = re.compile("|".join(map(_pattern, longest_first))) if forms else None

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = _BLOCKS.sub(MASK, text)
        text = _USER_OF_URL.sub(f"{MASK}@", text)
        return _NAMED.sub(rf"\1{MASK}", text)

    def value(self, value: Any) -> Any:
        """A value of JSON without secrets: in its texts, and in the names of its objects."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(name)): self.value(member) for name, member in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value


def _pattern(secret: str) -> str:
    escaped = re.escape(secret)
    return escaped if len(secret) >= WORD_CHARACTERS else rf"(?<!\w){escaped}(?!\w)"
