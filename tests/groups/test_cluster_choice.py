"""A cluster choice that somebody else wrote neither ends a service nor changes what it reads."""

from __future__ import annotations

import pytest

from allocator.errors import ConfigError
from allocator.operate import ChoiceWatcher
from allocator.protocols.zookeeper import ZooKeeperClient
from allocator.protocols.zookeeper.cluster_choice import ClusterChoice, choice_path, read_choice


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"brokers":' * 50_000,
        b'{"format":1e999,"brokers":null,"frozen":false}',
        b'{"format":1,"brokers":7,"frozen":false}',
    ],
)
async def test_a_member_that_rejoins_keeps_its_cluster_if_the_choice_is_invalid(zk_chroot: str, data: bytes) -> None:
    path = choice_path("/allocator", "g")
    watcher = ChoiceWatcher(ZooKeeperClient(zk_chroot), path)
    await watcher.start()
    zk = ZooKeeperClient(zk_chroot)
    await zk.connect()
    try:
        await zk.ensure_path("/allocator/g")
        await zk.create(path, data)
        with pytest.raises(ConfigError, match="is not a valid cluster choice"):
            await read_choice(zk, path)
        assert await watcher.still(ClusterChoice())(zk)
        assert watcher.current == ClusterChoice()
    finally:
        await zk.close()
        await watcher.close()
