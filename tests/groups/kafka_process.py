"""One member in its own process, which a test can pause and resume.

    python kafka_process.py BOOTSTRAP GROUP TOPIC

Prints one JSON list a line: [time, what, partitions], for the events of a `History`, and for "acts", whenever the
member finds that it may act. On the line `commit P OFFSET` of its standard input it commits, and prints
["commit", the error's class or null]. It leaves at the end of its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kafka_members import ClassicMember
from members import History

from allocator.core.aio.tasks import TaskGroup
from allocator.errors import AllocatorError
from allocator.types import OffsetAndMetadata, TopicPartition

NAME = "process"


class _PrintedHistory(History):
    """Prints each event as a line."""

    def note(self, member: str, what: str, partitions: Any) -> None:
        super().note(member, what, partitions)
        _write(self.events[-1][0], what, partitions)


def _write(when: float, what: str, partitions: Any) -> None:
    print(json.dumps([when, what, sorted(p.partition for p in partitions)]), flush=True)


async def _act(member: ClassicMember) -> None:
    while True:
        when, held = time.monotonic(), member.held
        if member.membership.may_act():
            _write(when, "acts", held)
        await asyncio.sleep(0.02)


async def _obey(member: ClassicMember, topic: str) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().split():
        error = None
        try:
            await member.offsets.commit({TopicPartition(topic, int(line[1])): OffsetAndMetadata(int(line[2]), "", -1)})
        except AllocatorError as refused:
            error = type(refused).__name__
        print(json.dumps(["commit", error]), flush=True)


async def main(bootstrap: str, group: str, topic: str) -> None:
    async with ClassicMember(bootstrap, group, [topic], name=NAME, history=_PrintedHistory()) as member:
        await TaskGroup().run(_obey(member, topic), act=_act(member))


class MemberProcess:
    """The test's side of the process."""

    def __init__(self, process: asyncio.subprocess.Process, topic: str, history: History) -> None:
        self.process = process
        self.held: frozenset[TopicPartition] = frozenset()
        self.acted: list[tuple[float, frozenset[TopicPartition]]] = []
        self.results: list[str | None] = []
        self._topic = topic
        self._history = history

    def signal(self, number: int) -> float:
        """Sends a signal, and returns the time."""
        self.process.send_signal(number)
        return time.monotonic()

    def commit(self, partition: int, offset: int) -> None:
        """Requests a commit, whose result comes to `results`. A paused process reads the request when it continues."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"commit {partition} {offset}\n".encode())

    async def listen(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            first, *rest = json.loads(line)
            if first == "commit":
                self.results.append(rest[0])
                continue
            what, parts = rest[0], frozenset(TopicPartition(self._topic, n) for n in rest[1])
            if what == "acts":
                self.acted.append((first, parts))
                continue
            self._history.events.append((first, NAME, what, parts))
            if what == "begin":
                self.held |= parts
            elif what in ("end", "lost"):
                self.held -= parts


@asynccontextmanager
async def member_process(bootstrap: str, group: str, topic: str, history: History) -> AsyncIterator[MemberProcess]:
    """Starts a member. It leaves at the end of the block, or is killed if it does not."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, bootstrap, group, topic, stdin=pipe, stdout=pipe
    )
    member = MemberProcess(process, topic, history)
    listening = asyncio.ensure_future(member.listen())
    try:
        yield member
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait({listening}, timeout=20)
        listening.result()
        assert await process.wait() == 0
    finally:
        listening.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
