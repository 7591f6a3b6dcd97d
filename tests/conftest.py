"""Fixtures that many tests share."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from appliance.log import Log

from .support.derived import compare
from .support.long import LONG, SIZE_IS_CHOSEN
from .support.server import Server
from .support.zookeeper_fixture import ensemble, standalone

__all__ = ["ensemble", "standalone"]  # fixtures: here and nowhere else, so that each is made once in a run

# No deadline: the machine may be busy, and no test is about time.
settings.register_profile("suite", deadline=None, max_examples=100 if LONG else 50)
settings.load_profile("suite")

for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) is signal.SIG_IGN:  # under nohup, in the background: what tests start would ignore it
        signal.signal(_number, lambda *_: None)  # exec() resets a handler to the default, but keeps SIG_IGN

HERE = Path(__file__).parent
SHOWN_CHARS = 4_000
"""Of the beginning and of the end of a failure; the summary has all."""
OF_VIEWS = ("test_view_", "test_forget", "test_reparse", "test_verify")
"""Files in ``tests/spark/pipeline`` whose tests share the second Spark session, with several workers."""
OF_SOURCES = {f"test_{name}.py" for name in ("attributes", "import_circles", "irreversible_acts", "tidy", "wall_clock")}
"""Files in ``tests/rules`` that read the syntax trees of all modules: one worker makes them, once."""
_topics = itertools.count()


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in this hook, too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers a file stays on one; so do all tests of a Spark session, of which there are two.

    Those of Spark begin first: a session's tests are the longest chain.  Tests that start Spark in processes of their
    own run beside them.
    """
    items.sort(key=lambda item: "spark" not in item.path.relative_to(HERE).parts)
    for item in items:
        session = "spark" in getattr(item, "fixturenames", ())
        if item.get_closest_marker("long") and not LONG:
            item.add_marker(pytest.mark.skip("takes long: LONG=1 make test"))
        chain = "views" if item.path.parent.name == "pipeline" and item.path.name.startswith(OF_VIEWS) else "spark"
        file = item.path.relative_to(HERE)
        shared = file.parent.name == "rules" and file.name in OF_SOURCES
        item.add_marker(pytest.mark.xdist_group(chain if session else "sources" if shared else str(file)))


def pytest_timeout_set_timer() -> bool | None:
    """True: none is set."""
    return True if SIZE_IS_CHOSEN else None


def pytest_runtest_setup() -> None:
    if SIZE_IS_CHOSEN:
        faulthandler.cancel_dump_traceback_later()  # set by faulthandler_timeout, just before


def pytest_collection_finish() -> None:
    """What is there before the first test stays: tests that collect garbage would look through all of it each time."""
    gc.collect()
    gc.freeze()


class Failures:
    """Shows failures as they come: a run that somebody ends, or that hangs, shows no summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            text = report.longreprtext
            if len(text) > 2 * SHOWN_CHARS:
                text = f"{text[:SHOWN_CHARS]}\n...\n{text[-SHOWN_CHARS:]}"
            self._terminal.write_line(f"\n{report.when} of {report.nodeid} failed:\n{text}")


@pytest.hookimpl(trylast=True)  # after the terminal reporter is there
def pytest_configure(config: pytest.Config) -> None:
    home = tempfile.mkdtemp(prefix="appliance-home-")  # the contexts of whoever runs the tests are theirs
    os.environ["XDG_CONFIG_HOME"] = home
    config.add_cleanup(lambda: shutil.rmtree(home))
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(terminal))


@pytest.fixture(scope="session", autouse=True)
def logs_are_compared_at_each_close() -> Iterator[None]:
    """Whatever a test has done to a log: when it is closed in order, what was derived of it is what its files give."""
    close = Log.close

    def compared(log: Log, clean: bool = True) -> None:
        close(log, clean)
        if clean:
            differences = compare(log.path)
            assert not differences, f"derived otherwise than recovered: {differences}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "close", compared)
        yield


@pytest.fixture(scope="session")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One real appliance for the whole run, alone (no ZooKeeper); tests use topics of their own."""
    with Server(tmp_path_factory.mktemp("shared") / "data") as server:
        yield server


@pytest.fixture
def make_appliance(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Make appliances of one's own, to break: ``make_appliance(**settings)``, started, stopped at the end."""
    servers: list[Server] = []

    def make(name: str = "data", **settings: Any) -> Server:
        server = Server(tmp_path / name, **settings)
        servers.append(server)
        return server.start()

    yield make
    for server in servers:
        server.__exit__(None, None, None)


@pytest.fixture
def topic() -> str:
    """A name nobody else uses."""
    return f"topic-{next(_topics)}"
