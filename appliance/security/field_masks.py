"""Hides fields of messages by name: in JSON at any depth, elements of XML, ``name=value`` and ``name: value``, headers.

A rule has a pattern of topics (``*`` stands for any number of characters) and names of fields, without regard to case::

    payments-*: card, iban; *: password, token

What is hidden becomes MASK, of any type, with all that is in it.  Text in JSON may be JSON again, and so on.  A mask
hides rather too much than too little: an object in text is hidden with all behind it, a word with the groups of digits
behind it (``card: 4111 1111 1111 1111``), an element of XML with all up to the last end of one of its name, or to the
end of the text, in whatever namespace, and a value that is no text, or broken JSON with escaped characters, becomes
MASK as a whole when it may have one of the names.  Fields are found by their names only: what stands under another
name, or without one, is shown.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..errors import BadValue
from ..topic_rules import parse_rules
from .masking import MASK

HIDDEN: Final = MASK.encode()
FIELDS_MAX: Final = 100
"""Names of fields in one rule."""
_FIELD: Final = re.compile(r"[A-Za-z0-9_.@$-]{1,100}")
_VALUE: Final = (
    rb"""(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|(?P<run>\\{1,15})"(?:(?!(?<!\\)(?P=run)").)*(?:(?P=run)")?|[\[{].*"""
    rb"""|(?:(?:Bearer|Basic|Digest)\s+)?[^\s,;&)}\]]+(?:[ \t]+(?-i:[A-Z0-9]{4}|\d{2,6})(?![\w.:=/]))*)"""
)
"""A quoted text, also one that is cut, or whose quotes are escaped, some times over; an object with all behind it; else
a word, with groups of digits as people write numbers of cards and accounts."""
_ELEMENT: Final = rb"""(?:(?:[^<>"']|"[^"]*"|'[^']*')*/>|.*</\1\s*>|.*)"""
"""What stands behind the name of an element: attributes only; else all up to where the last one of the name ends."""
_ESCAPE: Final = b"\\u"
"""A name in JSON may be spelled with it."""


class FieldMask:
    """The names that are hidden in messages of one topic."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(sorted({name.lower() for name in names}))
        self._names = frozenset(self.names)
        words = b"|".join(re.escape(name.encode()) for name in sorted(self.names, key=len, reverse=True))
        self._mentioned = re.compile(b"(?i:" + words + b")")
        before = (
            rb"""(?is)(?<![\w.@$-])((?:\\{0,15}["'])?(?:""" + words + rb""")(?:\\{0,15}["'])?\s*(?:=>|:=|[=:])\s*)"""
        )
        self._pairs = re.compile(before + _VALUE)
        name = rb"<((?:[\w.-]{1,100}:)?(?:" + words + rb"))(?=[\s/>])"
        self._elements = re.compile(rb"(?is)" + name + _ELEMENT)

    def hides(self, name: str) -> bool:
        return name.lower() in self._names

    def value(self, value: bytes | None) -> bytes | None:
        """A value or a key without what is hidden; the same object if nothing is."""
        if value is None:
            return None
        begins_as_json = value.lstrip()[:1] in (b"{", b"[")
        if not (self._mentioned.search(value) or (begins_as_json and _ESCAPE in value)):
            is_wide = b"\0" in value and self._mentioned.search(value.replace(b"\0", b""))  # UTF-16 or UTF-32
            return HIDDEN if is_wide else value
        if begins_as_json:
            try:
                return self._json(value)
            except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
                if _ESCAPE in value:
                    return HIDDEN
        try:
            value.decode()
        except UnicodeDecodeError:
            return HIDDEN
        return self._pairs.sub(rb"\1" + HIDDEN, self._elements.sub(rb"<\1>" + HIDDEN + rb"</\1>", value))

    def decoded(self, value: Any) -> Any:
        """What ``msgspec`` and decoders make of a value, without what is hidden; the same object if nothing is.

        Bytes are hidden as a whole where they have something to hide, also as base64: as text they would be found.

        Raises:
            RecursionError: it is nested too deeply.
        """
        return self._masked(value, may_be_bytes=True)

    def _json(self, value: bytes) -> bytes:
        """Raises msgspec.MsgspecError, ValueError, OverflowError, RecursionError: it is no JSON, or cannot be read."""
        decoded = msgspec.json.decode(value)
        hidden = self._masked(decoded)
        if hidden is decoded and not (_ESCAPE in value or self._pairs.search(value)):
            return value
        # Also where nothing is hidden: of a name that stands there twice only the last was decoded.
        return msgspec.json.encode(hidden)

    def _masked(self, decoded: Any, *, may_be_bytes: bool = False) -> Any:
        """A value of JSON without what is hidden; the same object if nothing is."""
        if isinstance(decoded, dict):
            shown = {
                name: MASK if self._hides_key(name) else self._masked(inner, may_be_bytes=may_be_bytes)
                for name, inner in decoded.items()
            }
            return shown if any(shown[name] is not inner for name, inner in decoded.items()) else decoded
        if isinstance(decoded, list):
            inners = [self._masked(inner, may_be_bytes=may_be_bytes) for inner in decoded]
            return (
                inners if any(masked is not other for masked, other in zip(inners, decoded, strict=True)) else decoded
            )
        if may_be_bytes and self._has_hidden_bytes(decoded):
            return MASK
        if isinstance(decoded, str):
            text = decoded.encode("utf-8", "surrogatepass")
            shown_text = self.value(text)
            assert shown_text is not None
            return decoded if shown_text == text else shown_text.decode("utf-8", "surrogatepass")
        return decoded

    def _hides_key(self, name: Any) -> bool:
        if isinstance(name, bytes):
            name = name.decode(errors="replace")
        return isinstance(name, str) and self.hides(name)

    def _has_hidden_bytes(self, decoded: Any) -> bool:
        """Whether it is bytes, or base64 of bytes, in which something would be hidden."""
        if isinstance(decoded, str):
            try:
                decoded = b64decode(decoded, validate=True)
            except ValueError:
                return False
        return isinstance(decoded, bytes) and self.value(decoded) != decoded

    def headers(self, headers: Sequence[tuple[str, bytes | None]]) -> tuple[tuple[str, bytes | None], ...]:
        return tuple((name, HIDDEN if value and self.hides(name) else self.value(value)) for name, value in headers)


class FieldMasks:
    """The rules of all topics; see the module's docstring for their text."""

    def __init__(self, text: str) -> None:
        """Raises BadValue: says what is wrong."""
        self._rules: list[tuple[re.Pattern[str], list[str]]] = []
        for pattern, listed in parse_rules(text, "payments-*: card, iban"):
            names = [name.strip() for name in listed.split(",") if name.strip()]
            for name in names:
                if not _FIELD.fullmatch(name):
                    raise BadValue(f"{name!r:.100}: a field is called by letters, digits, '_', '-', '.', '@' and '$'")
            if not 0 < len(names) <= FIELDS_MAX:
                raise BadValue(f"a rule has 1 to {FIELDS_MAX} fields, not {len(names)}")
            self._rules.append((pattern, names))

    def mask_of_topic(self, topic: str) -> FieldMask | None:
        """What all rules together hide in a topic; None: nothing."""
        names = [name for pattern, listed in self._rules if pattern.fullmatch(topic) for name in listed]
        return FieldMask(names) if names else None
