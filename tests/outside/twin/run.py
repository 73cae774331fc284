"""Plays random histories, and prints the seed and the smallest history of each difference without a reason.

python -m tests.outside.twin.run --seeds 0:100 --kafka 3.9.1 --seconds 3600
python -m tests.outside.twin.run --seeds 17 --kafka 2.8.2 --clients allocator-kafka,aiokafka
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Optional

from allocator.testing import LocalCluster
from tests.outside.java_tools import number
from tests.outside.twin.differences import Difference
from tests.outside.twin.history import History, draw, numbered, shown, smaller
from tests.outside.twin.twins import Hosts, Twins, clients_for

AT_ONCE = 6  # histories; they wait most of their time
BROKEN = 12  # histories in a row that could not be played, after which the servers count as lost
HISTORY_S = 400.0
# for the groups of KIP-848, whose session timeouts are settings of the brokers
KIP848 = {
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 4000,
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 500,
}


def broker_config(version: str) -> dict[str, int]:
    return KIP848 if number(version) >= (4,) else {}


async def differences(
    hosts: Hosts, histories: Iterable[History], at_once: int = AT_ONCE
) -> AsyncIterator[tuple[History, list[Difference]]]:
    """Plays histories, some at once, and yields each with its differences as soon as it ends."""
    waiting, running = iter(histories), set()
    try:
        while True:
            while len(running) < at_once and (history := next(waiting, None)) is not None:
                running.add(asyncio.ensure_future(_played(hosts, history)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                yield each.result()
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _played(hosts: Hosts, history: History) -> tuple[History, list[Difference]]:
    twins = Twins(hosts, history)
    try:
        return history, await asyncio.wait_for(twins.play(), HISTORY_S)
    except Exception as error:  # noqa: BLE001 - the other histories are played, and this one is reported
        return history, [twins.broken(error)]


def faults(found: Iterable[Difference]) -> list[Difference]:
    return [each for each in found if each.unexplained()]


async def smallest(hosts: Hosts, history: History, fault: Difference) -> Difference:
    """Returns the same kind of difference in the smallest history that has it."""
    smaller_one = True
    while smaller_one:
        smaller_one = False
        async with contextlib.aclosing(differences(hosts, smaller(fault.history))) as played:
            async for _, found in played:
                same = [each for each in faults(found) if each.facet == fault.facet]
                if same:
                    fault, smaller_one = same[0], True
                    break
    return fault


async def search(hosts: Hosts, seeds: Sequence[int], seconds: float, shrink: int, at_once: int) -> int:
    """Returns the number of histories with differences."""
    seed_of, bad, count, broken, end = {}, [], 0, 0, time.monotonic() + seconds

    def drawn() -> Iterable[History]:
        for seed in seeds:
            if time.monotonic() > end:
                return
            history = draw(seed)
            seed_of[history] = seed
            yield history

    async for history, found in differences(hosts, drawn(), at_once):
        count += 1
        broken = broken + 1 if any(each.facet == "end" for each in found) else 0
        if broken == BROKEN:
            raise RuntimeError(f"{BROKEN} histories in a row could not be played; the last one: {found[-1]}")
        wrong = faults(found)
        if wrong:
            bad.append(wrong[0])
            print(f"seed {seed_of[history]}: {wrong[0]}", flush=True)
    for fault in bad[:shrink]:
        least = await smallest(hosts, fault.history, fault)
        print(f"\nseed {seed_of[fault.history]}, smallest: {least}\n{shown(least.history)}", flush=True)
    print(f"\n{count} histories on {hosts.cluster.version}, {len(bad)} with differences", flush=True)
    return len(bad)


async def main(arguments: argparse.Namespace) -> int:
    clients = clients_for(arguments.kafka)
    if arguments.clients:
        clients = {name: clients[name] for name in arguments.clients.split(",")}
    directory = Path(tempfile.mkdtemp(prefix="allocator-twin-"))
    print(f"the logs of the members are in {directory}")
    with LocalCluster(arguments.kafka, broker_config=broker_config(arguments.kafka)) as cluster:
        async with Hosts(cluster, clients, directory) as hosts:
            return await search(
                hosts, numbered(arguments.seeds), arguments.seconds, arguments.shrink, arguments.at_once
            )


def parsed(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:20", help="one seed, or first:end (default: %(default)s)")
    parser.add_argument("--kafka", default="3.9.1", metavar="VERSION")
    parser.add_argument("--seconds", type=float, default=3600.0, help="plays no further history after this time")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="histories that are played at once")
    parser.add_argument("--shrink", type=int, default=3, help="looks for the smallest history of so many differences")
    parser.add_argument("--clients", help="names with commas between them; all by default")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main(parsed())) else 0)
