"""What a transaction needs of the commits of one member: the committed offset, compared and noted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Optional

from allocator.core.consumer import Chosen, GroupMember
from allocator.core.subscription import Committed, DoneSet, TopicPartitionState, done_of
from allocator.errors import AllocatorError, BrokerError, Fenced
from allocator.types import OffsetAndMetadata, TopicPartition

Refusal = Callable[[], Optional[AllocatorError]]

# Brokers before 2.5 do not tell that the offsets of a committed transaction are not applied yet. Seconds until they
# count as applied. Higher: a partition starts later; lower: a coordinator under load may take longer
SETTLED_S = 0.2


class Seen(NamedTuple):
    """A committed offset with its done records; None: nothing is committed.

    Guarantee: each transaction with results changes it. So it tells whether a transaction without a response is there.
    """

    at: tuple[int, DoneSet | None] | None

    @classmethod
    def of(cls, offset: OffsetAndMetadata) -> Seen:
        done = offset.done if isinstance(offset, Committed) else None
        return cls((offset.offset, done or done_of(offset.metadata, offset.offset)))


class TransactionalCommits:
    """Compares, commits and notes the offset of one partition at a time. The caller sends the transaction."""

    def __init__(self, member: GroupMember) -> None:
        self._commits = member.commits
        self._client = member.client
        self._state = member.state
        self._fetcher = member.fetcher

    async def stable(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """Returns the committed offset, with those of all transactions that have ended."""
        return (await self._commits.fetch([partition], stable=True)).get(partition)

    async def confirm(self, tenure: TopicPartitionState, seen: Seen | None, moves: int | None) -> Seen:
        """Returns the committed offset, once no other transaction can change it.

        `seen`: what the last call returned, or what has been committed since; None in the first call of a tenure.
        `moves`: the number of moves of the position when the last offset was sent; None if none was. Raises Fenced if
        something else is committed, such as by an own transaction whose outcome was unknown, and continues there,
        unless the position was moved since: a seek, or another log, decides where to go on.
        """
        if self._client.broker_version < (2, 5):
            await asyncio.sleep(SETTLED_S)
        found = await self.stable(tenure.partition)
        if found is None or tenure is not self._state.assignment.get(tenure.partition):
            return Seen(None)  # nothing is committed; or the tenure has ended, so that nothing will be
        now = Seen.of(found)
        if now == seen or (seen is None and now.at == tenure.committed) or (tenure.is_sought and tenure.moves != moves):
            return now
        known = "none" if tenure.committed is None else tenure.committed[0]
        tenure.restart(found)
        self._fetcher.wake()
        raise Fenced(
            f"{tenure.partition.topic}:{tenure.partition.partition}: a transaction has committed offset {found.offset} "
            f"since this member read the committed offset ({known}); reading continues there, request the next records",
            retriable=True,
        )

    def changes(self, seen: Seen | None, offset: OffsetAndMetadata) -> bool:
        """Returns whether a commit of this offset could be told from the committed one."""
        return Seen.of(offset) != seen

    async def commit_with(
        self,
        tenure: TopicPartitionState,
        chosen: Chosen,
        send: Callable[[OffsetAndMetadata, Refusal], Awaitable[Optional[OffsetAndMetadata]]],
    ) -> Seen:
        """Notes the offset as committed when `send` returns, and returns it.

        `send` gets the offset with its metadata, and a check that returns why it may not be committed (any more). It
        returns what is stored, perhaps without the metadata.
        """
        partition, (offset, call) = tenure.partition, chosen
        to_send = self._commits.metadata.added({partition: offset})[partition]
        await self._commits.until_decided(lambda: self._state.is_in_doubt(partition))

        def refusal() -> AllocatorError | None:
            lasts = self._state.assignment.get(partition) is tenure
            lost = BrokerError("this member has lost it since")
            why = call.refusals([partition]).get(partition) if lasts else lost
            if why is None or why.retriable:
                return why
            return Fenced(f"{partition.topic}:{partition.partition}: nothing is committed: {why}", retriable=True)

        text = self._commits.offsets.text(to_send.metadata or "")
        stored = await send(to_send._replace(metadata=text), refusal)
        if stored is None or not stored.metadata:
            to_send = OffsetAndMetadata(to_send.offset, "", to_send.leader_epoch)
        call.stored({partition: to_send})
        return Seen.of(to_send)
