"""Matches patterns of topic names, which members of a group register, in bounded time and alike everywhere.

A member evaluates the patterns of all members, and all must come to the same assignment.  So a match may neither take
long (Python's ``re`` needs exponential time for ``(a+)+b``) nor differ between machines, as a time limit would make it.
Hence a dialect of its own, the same under every version of Python::

    a \\.              a character; one of . ^ $ * + ? { } [ ] ( ) | \\ stands for itself behind a backslash
    .  [a-z_]  [^0-9]  any character, one of a class, any but those;  \\d \\w \\s and \\D \\W \\S, ASCII only
    x*  x+  x?  x{2}  x{2,}  x{2,5}    repeated (a ? behind it changes nothing: only whole names match)
    (x)  (?:x)  (?P<name>x)            a group
    x|y                                one or the other
    (?=x)  (?!x)                       followed, not followed by x
    ^  $                               the beginning, the end

References, look-behind, flags and ``\\b`` are left out: they cannot be bounded, or mean nothing for whole names.

Method: :class:`Pattern` walks its parts once for a whole *set* of positions in the name, the bits of an integer, so
that alternatives are never tried one by one.  A repeated class costs one addition (MatchStar: Cameron et al.,
"Bitwise data parallelism in regular expression matching", PACT 2014).  Other repetitions cost at most a round for each
character.  The cost of nested ones is bounded by counting steps: a name that needs more than :data:`STEPS_MAX` steps
does not match, on any machine.
"""

from __future__ import annotations

import functools
import string
from typing import Final, NamedTuple

from ..errors import BadValue

CHARACTERS_MAX: Final = 1_000
DEPTH_MAX: Final = 20
REPEAT_MAX: Final = 1_000
STEPS_MAX: Final = 4_000
CACHED_MAX: Final = 100_000
"""Most cached results, one for each pair of pattern and name."""

SPECIAL: Final = frozenset(".^$*+?{}[]()|\\")
CLASSES: Final = {
    "d": frozenset(string.digits),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
    "s": frozenset(string.whitespace),
}


class _Set(NamedTuple):
    """One character of the set, or (``negated``) any other one."""

    characters: frozenset[str]
    negated: bool = False


class _Sequence(NamedTuple):
    parts: tuple[_Node, ...]


class _Choice(NamedTuple):
    options: tuple[_Node, ...]


class _Repeat(NamedTuple):
    inner: _Node
    least: int
    most: int | None


class _Look(NamedTuple):
    inner: _Node
    negated: bool


class _Edge(NamedTuple):
    at_end: bool


_Node = _Set | _Sequence | _Choice | _Repeat | _Look | _Edge


class _StepsOver(Exception):
    """The match needs more than STEPS_MAX steps."""


class Pattern:
    """A pattern in the dialect of this module.

    Raises:
        BadValue: the text is no pattern; the message says where and why.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._node = _Parser(text).whole()

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        walk = _Walk(name)
        try:
            return bool(walk.step(self._node, 1) & walk.end)
        except _StepsOver:
            return False


@functools.lru_cache(CACHED_MAX)
def matches(text: str, name: str) -> bool:
    """Whether the pattern ``text`` matches the whole name."""
    return parse(text).matches(name)


@functools.lru_cache(1_000)
def parse(text: str) -> Pattern:
    return Pattern(text)


class _Walk:
    """Matches one name.  Bit i of a set of positions stands for the position before character i."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.end = 1 << len(name)
        self._steps = 0
        self._where: dict[_Set, int] = {}

    def step(self, node: _Node, starts: int) -> int:
        """The positions that a match of ``node`` reaches from any of ``starts``."""
        if not starts:
            return 0
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise _StepsOver
        match node:
            case _Set():
                return (starts & self._positions(node)) << 1
            case _Sequence(parts):
                return functools.reduce(lambda reached, part: self.step(part, reached), parts, starts)
            case _Choice(options):
                return functools.reduce(lambda reached, option: reached | self.step(option, starts), options, 0)
            case _Repeat():
                return self._repeat(node, starts)
            case _Look(inner, negated):
                return sum(at for at in _bits(starts) if bool(self.step(inner, at)) != negated)
            case _Edge(at_end):
                return starts & (self.end if at_end else 1)

    def _repeat(self, node: _Repeat, starts: int) -> int:
        inner = node.inner
        for _ in range(node.least):
            starts = self.step(inner, starts)
        if node.most is None and isinstance(inner, _Set):
            positions = self._positions(inner)
            return ((starts & positions) + positions) ^ positions | starts
        reached = fresh = starts
        repeats_left = len(self._name) + 1 if node.most is None else node.most - node.least
        while fresh and repeats_left > 0:
            repeats_left -= 1
            fresh = self.step(inner, fresh) & ~reached
            reached |= fresh
        return reached

    def _positions(self, set_: _Set) -> int:
        """The positions before a character of the set."""
        positions = self._where.get(set_)
        if positions is None:
            characters, negated = set_
            positions = sum(1 << i for i, character in enumerate(self._name) if (character in characters) != negated)
            self._where[set_] = positions
        return positions


def _bits(positions: int) -> list[int]:
    bits = []
    while positions:
        lowest = positions & -positions
        bits.append(lowest)
        positions ^= lowest
    return bits


class _Parser:
    """Parses a pattern by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def whole(self) -> _Node:
        if len(self._text) > CHARACTERS_MAX:
            raise BadValue(f"a pattern of {len(self._text)} characters: at most {CHARACTERS_MAX} are allowed")
        node = self._choice()
        if self._at < len(self._text):
            raise self._wrong("a ) without its (")
        return node

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _repeated(self, node: _Node) -> _Node:
        count = self._count()
        if count is None:
            return node
        if isinstance(node, _Look | _Edge):
            raise self._wrong("nothing to repeat")
        least, most = count
        self._take("?")  # lazy: the same names match
        if self._count() is not None or self._take("?"):
            raise self._wrong("repeated twice: put the first into ( )")
        return _Repeat(node, least, most)

    def _count(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        if not self._take("{"):
            return None
        least = self._number()
        most: int | None = least
        if self._take(","):
            most = None if self._peek() == "}" else self._number()
        if not self._take("}") or (most is not None and most < least):
            raise self._wrong("{ } wants one number or two, such as {2} or {2,5}")
        return least, most

    def _number(self) -> int:
        begun = self._at
        while self._peek() in string.digits and self._peek():
            self._at += 1
        digits = self._text[begun : self._at]
        if not digits or len(digits) > 4 or int(digits) > REPEAT_MAX:
            raise self._wrong(f"{{ }} wants numbers up to {REPEAT_MAX}")
        return int(digits)

    def _atom(self) -> _Node:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if character == ".":
            return _Set(frozenset(), True)
        if character in "^$":
            return _Edge(character == "$")
        if character == "\\":
            return self._escaped()
        if character in SPECIAL:
            raise self._wrong(f"{character!r} has nothing before it; write it with a backslash")
        return _Set(frozenset(character))

    def _group(self) -> _Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._wrong(f"more than {DEPTH_MAX} ( in each other")
        look = negated = False
        if self._take("?"):
            kind = self._next()
            look, negated = kind in "=!", kind == "!"
            if kind == "P" and self._take("<"):
                while self._next() != ">":
                    pass
            elif not look and kind != ":":
                raise self._wrong("after (? only : = ! and P<name> are known")
        node = self._choice()
        if not self._take(")"):
            raise self._wrong("a ( without its )")
        self._depth -= 1
        return _Look(node, negated) if look else node

    def _class(self) -> _Set:
        negated = self._take("^")
        characters: set[str] = set()
        first = True
        while first or self._peek() != "]":
            first = False
            low = self._member()
            if len(low) == 1 and self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._member()
                if len(high) != 1 or max(high) < max(low) or not max(high).isascii():
                    raise self._wrong("a range in [ ] runs from an ASCII character to a later one")
                low = frozenset(map(chr, range(ord(max(low)), ord(max(high)) + 1)))
            characters |= low
        self._at += 1
        return _Set(frozenset(characters), negated)

    def _member(self) -> frozenset[str]:
        character = self._next()
        if character != "\\":
            return frozenset(character)
        inner = self._escaped()
        if inner.negated:
            raise self._wrong("\\D, \\W and \\S stand outside of [ ] only")
        return inner.characters

    def _escaped(self) -> _Set:
        character = self._next()
        if character.lower() in CLASSES:
            return _Set(CLASSES[character.lower()], character.isupper())
        if character.isalnum():
            raise self._wrong(f"\\{character} is not known")
        return _Set(frozenset(character))

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise self._wrong("it ends too early")
        self._at += 1
        return character

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._at += 1
        return True

    def _wrong(self, why: str) -> BadValue:
        return BadValue(f"not a pattern of topics: {why} (character {self._at} of {self._text[:80]!r})")
