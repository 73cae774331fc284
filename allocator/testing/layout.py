"""How one server of a local cluster is started: its command line and the files it reads."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .errors import ClusterError, ServerStartFailed
from .java import Java
from .settings import log4j_settings, properties
from .topics import zookeeper_client

__all__ = ["CLUSTER_ID", "command", "filled", "format_data", "kafka_files", "kraft_files", "zookeeper_files"]

CLUSTER_ID = "allocator-testing-0000"  # KRaft wants 16 bytes in base64, the same on all nodes
_FORMAT_TIMEOUT_S = 120.0
_QUICK_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
)
_MAIN = {
    "zookeeper": ("org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"),
    "kafka": ("kafka.Kafka", "server.properties"),
}


def command(java: Java, jars: str, kind: str, place: Path, heap: str, options: Sequence[str]) -> list[str]:
    """The command line of a server whose files are in `place`; `jars` is the class path."""
    main, settings = _MAIN[kind]
    logging = f"-Dlog4j.configuration=file:{place / 'log4j.properties'}"
    return [java.executable, f"-Xmx{heap}", *_QUICK_JVM, logging, *options, "-cp", jars, main, str(place / settings)]


def filled(settings: Mapping[str, object], **known: object) -> dict[str, object]:
    """`{port}` and the like in a user's values, replaced by what they are called for."""
    done: dict[str, object] = {}
    for key, value in settings.items():
        text = str(value)
        for name, replacement in known.items():
            text = text.replace("{" + name + "}", str(replacement))
        done[key] = text
    return done


def zookeeper_files(place: Path, number: int, settings: Mapping[str, object]) -> Callable[[], None]:
    """Writes what a ZooKeeper node reads, before each of its starts."""

    def write() -> None:
        _common(place)
        (place / "data" / "myid").write_text(f"{number}\n")
        (place / "zoo.cfg").write_text(properties(settings))

    return write


def kafka_files(place: Path, number: int, settings: Mapping[str, object], zookeeper: str) -> Callable[[], None]:
    """Writes what a broker reads; before a second start also clears what its first left in ZooKeeper."""

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
    """Writes what a broker without ZooKeeper reads; `format_data` makes its data directory before its first start."""

    def write() -> None:
        _common(place)
        (place / "server.properties").write_text(properties(settings))
        if format_data is not None and not (place / "data" / "meta.properties").exists():
            format_data(place)

    return write


def format_data(java: Java, jars: str, place: Path) -> None:
    """By the tool of the broker's version. Raises ServerStartFailed with what it says."""
    tool = [java.executable, "-Xmx128m", *_QUICK_JVM, "-cp", jars, "kafka.tools.StorageTool", "format"]
    tool += ["-t", CLUSTER_ID, "-c", str(place / "server.properties")]
    done = subprocess.run(tool, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S)
    if done.returncode:
        raise ServerStartFailed(f"formatting {place / 'data'} failed:\n{done.stdout}{done.stderr}")


def _common(place: Path) -> None:
    (place / "data").mkdir(parents=True, exist_ok=True)
    (place / "log4j.properties").write_text(log4j_settings(place / "server.log"))


def _forget(zookeeper: str, number: int) -> None:
    """Remove what a killed broker left in ZooKeeper until its session ends: it would refuse itself its place."""
    from kazoo.exceptions import NoNodeError

    with contextlib.suppress(ClusterError), zookeeper_client(zookeeper, 5.0) as zk:
        with contextlib.suppress(NoNodeError):
            zk.delete(f"/brokers/ids/{number}")
        with contextlib.suppress(NoNodeError, ValueError):
            data, stat = zk.get("/controller")
            if json.loads(data).get("brokerid") == number:
                zk.delete("/controller", version=stat.version)
