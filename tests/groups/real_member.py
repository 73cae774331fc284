"""A member of Kafka's own protocols, with a client of its own."""

from __future__ import annotations

from typing import TypeVar

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.types import Partitions
from allocator.protocols.kafka_member import KafkaMember
from tests.groups.members import RecordingOwner

R = TypeVar("R", bound="RealMember")


class RealMember:
    """`async with` joins and leaves. A subclass sets the attributes."""

    client: KafkaClient
    owner: RecordingOwner
    membership: KafkaMember
    offsets: GroupOffsets

    @property
    def held(self) -> Partitions:
        return self.owner.owned

    async def __aenter__(self: R) -> R:
        await self.client.connect(20)
        await self.membership.join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.membership.leave()
        await self.offsets.close()
        await self.client.close()

    async def vanish(self) -> None:
        """Ends like a crashed process, without draining or leaving."""
        await self.membership.abandon()
        await self.client.close()
