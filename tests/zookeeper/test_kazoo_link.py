"""appliance.zookeeper.kazoo_link: what a request to ZooKeeper takes."""

from __future__ import annotations

import threading

from appliance.zookeeper.kazoo_link import DirectHandler


def test_who_waits_for_an_answer_is_told_in_the_thread_that_has_read_it() -> None:
    handler = DirectHandler()
    handler.start()
    try:
        told: list[threading.Thread] = []
        result = handler.async_result()
        result.rawlink(lambda _: told.append(threading.current_thread()))
        result.set(b"answer")
        assert told == [threading.current_thread()]
    finally:
        handler.stop()
