"""The supported versions of the servers, with their jars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from .errors import UnknownVersion

T = TypeVar("T")
_LOCKS = Path(__file__).with_name("pinned")


def _logging(slf4j: str) -> tuple[str, ...]:
    return f"org.slf4j:slf4j-api:{slf4j}", f"org.slf4j:slf4j-reload4j:{slf4j}", "ch.qos.reload4j:reload4j:1.2.26"


LOGGING = _logging("1.7.36")
_EXCLUDED = (
    # reload4j replaces log4j 1; with both, slf4j would choose one at random
    "log4j:log4j",
    "org.slf4j:slf4j-log4j12",
    "org.slf4j:slf4j-simple",
    "ch.qos.logback:logback-classic",
    "ch.qos.logback:logback-core",
    # not in the central repository; only appenders of log4j 1.2.15 need them
    "com.sun.jdmk:jmxtools",
    "com.sun.jmx:jmxri",
    "javax.jms:jms",
    "javax.mail:mail",
    # build tools that old ZooKeeper poms wrongly list as run-time dependencies
    "junit:junit",
    "jline:jline",
)


@dataclass(frozen=True)
class JarSet:
    """A directory of jars in the cache: the root artifacts `group:artifact:version` and the excluded ones.

    `pins` reads the lock file of each, `locks`/NAME.txt.
    """

    name: str
    what: str
    roots: tuple[str, ...]
    excluded: tuple[str, ...] = _EXCLUDED
    locks: Path = _LOCKS

    @property
    def recipe(self) -> str:
        """First line of the lock file, which names the roots and the exclusions."""
        return "# " + " ".join((*self.roots, *(f"-{one}" for one in self.excluded)))


@dataclass(frozen=True)
class Release:
    """One version of Kafka. `kraft`: it runs without ZooKeeper. `listeners`: it has that setting (0.9 and newer)."""

    version: str
    jars: JarSet
    kraft: bool = False
    oldest_java: int = 11

    @property
    def number(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split("."))

    @property
    def listeners(self) -> bool:
        return self.number >= (0, 9)


def _release(version: str, scala: str, *extra: str, kraft: bool = False, oldest_java: int = 11) -> Release:
    roots = (f"org.apache.kafka:kafka_{scala}:{version}", *LOGGING, *extra)
    return Release(version, JarSet(f"kafka-{version}", f"Kafka {version}", roots), kraft, oldest_java)


_JAXB = "javax.xml.bind:jaxb-api:2.3.1"  # not in Java 11 any more; these two versions need it

_SNAPPY = "org.xerial.snappy:snappy-java:1.1.1.7"  # the version of 0.8.1.1 finds no native code on Java 11 and newer

KAFKA: Mapping[str, Release] = MappingProxyType(
    {
        release.version: release
        for release in (
            _release("0.8.1.1", "2.10", _SNAPPY),
            _release("0.8.2.2", "2.11"),
            _release("0.9.0.1", "2.11"),
            _release("0.10.2.2", "2.11", _JAXB),
            _release("0.11.0.3", "2.11", _JAXB),
            _release("1.1.1", "2.11"),
            _release("2.8.2", "2.13"),
            _release("3.9.1", "2.13"),
            _release("4.1.1", "2.13", kraft=True, oldest_java=17),
            _release("4.2.2", "2.13", kraft=True, oldest_java=17),
            _release("4.3.1", "2.13", kraft=True, oldest_java=17),
            _release("4.4.0", "2.13", kraft=True, oldest_java=17),
        )
    }
)

NEWEST = tuple(KAFKA)[-1]

# "provided" in the poms of 3.6 and newer, which do not start without them
_METRICS = ("io.dropwizard.metrics:metrics-core:4.1.12.1", "org.xerial.snappy:snappy-java:1.1.10.5")


USUAL_ZOOKEEPER = "3.8.4"


def _zookeeper(version: str, *extra: str, logging: Sequence[str] = LOGGING) -> JarSet:
    roots = (f"org.apache.zookeeper:zookeeper:{version}", *extra, *logging)
    return JarSet(f"zookeeper-{version}", f"ZooKeeper {version}", roots)


ZOOKEEPER: Mapping[str, JarSet] = MappingProxyType(
    {
        "3.4.14": _zookeeper("3.4.14"),
        "3.5.10": _zookeeper("3.5.10"),
        "3.6.4": _zookeeper("3.6.4", *_METRICS),
        "3.7.2": _zookeeper("3.7.2", *_METRICS),
        USUAL_ZOOKEEPER: _zookeeper(USUAL_ZOOKEEPER, *_METRICS),
        "3.9.5": _zookeeper("3.9.5", *_METRICS, logging=_logging("2.0.13")),
    }
)


def kafka_release(version: str) -> Release:
    """Returns the release of a version. Raises UnknownVersion."""
    return _known("Kafka", KAFKA, version)


def zookeeper_jars(version: str) -> JarSet:
    """Returns the jars of a version of ZooKeeper. Raises UnknownVersion."""
    return _known("ZooKeeper", ZOOKEEPER, version)


def _known(what: str, versions: Mapping[str, T], version: str) -> T:
    if version not in versions:
        known = ", ".join(versions)
        raise UnknownVersion(f"{what} {version!r} is not a supported version; known: {known}")
    return versions[version]
