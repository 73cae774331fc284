"""The znodes of a group are deleted while a member joins, claims and leads; it still gets all partitions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.protocols.zookeeper.cluster_choice import ClusterChoice, choice_path, choose_cluster, read_choice
from allocator.testing import wait_until_async
from tests.groups.members import History, StaticTopics, TestMember, settled

STEPS = 100  # more than a member takes to own everything


class Uprooted(ZooKeeperClient):
    """Calls `delete` once, after `after` requests were answered."""

    def __init__(self, after: int, delete: Callable[[], None], hosts: str, **options: Any) -> None:
        super().__init__(hosts, **options)
        self.after, self.delete_all = after, delete
        self.requests: list[str] = []


def counted(name: str) -> Callable[..., Awaitable[Any]]:
    async def request(self: Uprooted, *arguments: Any, **options: Any) -> Any:
        try:
            return await getattr(ZooKeeperClient, name)(self, *arguments, **options)
        finally:
            self.requests.append(f"{name} {arguments[:1]}")
            if len(self.requests) == self.after:
                await asyncio.to_thread(self.delete_all)

    return request


for each in ("get", "exists", "get_children", "create", "set", "delete", "multi", "ensure_path"):
    setattr(Uprooted, each, counted(each))


@pytest.fixture
def delete(zk_chroot: str) -> Any:
    client = KazooClient(zk_chroot)
    client.start(20)

    def below(path: str) -> None:
        for _ in range(20):  # other members may create znodes below the one being deleted
            with contextlib.suppress(NoNodeError, NotEmptyError):
                client.delete(path, recursive=True)
                return

    yield below
    client.stop()
    client.close()


@pytest.mark.parametrize(
    ("what", "stride"),
    [
        ("", 2),
        ("/g/claims", 3),
        *(pytest.param(f"/g/{name}", 1, marks=pytest.mark.long) for name in ("members", "shards", "assignment")),
    ],
    ids=str,
)
@pytest.mark.deadline(300)
async def test_a_member_whose_group_is_deleted_at_any_step_comes_to_own_everything(
    what: str, stride: int, zk_chroot: str, delete: Callable[[str], None]
) -> None:
    topics = StaticTopics({"t": 6})
    for step in range(1, STEPS, stride):
        delete("/allocator")
        client = partial(Uprooted, step, lambda: delete(f"/allocator{what}"))
        member = TestMember(zk_chroot, "g", "a", topics, History(), session_timeout_s=2.0, client=client)
        async with member:
            requests = member.zk.requests
            await wait_until_async(
                lambda: settled([member], topics) and member.membership.may_act(),  # noqa: B023
                30,
                lambda: f"everything to be owned; deleted after {requests[: step + 1][-2:]}",  # noqa: B023
                interval_s=0.005,
            )
            reached = len(requests) >= step
        if not reached:
            break
    else:
        raise AssertionError(f"{STEPS} steps were not all: {requests}")
    assert step > 10
    print(f"{step - 1} steps")


async def test_a_choice_is_written_though_its_group_is_deleted(zk_chroot: str, delete: Callable[[str], None]) -> None:
    choice = ClusterChoice("a:1", frozen=True)
    for step in range(1, 5):
        delete("/allocator")
        zk = Uprooted(step, lambda: delete("/allocator"), zk_chroot)
        await zk.connect()
        try:
            await choose_cluster(zk, choice_path("/allocator", "g"), choice)
            if len(zk.requests) != step:  # else it was deleted after it was written
                assert await read_choice(zk, choice_path("/allocator", "g")) == choice
        finally:
            await zk.close()
