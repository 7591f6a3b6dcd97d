"""A fixture for modules that log in often: the iterations of a password are computed once."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from appliance.security import scram


@pytest.fixture(scope="module", autouse=True)
def quickly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scram, "salted_password", functools.cache(scram.salted_password))
        yield
