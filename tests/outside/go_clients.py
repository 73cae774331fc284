"""Members in Go, built once into the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from allocator.testing.jars import cache_directory

SOURCES = Path(__file__).parent / "go"
ASSIGNORS = {
    "franz": ("range", "roundrobin", "sticky", "cooperative-sticky"),
    "sarama": ("range", "roundrobin", "sticky"),
    "kafkago": ("range", "roundrobin"),
}
"""The assignors of each client that allocator has as well."""


@cache
def program(client: str) -> str:
    """Returns the path of the built program. Skips without Go or its modules; fails if it does not compile."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("members in Go need `go`, which is neither on PATH nor in /usr/local/go/bin")
    source = SOURCES / client
    digest = hashlib.sha256(b"".join((source / name).read_bytes() for name in ("main.go", "go.mod", "go.sum")))
    built = cache_directory() / "clients" / f"go-{client}-{digest.hexdigest()[:16]}"
    built.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{built}.lock"):
        if not built.exists():
            fetched = subprocess.run([go, "mod", "download"], cwd=source, capture_output=True, text=True, timeout=240)
            if fetched.returncode:
                pytest.skip(f"the modules of {client} could not be fetched: {fetched.stderr.strip()[-500:]}")
            part = f"{built}.part"
            environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
            done = subprocess.run(
                [go, "build", "-o", part, "."], cwd=source, capture_output=True, text=True, env=environment, timeout=280
            )
            assert not done.returncode, done.stderr
            Path(part).replace(built)
    return str(built)


def as_event(line: dict[str, Any], offset: float) -> Iterable[dict[str, Any]]:
    """Converts a line of a Go member, which has the time of day, into an event of a journal."""
    event = {**line, "at": line.pop("t") - offset}
    if "from" in event:
        event["from"] -= offset
    yield event
