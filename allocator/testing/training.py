"""Creates class archives (`classes`): starts a server with the option that writes the archive, and stops it cleanly."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from . import classes
from .cluster import LocalCluster
from .errors import TestingError
from .jars import cache_directory
from .java import OLDEST, Java, find_java
from .versions import USUAL_ZOOKEEPER, JarSet, kafka_release, zookeeper_jars

log = logging.getLogger(__name__)
# time for one server to stop: on a busy machine Java takes long to write its archive
_STOP_TIMEOUT_S = 120.0


def make_archives(kafka: str | None, session: str, zookeeper: str = USUAL_ZOOKEEPER) -> None:
    """Creates the archives of these versions of Kafka and ZooKeeper if `classes.worth_making`.

    `session`: a name of this test session, the same in all its processes. Returns at once if another process creates
    archives. Logs a warning and raises nothing if that fails, because servers also start without archives.
    """
    try:
        java = find_java(OLDEST if kafka is None else kafka_release(kafka).oldest_java)
        servers = [zookeeper_jars(zookeeper), *([] if kafka is None else [kafka_release(kafka).jars])]
        worth = [jars for jars in servers if classes.worth_making(java, jars, session)]
        if worth:
            with FileLock(str(cache_directory() / "classes.lock"), timeout=0):
                missing = [jars for jars in worth if not classes.usable(classes.archive(java, jars))]
                _make(kafka, zookeeper, java, missing)
    except Timeout:
        return
    except (TestingError, OSError) as error:
        # not marked as failed: the machine may have been busy, and the next session retries
        log.warning("could not create the class archive for Kafka %s: %s", kafka, error)


def _make(kafka: str | None, zookeeper: str, java: Java, missing: Sequence[JarSet]) -> None:
    if not missing:
        return
    classes.make_base(java)
    version = kafka if any(jars is not zookeeper_jars(zookeeper) for jars in missing) else None
    with tempfile.TemporaryDirectory(prefix=".classes-", dir=cache_directory()) as place:
        into = {jars.name: Path(place) / f"{jars.name}.jsa" for jars in missing}
        with _Recorded(version, zookeeper, into) as cluster:
            if version is not None:
                cluster.create_topic("records")
                cluster.produce("records", [b"of a moment"])
            for node in reversed(cluster.nodes):
                node.stop(_STOP_TIMEOUT_S)
        for jars in missing:
            if into[jars.name].exists():
                os.replace(into[jars.name], classes.archive(java, jars))
            else:
                log.warning("%s did not create the class archive of %s", java.executable, jars.what)
                classes.failed(java, jars)


class _Recorded(LocalCluster):
    """A cluster whose servers write their class archive when they stop. `into`: name of the jars -> path of the
    archive."""

    def __init__(self, kafka: str | None, zookeeper: str, into: Mapping[str, Path]) -> None:
        super().__init__(kafka, zookeeper_version=zookeeper)
        self._into = into

    def _class_options(self, jars: JarSet) -> list[str]:
        path = self._into.get(jars.name)
        return super()._class_options(jars) if path is None else classes.making(self._java, path)
