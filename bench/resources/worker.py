"""Runs one member, which prints a line of JSON after each change of its assignment.

python -m bench.resources.worker allocator 127.0.0.1:2181 1000
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from collections.abc import Callable

from kazoo.client import KazooClient
from kazoo.recipe.partitioner import PartitionState

from allocator import Allocation

SESSION_S = 10.0


def tell(owned: int) -> None:
    # all processes of a machine share CLOCK_MONOTONIC
    print(json.dumps({"at": time.monotonic(), "owned": owned}), flush=True)


def allocator(hosts: str, names: list[str], stopped: threading.Event) -> None:
    async def run() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        owned = 0

        def changed(by: int) -> None:
            nonlocal owned
            owned += by
            tell(owned)

        async with Allocation(
            names,
            group="bench",
            zookeeper=hosts,
            session_timeout_s=SESSION_S,
            on_assigned=lambda found: changed(len(found)),
            on_revoked=lambda found: changed(-len(found)),
        ):
            await stop.wait()

    asyncio.run(run())


def set_partitioner(hosts: str, names: list[str], stopped: threading.Event) -> None:
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    client = KazooClient(hosts, timeout=SESSION_S)
    client.start()
    partitioner = client.SetPartitioner("/bench", set=tuple(names), time_boundary=0.5)
    before = -1
    while not stopped.is_set():
        if partitioner.state == PartitionState.RELEASE:
            partitioner.release_set()
        elif partitioner.state == PartitionState.ALLOCATING:
            partitioner.wait_for_acquire(0.05)
        elif partitioner.failed:
            raise SystemExit("SetPartitioner failed")
        owned = len(list(partitioner)) if partitioner.acquired else 0
        if owned != before:
            tell(owned)
            before = owned
        stopped.wait(0.005)
    partitioner.finish()
    client.stop()


CONTENDERS: dict[str, Callable[[str, list[str], threading.Event], None]] = {
    "allocator": allocator,
    "SetPartitioner": set_partitioner,
}


def main() -> None:
    contender, hosts, count = sys.argv[1:]
    names = [f"customer-{number:06d}" for number in range(int(count))]
    CONTENDERS[contender](hosts, names, threading.Event())


if __name__ == "__main__":
    main()
