"""The journal of a member: one JSON line for each event.

    {"what": "joined"}                                            the member starts to read
    {"what": "own", "partitions": [0, 3]}                         also "revoked" and "lost"
    {"what": "did", "partition": 3, "offset": 17, "from": 12.5}   the member processed this record from 12.5 to "at"
    {"what": "did", ..., "key": "7"}                              the same, from a member that processes by key
    {"what": "commit", "offsets": {"3": 18}}                      an acknowledged commit: the next offset to read
    {"what": "commit", ..., "done": {"3": [[20, 25]]}}            the same, with the ranges beyond it that are done
    {"what": "refused", "offsets": {"3": 18}, "why": "..."}       a commit that failed
    {"what": "left"}                                              the member has left the group

Each line also has "at": seconds of CLOCK_MONOTONIC, which all processes of a machine share and which continues while a
process is stopped. A line is one system call, so a kill -9 neither loses nor cuts a line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Journal"]


class Journal:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, what: str, **event: Any) -> None:
        # read the clock first: the process may be stopped before it writes the line
        line = {"at": time.monotonic(), "what": what, **event}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def ownership(self, what: str, partitions: Iterable[int]) -> None:
        self.write(what, partitions=sorted(partitions))

    def did(self, partition: int, offset: int, began: float, ended: float | None = None, **more: Any) -> None:
        """`ended`: the time before the check of ownership, because the process may be stopped between the check and
        this call; None: there is no check."""
        self.write(
            "did",
            at=time.monotonic() if ended is None else ended,
            partition=partition,
            offset=offset,
            **{"from": began},
            **more,
        )

    def commit(self, offsets: Mapping[int, int], **more: Any) -> None:
        self.write("commit", offsets=dict(offsets), **more)

    def refused(self, offsets: Mapping[int, int], why: object) -> None:
        self.write("refused", offsets=dict(offsets), why=str(why))
