"""Connects a member of a group with a sink: starts at the sink's offsets, and sets them back after a seek."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping

from allocator.core.consumer import GroupMember, OffsetSink, SinkClaim, check_sink
from allocator.core.subscription import Hold, Phase, stamped
from allocator.errors import AllocatorError, ConfigError, SinkBehind
from allocator.types import OffsetAndMetadata, Partitions, TopicPartition

log = logging.getLogger(__name__)

SINK_RETRY_S = 0.2


class _Rewinding(Hold):
    """Holds the records of a partition back while the sink's offset is set back for a seek."""

    full = True
    void = True


class SinkMember:
    """Implements `MemberSink`: one member's access to the offsets in a sink."""

    def __init__(self, sink: OffsetSink, member: GroupMember) -> None:
        if member.group is None:
            raise ConfigError("a sink keeps the offsets of a group; give the consumer a `group`")
        self._member = member
        self.database = check_sink(sink)
        member.state.stored = self.database.reached
        self._group = member.group
        # identifies this owner together with the fencing token, which may repeat after ZooKeeper has lost its data
        self._owner = os.urandom(16).hex()

    async def begin(self, partitions: Partitions) -> Mapping[TopicPartition, OffsetAndMetadata]:
        topic_id = self._member.client.topic_id
        tenures = [tenure for p, tenure in self._member.state.assignment.items() if p in partitions]
        claims = {
            each.partition: SinkClaim(each.fence, topic_id(each.partition.topic), each.left_out)
            for each in tenures
            if each.fence is not None
        }

        async def confirm() -> bool:
            confirmed = await self._member.membership.confirm()
            return confirmed and all(tenure.phase is Phase.ACTIVE for tenure in tenures)

        found = await self.database.begin(self._group, self._owner, claims, confirm)
        return {
            p: OffsetAndMetadata(at.offset, stamped("", claims[p].topic_id), at.leader_epoch) for p, at in found.items()
        }

    def sought(self, partition: TopicPartition) -> None:
        tenure = self._member.state.assignment[partition]
        hold = _Rewinding(tenure)
        tenure.add(hold)
        self._member.start_task(self._rewind_again(hold), "rewind")

    async def _rewind_again(self, hold: _Rewinding) -> None:
        """Repeats the user's rewind, because writes of records that were delivered before the seek may have moved the
        offset on."""
        tenure = hold.tenure
        try:
            offset = self.database.take_rewind(tenure.partition)
            if offset is not None and tenure.phase is not Phase.ENDED:
                await self.rewind(tenure.partition, offset)
        finally:
            hold.busy = hold.full = False
            self._member.state.on_freed()
            self._member.holds_changed()

    async def rewind(self, partition: TopicPartition, offset: int) -> bool:
        """Sets the sink's offset back once all delivered records are done. Later writes would move it forward again.

        Retries while this member owns the partition. The caller must not deliver its records in the meantime. Returns
        False if the partition has left this member.
        """
        member, state = self._member, self._member.state
        tenure = state.assignment.get(partition)
        while tenure is not None and state.assignment.get(partition) is tenure:
            await member.until_free(hold for hold in tenure.holds if not isinstance(hold, _Rewinding))
            if state.assignment.get(partition) is not tenure:
                break
            try:
                await self.database.rewind(partition, offset, member.client.topic_id(partition.topic))
                self.database.take_rewind(partition)  # only a seek of the user follows a rewind of the user
                return state.assignment.get(partition) is tenure
            except AllocatorError as error:
                if tenure.phase is not Phase.ACTIVE:
                    break  # its next owner must not wait for the database
                if isinstance(error, SinkBehind):  # only a new start helps
                    await member.report(error)
                    continue
                log.warning("%s: %s:%d: retrying to set the sink to %d: %s", member.group, *partition, offset, error)
                await asyncio.sleep(SINK_RETRY_S)
        return False
