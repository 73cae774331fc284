"""Handlers for daemons under test. They run in the daemon's process and write one line per record to a file."""

from __future__ import annotations

import asyncio
import atexit
import json
import linecache
import os
import subprocess
import sys
import time
from typing import Any

from tornado.ioloop import IOLoop

from allocator.errors import AllocatorError

DONE = os.environ.get("DONE_FILE", "")
POISON = os.environ.get("POISON", "").encode()


def note(record: Any, **more: Any) -> None:
    line = {"pid": os.getpid(), "partition": record.partition, "offset": record.offset, "value": record.value.decode()}
    line["time"] = time.time()
    with open(DONE, "a") as file:
        file.write(json.dumps({**line, **more}) + "\n")


def plain(record: Any) -> None:
    if POISON and record.value == POISON:
        raise ValueError("this record is poison")
    note(record)


def returns(record: Any) -> Any:
    from allocator import Produce

    plain(record)
    return Produce(os.environ["RESULTS"], record.value, key=b"%d" % (record.offset % 3))


async def coroutine(record: Any) -> None:
    await asyncio.sleep(0)
    plain(record)


def leaves(record: Any) -> None:
    if record.value == POISON:
        sys.exit()
    note(record)


async def interrupts(record: Any) -> None:
    if record.value == POISON:
        raise KeyboardInterrupt
    note(record)


async def task_leaves(record: Any) -> None:
    if record.value == POISON:
        await asyncio.create_task(leave())
    note(record)


async def leave() -> None:
    sys.exit()


def batch(batch: Any) -> None:
    for record in batch:
        note(record, batch=len(batch))


def batch_fails(batch: Any) -> None:
    raise ValueError("no")


def slow(record: Any) -> None:
    time.sleep(0.005)
    note(record)


async def swallows(record: Any) -> None:
    note(record)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            note(record, swallowed=True)


def held(record: Any) -> None:
    """Handles record 5 of each partition until a file exists."""
    note(record, begun=True)
    while record.offset == 5 and not os.path.exists(os.environ["RELEASE_FILE"]):
        time.sleep(0.02)
    note(record)


def lingers(record: Any) -> None:
    """The interpreter of its process exits only when a file exists."""
    note(record)
    if record.offset == 0:
        atexit.register(linger, record)


def linger(record: Any) -> None:
    note(record, exits=True)
    while not os.path.exists(os.environ["RELEASE_FILE"]):
        time.sleep(0.02)


def blocks(record: Any) -> None:
    note(record)
    time.sleep(600)


class Refused(AllocatorError):
    """An error of the user below the library's own base."""


def quoting(record: Any) -> None:
    """Fails at each record, and quotes it in each way that a handler may."""
    text = record.value.decode()
    way = record.offset % 6
    if way == 1:
        raise Refused(text)
    if way == 2:
        try:
            raise KeyError(text)
        except KeyError as error:
            raise LookupError("not there") from error
    if way == 3:
        raise ValueError(f"line 1\n{text}\nline 3 \x1b[31m")
    if way == 4:
        raise ValueError(text * 10_000)
    if way == 5:
        json.loads(text)
    raise ValueError(text)


def quoting_generated(record: Any) -> None:
    """Fails in generated code that has the record in its lines and names, as template engines make."""
    text = record.value.decode()
    lines = [f"def made_{record.offset}():", f"    raise ValueError(1)  # {text}", f"made_{record.offset}()"]
    name = f"<made from {text}>"
    linecache.cache[name] = (1, None, [f"{line}\n" for line in lines], name)
    exec(compile("\n".join(lines), name, "exec"), {})


async def quoting_background(record: Any) -> None:
    """Starts work that fails after the call, and whose errors quote the record in ways of their own."""
    text, loop = record.value.decode(), asyncio.get_running_loop()

    async def fail() -> None:
        if record.offset == 0:
            (b"\xff" + record.value).decode()
        if record.offset == 1:
            raise subprocess.CalledProcessError(3, ["tool", text, "x" * 400])
        if record.offset == 2:
            raise ValueError(text, "x" * 400)
        raise LookupError(text)

    if record.offset < 4:
        await asyncio.wait({loop.create_task(fail())})
    elif record.offset == 4:
        loop.call_soon(json.loads, text)  # fails, and asyncio's line has the arguments
    else:
        IOLoop.current().add_callback(json.loads, text)
    await asyncio.sleep(0)  # the next record comes when this one has failed


async def quoting_task(record: Any) -> None:
    """Like `quoting`, in a task that nobody awaits too."""
    task = asyncio.ensure_future(asyncio.to_thread(quoting, record))
    await asyncio.wait({task})
    del task
    quoting(record)
