"""This library's Consumer: with the `naive` allocator function, and with one that moves no more than it must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Union

from allocator import Consumer, RebalanceListener, TopicPartition
from allocator.assign import GroupView

from ..journal import Journal
from .base import Tasks

__all__ = ["Keeping", "Ours", "keep"]


class _Listener(RebalanceListener):
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.consumer: Consumer

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._journal.own(p.partition for p in partitions)

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:
            self.consumer.seek(partition, 0)  # a member remembers how far it was, and would not read again
        await self.consumer.commit(dict.fromkeys(partitions, 0))
        self._journal.drop(p.partition for p in partitions)

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._journal.drop(p.partition for p in partitions)


class Ours(Tasks):
    assignor: Union[str, Callable[..., Any]] = "naive"

    async def member(self, name: str, journal: Journal, stop: asyncio.Event) -> None:
        settings = self.settings
        listener = _Listener(journal)
        consumer = listener.consumer = Consumer(
            settings.topic,
            brokers=settings.bootstrap,
            zookeeper=settings.zookeeper,
            group=settings.group,
            client_id=name,
            assignor=self.assignor,
            session_timeout_s=settings.session_timeout_s,
            auto_commit_interval_s=None,
            listener=listener,
        )
        await consumer.start()
        reading = asyncio.ensure_future(self._read(consumer, journal))
        await asyncio.wait({reading, asyncio.ensure_future(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
        await consumer.close()
        await reading

    async def _read(self, consumer: Consumer, journal: Journal) -> None:
        async for batch in consumer:
            for record in batch:
                journal.got(record.partition)


def keep(view: GroupView) -> dict[str, list[TopicPartition]]:
    """Leaves partitions where they are as far as shares stay even; for one topic to which all subscribe."""
    everything = {TopicPartition(topic, n) for topic, count in view.partitions.items() for n in range(count)}
    least, rest = divmod(len(everything), len(view.members))
    shares: dict[str, list[TopicPartition]] = {}
    # those who hold most may be the ones with one more than the others
    for member in sorted(view.members, key=lambda member: -len(view.owned.get(member.id, ()))):
        mine = sorted(view.owned.get(member.id, frozenset()) & everything)
        shares[member.id] = mine[: least + (rest > 0)]
        rest -= len(shares[member.id]) > least
        everything.difference_update(shares[member.id])
    free = sorted(everything)
    for share in sorted(shares.values(), key=len):
        while free and len(share) < least:
            share.append(free.pop())
    for share in sorted(shares.values(), key=len):
        if free and len(share) == least:
            share.append(free.pop())
    return shares


class Keeping(Ours):
    assignor = staticmethod(keep)
