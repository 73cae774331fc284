"""Writes the files and returns the command line of a small server on 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .errors import ClusterError, ServerStartFailed
from .java import Java, java_environment
from .topics import zookeeper_client
from .versions import Release

CLUSTER_ID = "allocator-testing-0000"  # KRaft needs 16 bytes in base64, the same on all nodes
_FORMAT_TIMEOUT_S = 120.0
_QUICK_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    # skip the verification of classes, a fifth of a start's CPU: the jars' checksums were compared already
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
)
_MAIN = {
    "zookeeper": ("org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"),
    "kafka": ("kafka.Kafka", "server.properties"),
}


def command(java: Java, jars: str, kind: str, place: Path, heap: str, options: Sequence[str]) -> list[str]:
    """Returns the command line of a server whose files are in `place`; `jars` is the class path."""
    main, settings = _MAIN[kind]
    logging = f"-Dlog4j.configuration=file:{place / 'log4j.properties'}"
    return [java.executable, f"-Xmx{heap}", *_QUICK_JVM, logging, *options, "-cp", jars, main, str(place / settings)]


def filled(settings: Mapping[str, object], **known: object) -> dict[str, object]:
    """Returns the settings, with `{name}` in a value replaced by `known[name]`."""
    done: dict[str, object] = {}
    for key, value in settings.items():
        text = str(value)
        for name, replacement in known.items():
            text = text.replace("{" + name + "}", str(replacement))
        done[key] = text
    return done


def zookeeper_files(place: Path, number: int, settings: Mapping[str, object]) -> Callable[[], None]:
    """Returns a function that writes the files of a ZooKeeper node. The node calls it before each start."""

    def write() -> None:
        _common(place)
        (place / "data" / "myid").write_text(f"{number}\n")
        (place / "zoo.cfg").write_text(properties(settings))

    return write


def kafka_files(place: Path, number: int, settings: Mapping[str, object], zookeeper: str) -> Callable[[], None]:
    """Returns a function that writes the files of a broker. Before a restart it also deletes the broker's znodes."""

    def write() -> None:
        again = (place / "server.properties").exists()
        _common(place)
        (place / "server.properties").write_text(properties(settings))
        if again:
            _forget(zookeeper, number)

    return write


def kraft_files(
    place: Path, settings: Mapping[str, object], format_data: Callable[[Path], None] | None
) -> Callable[[], None]:
    """Returns a function that writes the files of a KRaft node, and calls `format_data` before its first start."""

    def write() -> None:
        _common(place)
        (place / "server.properties").write_text(properties(settings))
        if format_data is not None and not (place / "data" / "meta.properties").exists():
            format_data(place)

    return write


def format_data(java: Java, jars: str, options: Sequence[str], place: Path) -> None:
    """Formats the data directory with Kafka's tool. Raises ServerStartFailed with its output.

    `options`: the Java options for the server's class archive, which has some of the tool's classes too.
    """
    tool = [java.executable, "-Xmx128m", *_QUICK_JVM, *options, "-cp", jars, "kafka.tools.StorageTool", "format"]
    tool += ["-t", CLUSTER_ID, "-c", str(place / "server.properties")]
    done = subprocess.run(
        tool, env=java_environment(), capture_output=True, text=True, errors="replace", timeout=_FORMAT_TIMEOUT_S
    )
    if done.returncode:
        raise ServerStartFailed(f"formatting {place / 'data'} failed:\n{done.stdout}{done.stderr}")


def _common(place: Path) -> None:
    (place / "data").mkdir(parents=True, exist_ok=True)
    (place / "log4j.properties").write_text(log4j_settings(place / "server.log"))


def _forget(zookeeper: str, number: int) -> None:
    """Deletes the znodes of a killed broker. Until its session expires, the broker could not start otherwise."""
    from kazoo.exceptions import NoNodeError

    with contextlib.suppress(ClusterError), zookeeper_client(zookeeper, 5.0) as zk:
        with contextlib.suppress(NoNodeError):
            zk.delete(f"/brokers/ids/{number}")
        with contextlib.suppress(NoNodeError, ValueError):
            data, stat = zk.get("/controller")
            if json.loads(data).get("brokerid") == number:
                zk.delete("/controller", version=stat.version)


def properties(settings: Mapping[str, object]) -> str:
    """Returns the text of a properties file. Java reads it as Latin-1, so other characters become `\\u` escapes."""
    text = "".join(f"{key}={value}\n" for key, value in settings.items())
    return re.sub(r"[^\x00-\x7f]", _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2]))


def log4j_settings(file: Path) -> str:
    """Returns log4j settings that write INFO and above to `file`, with thread and time."""
    return properties(
        {
            "log4j.rootLogger": "INFO, file",
            "log4j.appender.file": "org.apache.log4j.FileAppender",
            "log4j.appender.file.File": file,
            "log4j.appender.file.layout": "org.apache.log4j.PatternLayout",
            "log4j.appender.file.layout.ConversionPattern": "%d{ISO8601} %-5p %c{1} [%t] %m%n",
        }
    )


def zookeeper_settings(
    directory: Path, port: int, quorum: Mapping[int, tuple[int, int]], tick_ms: int
) -> dict[str, object]:
    """Returns the settings of zoo.cfg. `quorum`: node -> (peer port, election port). A single node runs standalone."""
    settings: dict[str, object] = {
        "dataDir": directory / "data",
        "clientPort": port,
        "clientPortAddress": "127.0.0.1",
        "tickTime": tick_ms,
        "minSessionTimeout": 2 * tick_ms,
        "maxSessionTimeout": 120_000,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "*",
        "extendedTypesEnabled": "true",
        "preAllocSize": 1024,
        "snapCount": 10_000,
    }
    if len(quorum) > 1:
        settings["initLimit"] = 40
        settings["syncLimit"] = 4
        for node, (peer, election) in quorum.items():
            settings[f"server.{node}"] = f"127.0.0.1:{peer}:{election}"
    return settings


def broker_settings(
    release: Release, number: int, directory: Path, port: int, brokers: int, zookeeper: str
) -> dict[str, object]:
    """Returns the settings of a broker. With KRaft, `kraft_settings` returns the rest."""
    replicas = min(3, brokers)
    settings: dict[str, object] = {
        "log.dirs": directory / "data",
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "true",
        "num.partitions": 1,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "offsets.topic.num.partitions": 4,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.segment.bytes": 1 << 20,
        # the default takes a third of the small heap
        "log.cleaner.dedupe.buffer.size": 4 << 20,
        "log.index.size.max.bytes": 1 << 20,
        # retention must not delete records with old timestamps in the middle of a test
        "log.retention.hours": 1_000_000,
        "controlled.shutdown.retry.backoff.ms": 500,
    }
    if release.number >= (0, 9):
        settings["group.min.session.timeout.ms"] = 1000  # with the default of 6 s, tests would take longer
    if release.number >= (0, 10):
        settings["group.initial.rebalance.delay.ms"] = 0
    if release.number >= (0, 11):
        settings["transaction.state.log.num.partitions"] = 4
        settings["transaction.state.log.replication.factor"] = replicas
        settings["transaction.state.log.min.isr"] = 1
    if release.kraft:
        return settings
    settings["broker.id"] = number
    settings["zookeeper.connect"] = zookeeper
    settings["zookeeper.connection.timeout.ms"] = 30_000
    settings["zookeeper.session.timeout.ms"] = 4_000
    if release.listeners:
        settings["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
    else:
        settings.update({"host.name": "127.0.0.1", "port": port})
    return settings


def advertised(release: Release, port: int) -> dict[str, object]:
    """Returns settings with which a broker advertises another port to clients."""
    if release.listeners:
        return {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    return {"advertised.host.name": "127.0.0.1", "advertised.port": port}


def kraft_settings(
    number: int, port: int, controller_port: int, voters: Sequence[tuple[int, int]]
) -> dict[str, object]:
    """Returns the settings of a KRaft node. `voters` are (node, controller port); a voter is also a controller."""
    votes = any(node == number for node, _ in voters)
    listeners = f"PLAINTEXT://127.0.0.1:{port}"
    if votes:
        listeners += f",CONTROLLER://127.0.0.1:{controller_port}"
    return {
        "process.roles": "broker,controller" if votes else "broker",
        "node.id": number,
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{peer}" for node, peer in voters),
        "listeners": listeners,
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
        "broker.session.timeout.ms": 2_000,
        "broker.heartbeat.interval.ms": 400,
        # otherwise the controller writes an empty record every 500 ms: a quarter of the CPU of an idle node
        "metadata.max.idle.interval.ms": 0,
    }


def with_controller(given: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    """Returns the user's settings. Adds the controller listener of `settings` to their listeners."""
    mine = [each for each in str(settings.get("listeners", "")).split(",") if each.startswith("CONTROLLER:")]
    if "listeners" not in given or not mine or "CONTROLLER:" in str(given["listeners"]):
        return dict(given)
    return {**given, "listeners": ",".join([str(given["listeners"]), *mine])}
