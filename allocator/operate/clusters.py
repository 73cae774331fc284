"""The addresses and credentials of a Kafka cluster and a ZooKeeper ensemble, and connections to them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from allocator.core.client import KafkaClient
from allocator.core.settings import DEFAULT, check_path
from allocator.errors import ConfigError
from allocator.protocols.zookeeper import ZooKeeperClient


@dataclass(frozen=True)
class Clusters:
    """A Kafka cluster and a ZooKeeper ensemble. One of them may be None."""

    zookeeper: Optional[str] = None
    root: str = DEFAULT["root"]
    zookeeper_options: Optional[Mapping[str, Any]] = field(default=None, repr=False)
    brokers: Optional[str] = None
    security: Optional[Mapping[str, Any]] = field(default=None, repr=False)
    timeout_s: float = 10.0
    nowhere: bool = False
    """True if the caller states that no ensemble has members of any group."""
    kafka_groups: frozenset[str] = frozenset()
    """Groups of which the caller states that no ensemble has members."""

    def __post_init__(self) -> None:
        check_path("ZooKeeper root", self.root)

    def need_zookeeper(self) -> str:
        if self.zookeeper is None:
            raise ConfigError("no ZooKeeper was given: give --zookeeper or --config, or set ALLOCATOR_ZOOKEEPER_HOSTS")
        return self.zookeeper

    def sees_members_of(self, group: str) -> bool:
        """Returns whether a missing ensemble hides no members of the group."""
        return self.zookeeper is not None or self.rules_out_zookeeper(group)

    def rules_out_zookeeper(self, group: str) -> bool:
        """Returns whether the caller states that no ensemble has members of the group."""
        return self.nowhere or group in self.kafka_groups

    def unnamed(self, group: str) -> list[str]:
        """Returns the kinds of clusters that may have members of the group, and of which none was named."""
        zookeeper = [] if self.sees_members_of(group) else ["ZooKeeper"]
        return [*zookeeper, *(["Kafka"] if self.brokers is None else [])]

    def need_members_of(self, group: str) -> None:
        """Raises ConfigError if the group may have members that nobody looks for."""
        if not self.sees_members_of(group):
            raise ConfigError(
                f"group {group!r} may have members in ZooKeeper. Give --zookeeper or --config, or --zookeeper none if "
                "it has no members in any ZooKeeper. Nothing was changed"
            )

    def need_brokers(self) -> str:
        if self.brokers is None:
            raise ConfigError("no brokers were given: give --brokers or --config, or set ALLOCATOR_KAFKA_BROKERS")
        return self.brokers

    @contextlib.asynccontextmanager
    async def ensemble(
        self, hosts: Optional[str] = None, *, session_timeout_s: Optional[float] = None, make_chroot: bool = False
    ) -> AsyncIterator[ZooKeeperClient]:
        zk = ZooKeeperClient(
            hosts or self.need_zookeeper(),
            session_timeout_s=session_timeout_s or self.timeout_s,
            options=self.zookeeper_options,
        )
        await zk.connect(self.timeout_s, make_chroot=make_chroot)
        try:
            yield zk
        finally:
            await zk.close()

    @contextlib.asynccontextmanager
    async def cluster(self, topics: Optional[Collection[str]] = None) -> AsyncIterator[KafkaClient]:
        """Yields a client with the metadata of these topics; None: of all that this user may describe."""
        client = KafkaClient(self.need_brokers(), security=self.security, request_timeout_s=self.timeout_s)
        await client.connect(self.timeout_s)
        try:
            if topics is None:
                client.follow_all()
            await client.refresh(topics)
            yield client
        finally:
            await client.close()
