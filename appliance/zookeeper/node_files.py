"""Builds the files of a local node: ``zoo.cfg``, and logging set-ups for the three backends that jars may bring.

A node serves nobody who has not logged in (``login``), neither clients nor other nodes, and listens on the loopback
interface only.  Its web server is off.  Of its four-letter commands only ``srvr`` answers, which ZooKeeper does not let
us switch off: it tells version, role and counters to anybody on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..durable_files import replace_file

LOOPBACK: Final = "127.0.0.1"
INIT_MS_MAX: Final = 20_000  # for a follower to copy the leader's state
SYNC_MS_MAX: Final = 10_000  # how far a follower may be behind
TICK_MS_MAX: Final = 1000  # with half of it idle nodes use twice the CPU
LOG_BYTES_MAX: Final = 2 << 20
LOG_FILES_MAX: Final = 2


class Ports(NamedTuple):
    client: int
    quorum: int
    election: int


def zoo_cfg(number: int, data: Path, ports: Sequence[Ports], session_timeout_ms: int) -> str:
    """The ``zoo.cfg`` of node ``number``, counted from 0, whose data are in the directory ``data``."""
    tick_ms = min(TICK_MS_MAX, session_timeout_ms // 4)
    lines = [
        "# written by the appliance; changes are overwritten at its next start",
        f"tickTime={tick_ms}",
        f"initLimit={INIT_MS_MAX // tick_ms}",
        f"syncLimit={SYNC_MS_MAX // tick_ms}",
        f"dataDir={data}",
        f"clientPort={ports[number].client}",
        f"clientPortAddress={LOOPBACK}",
        f"minSessionTimeout={2 * tick_ms}",
        f"maxSessionTimeout={max(60_000, session_timeout_ms)}",
        "maxClientCnxns=0",  # per address: a neighbour that opens many must not keep us out, who share it
        "admin.enableServer=false",
        "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "sessionRequireClientSASLAuth=true",
        "fips-mode=false",  # with it nodes would refuse each other, since DIGEST-MD5 needs MD5
        "4lw.commands.whitelist=srvr",
        "autopurge.snapRetainCount=3",
        "autopurge.purgeInterval=1",
    ]
    if len(ports) > 1:
        lines.append("standaloneEnabled=false")
        lines += ["quorum.auth.enableSasl=true", "quorum.auth.learnerRequireSasl=true"]
        lines.append("quorum.auth.serverRequireSasl=true")
        for n, own in enumerate(ports, 1):
            lines.append(f"server.{n}={LOOPBACK}:{own.quorum}:{own.election}")
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Replace the file's text atomically, readable by its owner only; a file that has this text already stays."""
    try:
        if path.read_text() == text:
            return
    except (OSError, UnicodeDecodeError):
        pass  # missing or unreadable: written below
    replace_file(path, text.encode())


LOGGING_FILES: Final = {
    "log4j2.properties": """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %-5p %c{{1}} %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {bytes}
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = {files}
logger.commands.name = org.apache.zookeeper.server.command
logger.commands.level = warn
logger.connections.name = org.apache.zookeeper.server.NIOServerCnxn
logger.connections.level = warn
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
""",
    "log4j.properties": """\
log4j.rootLogger = INFO, file
log4j.appender.file = org.apache.log4j.RollingFileAppender
log4j.appender.file.File = {file}
log4j.appender.file.MaxFileSize = {bytes}
log4j.appender.file.MaxBackupIndex = {files}
log4j.appender.file.layout = org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern = %d{{ISO8601}} %-5p %c{{1}} %m%n
log4j.logger.org.apache.zookeeper.server.command = WARN
log4j.logger.org.apache.zookeeper.server.NIOServerCnxn = WARN
""",
    "logback.xml": """\
<configuration>
  <appender name="file" class="ch.qos.logback.core.rolling.RollingFileAppender">
    <file>{file}</file>
    <rollingPolicy class="ch.qos.logback.core.rolling.FixedWindowRollingPolicy">
      <fileNamePattern>{file}.%i</fileNamePattern><minIndex>1</minIndex><maxIndex>{files}</maxIndex>
    </rollingPolicy>
    <triggeringPolicy class="ch.qos.logback.core.rolling.SizeBasedTriggeringPolicy">
      <maxFileSize>{bytes}</maxFileSize>
    </triggeringPolicy>
    <encoder><pattern>%d %-5level %logger{{0}} %msg%n</pattern></encoder>
  </appender>
  <logger name="org.apache.zookeeper.server.command" level="warn"/>
  <root level="info"><appender-ref ref="file"/></root>
</configuration>
""",
}
"""Logging set-ups by file name; the jars bring log4j 2 (pyspark), log4j 1.2 (Debian) or logback (upstream)."""
