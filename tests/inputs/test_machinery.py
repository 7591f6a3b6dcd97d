"""Topics that senders and names of files choose."""

from __future__ import annotations

import pytest

from appliance.errors import BadValue
from appliance.inputs.machinery import Topics


def test_a_template_makes_only_so_many_topics_and_none_of_the_system() -> None:
    topics = Topics("{app}", 2)
    assert topics.of({"app": "shop"}) == "shop"
    for reserved in ("__consumer_offsets", ".", "", "x" * 300):
        with pytest.raises(BadValue, match="no such name"):
            topics.of({"app": reserved})
    assert topics.of({"app": "a b/c"}) == "a_b_c"
    with pytest.raises(BadValue, match="topics_max"):
        topics.of({"app": "third"})
    assert topics.of({"app": "shop"}) == "shop"
