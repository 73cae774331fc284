"""Computes the fencing token of each partition from its owner's claims. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Optional

from allocator.protocols.zookeeper import Claim
from allocator.types import NO_PARTITIONS, TopicPartition


class Fence(NamedTuple):
    """The fencing token of a partition: the id of the transaction that added it to its owner's claim."""

    transaction: int
    exact: bool
    """False: the token may be lower than `transaction`, because this process did not see the claim before that
    write."""


class Fences:
    """Computes the fencing tokens from claims.

    ZooKeeper stores only the last write of a claim, so a token is exact only if this process saw the claim before it.
    """

    def __init__(self) -> None:
        self._claims: Mapping[str, Claim] = {}
        self._of: dict[TopicPartition, Fence] = {}

    def learn(self, claims: Mapping[str, Claim]) -> None:
        """Updates the tokens from the current claims of all members."""
        found: dict[TopicPartition, Fence] = {}
        for member, claim in claims.items():
            if not claim.transaction:
                continue
            before = self._claims.get(member)
            if before is None:
                # a member creates its claim empty, as version 0
                before = Claim(0, NO_PARTITIONS, 0)
            exact = claim.version <= before.version + 1
            same = before.held if exact else NO_PARTITIONS
            fresh = Fence(claim.transaction, exact)
            found.update((p, self._of.get(p, fresh) if p in same else fresh) for p in claim.held)
        self._claims, self._of = dict(claims), found

    def of(self, partition: TopicPartition) -> Optional[Fence]:
        """Returns the token; None if no member owns the partition, or if the group uses Kafka's own protocols."""
        return self._of.get(partition)
