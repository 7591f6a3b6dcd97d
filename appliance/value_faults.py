"""Says in plain words what msgspec finds wrong with values that somebody has sent or written.

Its own texts name types of Python and regular expressions: "Expected `str` matching regex '^[a-z]+$' - at `$.name`".
"""

from __future__ import annotations

import re
from typing import Final

TYPES: Final = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}
"""What msgspec calls a type -> what a person does."""
_PLACE: Final = re.compile(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", re.DOTALL)
_FORMS: Final = (
    (r"Object missing required field `(.*)`", r"\1 is missing"),
    (r"Object contains unknown field `(.*)`", r"\1 is not known here"),
    (r"Expected `(?:str|array|object)` of length >= 1", "must not be empty"),
    (r"Expected `str` of length >= (\d+)", r"must have at least \1 characters"),
    (r"Expected `str` of length <= (\d+)", r"must have at most \1 characters"),
    (r"Expected `(?:array|object)` of length >= (\d+)", r"must have at least \1 entries"),
    (r"Expected `(?:array|object)` of length <= (\d+)", r"must have at most \1 entries"),
    (r"Expected `str` matching regex .*", "has characters that are not allowed here, or another form"),
    (r"Expected `(?:int|float)` >= (.+)", r"must be \1 or more"),
    (r"Expected `(?:int|float)` <= (.+)", r"must be \1 or less"),
    (r"Invalid enum value (.*)", r"\1 is not one of the values that there are"),
)
_TYPE: Final = re.compile(r"Expected `([a-z |]+)`, got `([a-z]+)`")


def in_words(error: Exception) -> str:
    """What is wrong, behind the name of the value if there is one: ``acls[0].name: must not be empty``."""
    found = _PLACE.fullmatch(str(error))
    what, place = (found[1], found[2]) if found is not None else (str(error), "")
    return f"{place}: {_told(what)}" if place else _told(what)


def _told(what: str) -> str:
    for form, words in _FORMS:
        if re.fullmatch(form, what, re.DOTALL):
            return re.sub(form, words, what, flags=re.DOTALL)
    if types := _TYPE.fullmatch(what):
        wanted = " or ".join(TYPES.get(name, name) for name in types[1].split(" | "))
        return f"must be {wanted}, and is {TYPES.get(types[2], types[2])}"
    return what
