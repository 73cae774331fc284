"""The znodes of a group are deleted while a member joins, claims and leads; it still gets all partitions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError
from members import History, StaticTopics, TestMember, settled

from allocator.core.zookeeper.client import ZooKeeperClient
from allocator.operate.cluster_choice import ClusterChoice, choice_path, choose_cluster, read_choice
from allocator.testing import wait_until_async

STEPS = 100  # more than a member takes to own everything


def uproot(zk: ZooKeeperClient, after: int, delete: Callable[[], None]) -> list[str]:
    """Deletes once, after so many requests of `zk` were answered; returns the requests, as they come."""
    requests: list[str] = []
    answer: Callable[[str, str, Any], Awaitable[Any]] = zk._await

    async def answer_and_delete(what: str, path: str, result: Any) -> Any:
        try:
            return await answer(what, path, result)
        finally:
            requests.append(f"{what} {path}")
            if len(requests) == after:
                await asyncio.to_thread(delete)

    zk._await = answer_and_delete  # type: ignore[method-assign]
    return requests


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
        member = TestMember(zk_chroot, "g", "a", topics, History(), session_timeout_s=2.0)
        requests = uproot(member.zk, step, lambda: delete(f"/allocator{what}"))
        async with member:
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
    for step in range(1, 7):
        delete("/allocator")
        zk = ZooKeeperClient(zk_chroot)
        await zk.connect()
        try:
            requests = uproot(zk, step, lambda: delete("/allocator"))
            await choose_cluster(zk, choice_path("/allocator", "g"), choice)
            if len(requests) != step:  # else it was deleted after it was written
                assert await read_choice(zk, choice_path("/allocator", "g")) == choice
        finally:
            await zk.close()
