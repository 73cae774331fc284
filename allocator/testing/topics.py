"""Creates and deletes topics and adds partitions, in the fastest way for each version.

From 0.8 to 3.9 it writes the znodes that Kafka's own tool writes (`/brokers/topics/<topic>` and
`/config/topics/<topic>`, which the controller watches), without a Java process. With KRaft it sends admin requests.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, Union

from .errors import ClusterError

T = TypeVar("T")

CONTROLLER_S: Final = 30.0  # after that, a topic is not changed because its controller stays away


def spread(partitions: range, replication: int, brokers: Sequence[int]) -> dict[int, list[int]]:
    """Returns partition -> replicas, round-robin over the brokers. Raises ClusterError for too few brokers."""
    if not 1 <= replication <= len(brokers):
        raise ClusterError(f"replication {replication} needs that many running brokers; there are {len(brokers)}")
    count = len(brokers)
    return {p: [brokers[(p + r) % count] for r in range(replication)] for p in partitions}


class ZooKeeperTopics:
    """Changes topics by writing znodes."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts

    def create(self, name: str, replicas: Mapping[int, Sequence[int]], config: Mapping[str, str]) -> None:
        from kazoo.exceptions import NodeExistsError, NoNodeError

        with zookeeper_client(self._hosts) as zk:
            if zk.exists(f"/brokers/topics/{name}"):
                raise ClusterError(f"topic {name!r} exists already")
            zk.ensure_path("/config/topics")
            # before the topic, because a broker reads the settings when it opens the log
            settings = _json({"version": 1, "config": dict(config)})
            try:
                zk.create(f"/config/topics/{name}", settings)
            except NodeExistsError:
                try:
                    zk.set(f"/config/topics/{name}", settings)
                except NoNodeError:  # the topic was deleted just now
                    zk.create(f"/config/topics/{name}", settings)
            try:
                zk.create(f"/brokers/topics/{name}", _json({"version": 1, "partitions": _keyed(replicas)}))
            except NodeExistsError:
                raise ClusterError(f"topic {name!r} exists already") from None

    def delete(self, name: str) -> None:
        from kazoo.exceptions import NodeExistsError

        with zookeeper_client(self._hosts) as zk:
            if zk.exists(f"/brokers/topics/{name}") is None:
                raise ClusterError(f"there is no topic {name!r} to delete")
            with contextlib.suppress(NodeExistsError):  # the deletion is already requested
                zk.create(f"/admin/delete_topics/{name}", b"", makepath=True)

    def exists(self, name: str) -> bool:
        with zookeeper_client(self._hosts) as zk:
            return zk.exists(f"/brokers/topics/{name}") is not None

    def grow(self, name: str, added: Mapping[int, Sequence[int]]) -> None:
        with zookeeper_client(self._hosts) as zk:
            data, stat = zk.get(f"/brokers/topics/{name}")
            state = json.loads(data)  # keeps fields of newer versions, such as the topic's id
            state["partitions"].update(_keyed(added))
            zk.set(f"/brokers/topics/{name}", _json(state), version=stat.version)


class KraftTopics:
    """Changes topics with kafka-python's admin client."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def create(self, name: str, replicas: Mapping[int, Sequence[int]], config: Mapping[str, str]) -> None:
        topic = {"assignments": {p: list(ids) for p, ids in replicas.items()}, "configs": dict(config)}
        self._call(lambda admin: admin.create_topics({name: topic}, timeout_ms=30_000))

    def delete(self, name: str) -> None:
        self._call(lambda admin: admin.delete_topics([name], timeout_ms=30_000))

    def exists(self, name: str) -> bool:
        return name in self._call(lambda admin: admin.list_topics())

    def grow(self, name: str, added: Mapping[int, Sequence[int]]) -> None:
        growth = {"count": max(added) + 1, "assignments": [list(added[p]) for p in sorted(added)]}
        self._call(lambda admin: admin.create_partitions({name: growth}, timeout_ms=30_000))

    def _call(self, call: Callable[[Any], T]) -> T:
        from kafka.admin import KafkaAdminClient
        from kafka.errors import KafkaError, UnknownBrokerIdError

        until = time.monotonic() + CONTROLLER_S
        while True:
            admin = KafkaAdminClient(bootstrap_servers=self._bootstrap.split(","))
            try:
                return call(admin)
            except KafkaError as error:
                # nothing was sent: the controller that the admin client has found was restarted just now
                if isinstance(error, UnknownBrokerIdError) and time.monotonic() < until:
                    continue
                raise ClusterError(f"{self._bootstrap} refused: {error}") from error
            finally:
                admin.close()


Topics = Union[ZooKeeperTopics, KraftTopics]
"""Changes topics without waiting for the brokers."""


@contextlib.contextmanager
def zookeeper_client(hosts: str, timeout_s: float = 15.0) -> Iterator[Any]:
    """Yields a connected kazoo client. Raises ClusterError if no node responds."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(hosts, timeout=10.0)
    try:
        client.start(timeout_s)
        yield client
    except KazooTimeoutError as error:
        raise ClusterError(
            f"ZooKeeper at {hosts} did not respond within {timeout_s:g} s; check that it runs"
        ) from error
    finally:
        client.stop()
        client.close()


def _keyed(replicas: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
    return {str(partition): list(ids) for partition, ids in replicas.items()}


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
