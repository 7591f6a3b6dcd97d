"""Log shippers ship to the appliance while it is restarted: no line is lost.

They run with the files in ``shippers/``; only the address, the topic and the paths are replaced.  syslog-ng is found
by SYSLOG_NG (a directory that its packages were unpacked into) where it is not installed: Debian's rsyslog and
syslog-ng exclude each other.  fluent-bit, Vector and Filebeat, which Debian does not have, are found by FLUENT_BIT,
VECTOR and FILEBEAT (their programs).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from .adapters import confluent_events, kcat, new_topic
from .conftest import Broker

LINES = 3_000
RSYSLOG = shutil.which("rsyslogd") or "/usr/sbin/rsyslogd"
OMKAFKA = Path("/usr/lib/x86_64-linux-gnu/rsyslog/omkafka.so")
SYSLOG_NG = Path(os.environ.get("SYSLOG_NG", "/"))

SHIPPERS_DIR = Path(__file__).parent / "shippers"
STATE_DIRS = ("/var/spool/rsyslog", "/var/lib/syslog-ng", "/var/lib/fluent-bit", "/var/lib/vector")


@contextmanager
def running(command: list[str], work: Path, environment: dict[str, str] | None = None) -> Iterator[None]:
    with (work / "shipper.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(environment or {})})
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def program(name: str) -> str:
    """Named by the environment, or found on the PATH."""
    variable = name.upper().replace("-", "_")
    found = os.environ.get(variable) or shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: install it, or set {variable} to its program")
    return found


def configured(name: str, work: Path, broker: Broker, topic: str) -> str:
    """Copies a file of ``shippers/`` with the test's address, topic and paths.  Filebeat wants mode 0600."""
    text = (SHIPPERS_DIR / name).read_text()
    for shown, used in (("HOST:9092", broker.kafka), ("app-logs", topic), ("/var/log/app.log", f"{work}/in.log")):
        assert shown in text, f"{name} does not have {shown}"
        text = text.replace(shown, used)
    for state_dir in STATE_DIRS:
        text = text.replace(state_dir, str(work))
    assert "/var/" not in text, f"{name}: a path that the test does not replace"
    conf = work / name
    conf.write_text(text)
    conf.chmod(0o600)
    return str(conf)


def rsyslog(work: Path, broker: Broker, topic: str) -> tuple[list[str], dict[str, str]]:
    if not (Path(RSYSLOG).exists() and OMKAFKA.exists()):
        pytest.skip("no rsyslog with omkafka: apt-get install rsyslog rsyslog-kafka")
    return [
        RSYSLOG,
        "-n",
        "-f",
        configured("rsyslog.conf", work, broker, topic),
        "-i",
        str(work / "pid"),
    ], {}


def syslog_ng(work: Path, broker: Broker, topic: str) -> tuple[list[str], dict[str, str]]:
    binary, libraries = SYSLOG_NG / "usr/sbin/syslog-ng", SYSLOG_NG / "usr/lib/x86_64-linux-gnu"
    if not binary.exists():
        pytest.skip("no syslog-ng: install syslog-ng-core and syslog-ng-mod-rdkafka, or set SYSLOG_NG")
    modules = next((SYSLOG_NG / "usr/lib/syslog-ng").glob("*.*"))
    conf = configured("syslog-ng.conf", work, broker, topic)
    command = [str(binary), "--foreground", "--no-caps", f"--module-path={modules}", "--cfgfile", conf]
    for option, name in (("control", "ctl"), ("persist-file", "persist"), ("pidfile", "pid")):
        command.append(f"--{option}={work / name}")
    paths = f"{libraries}:{SYSLOG_NG / 'lib/x86_64-linux-gnu'}:{SYSLOG_NG / 'usr/lib/syslog-ng'}:{modules}"
    return command, {"LD_LIBRARY_PATH": paths}


def fluent_bit(work: Path, broker: Broker, topic: str) -> tuple[list[str], dict[str, str]]:
    return [program("fluent-bit"), "-c", configured("fluent-bit.conf", work, broker, topic)], {}


def vector(work: Path, broker: Broker, topic: str) -> tuple[list[str], dict[str, str]]:
    return [program("vector"), "--config", configured("vector.toml", work, broker, topic)], {}


def filebeat(work: Path, broker: Broker, topic: str) -> tuple[list[str], dict[str, str]]:
    conf = configured("filebeat.yml", work, broker, topic)
    own = ["--path.home", str(work), "--path.data", str(work / "filebeat")]
    return [program("filebeat"), "-e", "-c", conf, *own], {}


SHIPPERS = [
    pytest.param(rsyslog, id="rsyslog"),
    pytest.param(syslog_ng, id="syslog-ng"),
    pytest.param(fluent_bit, id="fluent-bit"),
    pytest.param(vector, id="vector"),
    pytest.param(filebeat, id="filebeat"),
]


@pytest.mark.parametrize("shipper", SHIPPERS)
def test_no_line_is_lost_while_the_appliance_restarts(broker: Broker, tmp_path: Path, shipper: object) -> None:
    """A third of the lines before, a third while nobody serves, a third after."""
    topic = new_topic()
    command, environment = shipper(tmp_path, broker, topic)  # type: ignore[operator]
    lines = [f"<13>host app[{number}]: something happened, größer" for number in range(LINES)]
    third = LINES // 3
    with running(command, tmp_path, environment):
        write(tmp_path, lines[:third])
        assert read(broker, topic, third) >= set(lines[:third])
        assert broker.stop() == 0
        write(tmp_path, lines[third : 2 * third])
        broker.start()
        write(tmp_path, lines[2 * third :])
        assert read(broker, topic, LINES) >= set(lines)


def write(work: Path, lines: list[str]) -> None:
    with (work / "in.log").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def read(broker: Broker, topic: str, count: int) -> set[str]:
    """Everything from the beginning, until there are so many different lines."""
    settings = {"bootstrap.servers": broker.kafka, "group.id": "unused", "log_level": 0}
    consumer = Consumer({**settings, "topic.metadata.refresh.interval.ms": 500})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: set[str] = set()
    for message in confluent_events(consumer):
        if message.error() is None:
            found.add(message.value().decode().strip())
            if len(found) >= count:
                break
    consumer.close()
    return found


def test_kcat_produces_and_consumes_keys_headers_and_partitions(broker: Broker) -> None:
    topic = new_topic()
    lines = [f"key-{number}:value {number}" for number in range(100)]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        common = ("-b", broker.kafka, "-t", topic, "-P", "-K", ":", "-z", codec)
        kcat(*common, "-H", f"codec={codec}", stdin="\n".join(lines))
    out = kcat("-b", broker.kafka, "-t", topic, "-C", "-e", "-q", "-o", "beginning", "-f", "%h %k:%s\n")
    wanted = [f"codec={codec} {line}" for codec in ("none", "gzip", "snappy", "lz4", "zstd") for line in lines]
    assert out.splitlines() == wanted


def test_kcat_reads_as_a_group_and_from_a_time(broker: Broker) -> None:
    topic = new_topic()
    kcat("-b", broker.kafka, "-t", topic, "-P", stdin="a\nb\nc")
    group = ("-b", broker.kafka, "-G", new_topic(), "-q", "-e", "-X", "auto.offset.reset=earliest", topic)
    assert kcat(*group).split() == ["a", "b", "c"]
    assert kcat(*group) == ""
    asked = kcat("-b", broker.kafka, "-Q", "-t", f"{topic}:0:1000000000000")
    assert asked.strip() == f"{topic} [0] offset {first_offset(broker, topic)}"


def first_offset(broker: Broker, topic: str) -> int:
    out = kcat("-b", broker.kafka, "-t", topic, "-C", "-c", "1", "-q", "-o", "beginning", "-f", "%o")
    return int(out)
