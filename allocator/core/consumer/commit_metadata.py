"""Writes the metadata of commits: the member, the id of the topic, and the records that are done beyond the offset."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from allocator.core.client.client import KafkaClient
from allocator.core.client.coordinator import METADATA_BYTES
from allocator.core.errors import AllocatorError
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.membership.membership import Membership
from allocator.core.offsets.storage import StoredOffsets
from allocator.core.subscription.commit_text import stamped, with_done
from allocator.core.subscription.done import DoneSet
from allocator.core.subscription.loss import Committed
from allocator.core.subscription.state import SubscriptionState
from allocator.core.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

# parts of a commit's metadata, in characters
IDS_CHARACTERS = 120  # for the ids of topic and cluster
STAMP_CHARACTERS = 476  # for these ids and the member


class CommitMetadata:
    """The metadata that one member adds to its commits. It lets the next owner know who committed, in which topic."""

    membership: Membership
    """Set before the first commit."""

    def __init__(
        self, offsets: StoredOffsets | None, client: KafkaClient, state: SubscriptionState, fetcher: Fetcher
    ) -> None:
        self._offsets = offsets
        self._client = client
        self._state = state
        self._fetcher = fetcher
        self._metadata_bytes = METADATA_BYTES
        self._warned = False

    def added(self, offsets: Offsets) -> Offsets:
        """Adds the leader epoch if it is known, and the id of this member where the user gives no metadata."""
        membership = self.membership
        stamp = f"generation {membership.generation} member {membership.member_id}"
        self._state.members.add(membership.member_id)
        last_id, text = None, stamp  # reused while the topic stays the same, because most commits have one topic
        to_send, assignment = {}, self._state.assignment
        for partition, each in offsets.items():
            offset, metadata, epoch = each
            if epoch is None or epoch < 0:
                # the epoch lets the next owner detect a truncation of the log (KIP-320)
                epoch = self._fetcher.leader_epoch(partition, offset)
            if not metadata and isinstance(each, Committed) and each.done is not None:
                metadata = self._with_done(stamp, each.done, each.topic_id or self._topic_id(partition))
            elif not metadata:
                tenure = assignment.get(partition)
                topic_id = (tenure and tenure.topic_id) or self._client.topic_id(partition.topic)
                if topic_id is not last_id:
                    last_id, text = topic_id, stamped(stamp, topic_id)
                metadata = text
            to_send[partition] = OffsetAndMetadata(offset, metadata, epoch)
        return to_send

    def _with_done(self, stamp: str, done: DoneSet, topic_id: Any) -> str:
        self._warn_without_metadata()
        text, whole = done.encoded(self._metadata_bytes - IDS_CHARACTERS - len(stamp))
        self._client.measures.done_sets_cut += not whole
        return stamped(with_done(stamp, text), topic_id)

    @property
    def done_characters(self) -> int:
        """The number of characters in a commit's metadata that are free for done records beyond the offset."""
        return self._metadata_bytes - IDS_CHARACTERS - STAMP_CHARACTERS

    async def learn_limit(self) -> None:
        """Requests the metadata limit of a commit from the coordinator. Until then the default limit applies."""
        if self._offsets is not None and self._offsets.storage != "zookeeper":
            with contextlib.suppress(AllocatorError):  # the first request that needs the coordinator reports the error
                await self._offsets.find()
            self._metadata_bytes = await self._offsets.coordinator.metadata_bytes()

    def _warn_without_metadata(self) -> None:
        in_kafka = self._offsets is not None and self._offsets.storage != "zookeeper"
        if self._warned or (in_kafka and self._client.broker_version >= (0, 8, 2)):
            return
        self._warned = True
        log.warning(
            "%s: offsets in ZooKeeper have no metadata, so a commit cannot name the records that are done beyond its "
            "offset; after a restart or a move they are handled again. Offsets in Kafka (0.8.2 or newer) keep them",
            None if self._offsets is None else self._offsets.group,
        )

    def stamped(self, text: str, partition: TopicPartition) -> str:
        """Adds the topic's id to the metadata of a commit, so that a later member detects another topic of that
        name."""
        return stamped(text, self._topic_id(partition))

    def _topic_id(self, partition: TopicPartition) -> Any:
        return self._state.topic_id(partition) or self._client.topic_id(partition.topic)
