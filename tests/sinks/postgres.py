"""A PostgreSQL server for tests, with its own directory and socket."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def program(name: str) -> str | None:
    """Returns the path of a program, from PATH or Debian's package."""
    beside = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(beside[-1]) if beside else None)


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """Starts a server, and yields its URL for SQLAlchemy."""
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed (extra `sql`)")
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra `sql`)")
    initdb, pg_ctl = program("initdb"), program("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("no PostgreSQL server on this machine; on Debian: apt-get install postgresql")
    directory = tempfile.mkdtemp(prefix="allocator-postgres-")
    options: dict[str, Any] = {"check": True, "capture_output": True, "cwd": directory, "timeout": 120}
    if os.geteuid() == 0:  # the server refuses to run as root
        user = pwd.getpwnam("postgres")
        os.chown(directory, user.pw_uid, user.pw_gid)
        options.update(user=user.pw_uid, group=user.pw_gid, extra_groups=[])
    data = f"{directory}/data"
    subprocess.run([initdb, "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"], **options)
    # processes that `pg_ctl` starts keep its pipes open
    quiet = {**options, "capture_output": False, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    settings = f"-k {directory} -c listen_addresses='' -c fsync=off"
    subprocess.run([pg_ctl, "-D", data, "-w", "-t", "100", "-l", f"{directory}/log", "-o", settings, "start"], **quiet)
    try:
        yield f"postgresql+psycopg://postgres@/postgres?host={directory}"
    finally:
        subprocess.run([pg_ctl, "-D", data, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(directory, ignore_errors=True)
