"""What the watcher makes of a group in the very moment that it changes."""

from __future__ import annotations

from typing import Any

import pytest
from served import served
from written_group import WrittenGroup, parts

from allocator.membership.store import Store
from allocator.wire.zookeeper import ZooKeeper


async def test_who_leaves_while_the_group_is_read_is_named_as_the_reason(
    zk_chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    zk = ZooKeeper(zk_chroot)
    await zk.connect(10)
    try:
        group = WrittenGroup(zk, "/allocator", "g", ["t"])
        a, b = await group.join(0, 1)
        held = {a: frozenset(parts(t=4)[:2]), b: frozenset(parts(t=4)[2:])}
        await group.assign(held)
        await group.claim(held)
        honest, armed = Store.document, False

        async def read(self: Store, *watch: Any) -> Any:
            nonlocal armed
            if watch and armed:
                armed = False  # the leader answers to a member that goes after the others were counted
                await group.leave(1)
                await group.assign({a: frozenset(parts(t=4))})
                await group.claim({a: frozenset(parts(t=4))})
            return await honest(self, *watch)

        monkeypatch.setattr(Store, "document", read)
        async with served(zk_chroot) as it:
            await it.settled("g", 1)
            armed = True
            await group.assign(held)
            await it.settled("g", 3)
            assert not armed
            newest = (await it.json("/api/groups/g"))["rebalances"][0]
            assert (newest["why"], newest["moved"]) == (["left: worker-01"], 2)
    finally:
        await zk.close()
