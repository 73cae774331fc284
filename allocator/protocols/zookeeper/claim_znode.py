"""Writes the claim of one member, in shards if it is too large for one znode."""

from __future__ import annotations

import itertools
from functools import partial

from allocator.documents import SMALL_PARTITIONS
from allocator.protocols.zookeeper.client.client import BadVersion, NoZnode, Op, ZooKeeperClient
from allocator.protocols.zookeeper.client.ephemeral import EphemeralZnodes
from allocator.protocols.zookeeper.session_lease import MembershipLost
from allocator.protocols.zookeeper.znodes.documents import Claim, Paths, split
from allocator.protocols.zookeeper.znodes.store import computed


class ClaimZnode:
    """The claim of `member`. All its znodes are among `znodes`, so they end with the session."""

    def __init__(self, zk: ZooKeeperClient, znodes: EphemeralZnodes, paths: Paths, member: str) -> None:
        self.written = Claim(0)
        """The claim that was written last."""
        self._zk = zk
        self._znodes = znodes
        self._paths = paths
        self._member = member
        self._numbers = itertools.count()
        self._shards: set[str] = set()  # paths of those that may exist
        self._transaction: int | None = None
        """The id of the last write; None before the first one, and while the result of one is unknown."""

    async def create(self) -> None:
        await self._znodes.create({self._paths.claim(self._member): self.written.encode(self._member)})

    async def write(self, claim: Claim, *checks: Op) -> int:
        """Writes the claim in one transaction with `checks`, and returns its id. Raises BadVersion or NoZnode if a
        check fails."""
        path = self._paths.claim(self._member)
        data = await computed(partial(claim.encode, self._member), len(claim.held) >= SMALL_PARTITIONS)
        head, pieces = split(data, self._member, next(self._numbers))
        shards = {f"{self._paths.claims}/{name}": piece for name, piece in pieces.items()}
        self._shards |= shards.keys()
        for shard, piece in shards.items():  # one transaction for all would be too large
            await self._znodes.create({shard: piece})
        before, self._transaction = self._transaction, None
        try:
            transaction = await self._zk.multi([*checks, Op("set", path, head)])
        except (BadVersion, NoZnode):
            self._transaction = before
            if await self._zk.exists(path) is None:
                raise MembershipLost("its claim was deleted") from None
            raise
        self.written, self._transaction = claim, transaction
        if self._shards:
            await self._znodes.delete(self._shards - shards.keys())
            self._shards &= shards.keys()
        return transaction

    async def is_intact(self) -> bool:
        """Returns whether the claim is what this member has written last, as far as that is known."""
        before = self._transaction
        stat = await self._zk.exists(self._paths.claim(self._member))
        if stat is None:
            return False
        return before in (None, stat.zxid) or self._transaction != before
