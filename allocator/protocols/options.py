"""The settings of the memberships of Kafka's own protocols, which create those memberships."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from allocator.commands import OperatorCommands
from allocator.core.consumer import (
    CommandedConsumer,
    CommandExecutor,
    Fault,
    MemberParts,
    MembershipConfig,
    MembershipOptions,
)
from allocator.core.membership import Membership
from allocator.core.settings import DEFAULT, names_arguments
from allocator.errors import ConfigError
from allocator.protocols.command_topic import CommandTopic
from allocator.protocols.kafka_classic.membership import KafkaMembership
from allocator.protocols.kafka_classic.settings import KafkaSettings
from allocator.types import GroupProtocol

if TYPE_CHECKING:
    from allocator.protocols.kip848.settings import Kip848Settings


@names_arguments
@dataclass(frozen=True)
class Kafka(MembershipOptions):
    """Kafka's group protocols, without ZooKeeper: the classic one (brokers from 0.9) and KIP-848 (brokers from 4.0).

    The group may have members of other clients that offer the same assignor.
    """

    name = "kafka"

    group_protocol: GroupProtocol = DEFAULT["group_protocol"]
    session_timeout_s: float = DEFAULT["session_timeout_s"]
    heartbeat_interval_s: float = DEFAULT["heartbeat_interval_s"]
    rebalance_timeout_s: float = DEFAULT["rebalance_timeout_s"]
    instance_id: Optional[str] = DEFAULT["instance_id"]

    def faults(self, config: MembershipConfig) -> Iterator[Fault]:
        if self.group_protocol == "consumer":
            yield from Fault.of(("assignor", "group_protocol"), lambda: self._kip848(config))
            return
        yield from super().faults(config)
        yield from Fault.of(("heartbeat_interval_s", "session_timeout_s"), lambda: self._classic(config))

    def executor(self, consumer: CommandedConsumer) -> CommandExecutor:
        return OperatorCommands(consumer)

    def command_source(self, config: MembershipConfig, brokers: Any, security: Any) -> CommandTopic | None:
        return None if config.group is None else CommandTopic(brokers, config.group, security=security)

    def make(self, config: MembershipConfig, parts: MemberParts) -> Membership:
        assert config.group is not None
        if self.group_protocol == "consumer":
            from allocator.protocols.kip848.membership import Kip848Membership  # costs time where it is not used

            return Kip848Membership(
                parts.client, config.group, parts.listener, self._kip848(config), coordinator=parts.coordinator
            )
        return KafkaMembership(
            parts.client,
            config.group,
            parts.listener,
            config.assignors(),
            self._classic(config),
            load=parts.load,
            coordinator=parts.coordinator,
        )

    def _classic(self, config: MembershipConfig) -> KafkaSettings:
        return KafkaSettings(
            **self._common(config),
            weight=config.weight,
            session_timeout_s=self.session_timeout_s,
            heartbeat_interval_s=self.heartbeat_interval_s,
        )

    def _kip848(self, config: MembershipConfig) -> Kip848Settings:
        if config.assignor is not None and (not isinstance(config.assignor, str) or ":" in config.assignor):
            raise ConfigError("the broker assigns: give the name of one of its assignors ('uniform', 'range'), or none")
        for name, value in (("instance_id", self.instance_id), ("assignor", config.assignor)):
            if value == "":
                raise ConfigError(f"{name} is empty; give a name, or None")
        from allocator.protocols.kip848.settings import Kip848Settings

        return Kip848Settings(**self._common(config), server_assignor=config.assignor)

    def _common(self, config: MembershipConfig) -> dict[str, Any]:
        return {
            **config.of_member(),
            "rack": config.rack,
            "rebalance_timeout_s": self.rebalance_timeout_s,
            "instance_id": self.instance_id or None,
        }
