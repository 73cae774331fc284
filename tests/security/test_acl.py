"""With credentials, all created znodes have restrictive ACLs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError, NotEmptyError
from kazoo.security import OPEN_ACL_UNSAFE

from allocator import AllocatorError, Consumer, ZooKeeper
from allocator.protocols.zookeeper.znodes import documents as znodes
from allocator.testing import LocalCluster, wait_until_async
from tests.constants import SetConstant
from tests.joining import joined
from tests.security.secured import DIGEST_OPTIONS


@contextlib.contextmanager
def kazoo(hosts: str, auth: list[tuple[str, str]] | None = None) -> Iterator[KazooClient]:
    client = KazooClient(hosts, timeout=10, auth_data=auth)
    client.start(20)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def walk(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    with contextlib.suppress(NoNodeError):
        for name in client.get_children(path):
            yield from walk(client, f"{path}/{name}")


OPERATIONS: dict[str, Callable[[KazooClient, str], Any]] = {
    "get": lambda client, path: client.get(path),
    "list": lambda client, path: client.get_children(path),
    "set": lambda client, path: client.set(path, b"x"),
    "create": lambda client, path: client.create(f"{path}/x", b"", acl=OPEN_ACL_UNSAFE),
    "create ephemeral": lambda client, path: client.create(f"{path}/x", b"", ephemeral=True, acl=OPEN_ACL_UNSAFE),
    "delete": lambda client, path: client.delete(path),
    "read the ACL": lambda client, path: client.get_acls(path),
    "open the ACL": lambda client, path: client.set_acls(path, OPEN_ACL_UNSAFE),
    "sync and get": lambda client, path: (client.sync(path), client.get(path)),
}


def breached(stranger: KazooClient, paths: list[str], top: str) -> list[str]:
    """Returns each operation on a znode that was not refused with NoAuthError."""
    found = []
    for path in paths:
        for name, operation in OPERATIONS.items():
            try:
                operation(stranger, path)
            except NoAuthError:
                continue
            except NotEmptyError:
                # the ACL of the parent governs deletion, and the group does not own the parent of the topmost znode
                if (path, name) == (top, "delete"):
                    continue
                raise
            except NoNodeError:
                pass  # the group may have deleted it; the caller then repeats everything
            found.append(f"{name} {path}")
    return found


@pytest.mark.parametrize("chroot", ["", "/of/two/levels"], ids=["no chroot", "a chroot that the member creates"])
async def test_a_stranger_is_refused_every_operation_on_every_znode(
    kafka_cluster: LocalCluster,
    topic_factory: Callable[..., str],
    unique_name: Callable[[], str],
    set_constant: SetConstant,
    chroot: str,
) -> None:
    set_constant(znodes, SHARD_BYTES=64)  # so that the assignment has shards
    topic, group, root = topic_factory(8), unique_name(), f"/{unique_name()}"
    place = f"/{unique_name()}{chroot}" if chroot else ""

    settings: dict[str, Any] = {
        "brokers": kafka_cluster.bootstrap,
        "zookeeper": kafka_cluster.zookeeper + place,
        "group": group,
        "membership": ZooKeeper(root=root, zookeeper_options=DIGEST_OPTIONS),
    }
    async with Consumer(topic, **settings) as one, Consumer(topic, **settings) as two:
        await wait_until_async(lambda: len(one.assignment()) == len(two.assignment()) == 4, 30, "both to own four")
        top = f"/{place.split('/')[1]}" if place else root

        def attack() -> tuple[list[str], list[str], list[str]]:
            with (
                kazoo(kafka_cluster.zookeeper, DIGEST_OPTIONS["auth_data"]) as member,
                kazoo(kafka_cluster.zookeeper) as stranger,
                kazoo(kafka_cluster.zookeeper, [("digest", "mallory:guess")]) as other,
            ):
                for _ in range(5):
                    paths = list(walk(member, top))
                    found = paths, breached(stranger, paths, top), breached(other, paths, top)
                    # the leader may still delete the shards of an earlier assignment
                    if list(walk(member, top)) == paths:
                        break
                return found

        paths, by_stranger, by_other = await asyncio.to_thread(attack)
        base = f"{place}{root}/{group}"
        kinds = [f"{base}/members/m-", f"{base}/claims/m-", f"{base}/assignment", f"{base}/shards/"]
        assert all(any(path.startswith(kind) for path in paths) for kind in kinds), paths
        assert not by_stranger
        assert not by_other
        assert len(one.assignment()) == len(two.assignment()) == 4


async def test_a_member_with_the_wrong_credentials_does_not_join(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = topic_factory(2)
    settings: dict[str, Any] = {
        "brokers": kafka_cluster.bootstrap,
        "zookeeper": kafka_cluster.zookeeper,
        "group": group,
        "root": f"/{group}-root",
    }
    async with Consumer(topic, **joined(zookeeper_options=DIGEST_OPTIONS, **settings)) as one:
        await wait_until_async(lambda: len(one.assignment()) == 2, 30, "its partitions")
        wrong = {"auth_data": [("digest", "allocator:wrong")]}
        with pytest.raises(AllocatorError, match=f"/{group}-root.*its ACL does not allow it"):
            await Consumer(topic, **joined(zookeeper_options=wrong, connect_timeout_s=10, **settings)).start()
        assert len(one.assignment()) == 2
