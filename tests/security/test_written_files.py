"""Written files are complete or absent, and no foreign link is followed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap

import pytest

from allocator.documents import write_file, write_json
from allocator.errors import ConfigError
from allocator.spark.archive.commits import CommitLog


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "place"
    path.mkdir()
    return path


def test_state_is_not_written_through_a_link(victim, place):
    for name in ("state.json", f"state.json.{os.getpid()}.part"):
        (place / name).symlink_to(victim)
    write_json(place / "state.json", {"a": 1})
    assert not (place / "state.json").is_symlink()


def test_the_lock_of_an_archive_is_no_link(victim, place):
    (place / "_lock").symlink_to(victim)
    with pytest.raises(ConfigError, match="cannot be written"), CommitLog(place).locked():
        pytest.fail("the lock was taken through the link")


@pytest.mark.parametrize("planted", ["a link", "writable by all"])
def test_locks_of_ports_are_in_a_directory_of_the_user_alone(tmp_path, planted):
    directory = tmp_path / f"allocator-ports-{os.getuid()}"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if planted == "a link":
        directory.symlink_to(elsewhere)
    else:
        directory.mkdir()
        directory.chmod(0o777)
    take = [sys.executable, "-c", "from allocator.testing.ports import PortLease; PortLease().take()"]
    done = subprocess.run(take, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert f"allocator-ports-{os.getuid()} is not a directory that you alone" in done.stderr
    assert not list(elsewhere.iterdir())


def test_the_mode_is_kept(place):
    state = place / "state"
    previous = os.umask(0o027)
    try:
        write_file(state, "new")
    finally:
        os.umask(previous)
    modes = [stat.S_IMODE(state.stat().st_mode)]
    state.chmod(0o600)
    for options in ({}, {"mode": 0o755}):
        write_file(state, "newer", **options)
        modes.append(stat.S_IMODE(state.stat().st_mode))
    assert modes == [0o640, 0o600, 0o755]
    assert [path.name for path in place.iterdir()] == ["state"]


def test_an_existing_file_that_must_be_new_and_a_pipe_are_not_replaced(place):
    (place / "taken").write_text("old")
    with pytest.raises(FileExistsError):
        write_file(place / "taken", "new", fresh=True)
    write_file(place / "free", "new", fresh=True)
    assert {path.name: path.read_text() for path in place.iterdir()} == {"taken": "old", "free": "new"}
    os.mkfifo(place / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        write_file(place / "pipe", "new")
    assert stat.S_ISFIFO((place / "pipe").stat().st_mode)


def test_a_full_disk_leaves_the_old_file_whole(place):
    (place / "state.json").write_text("[1]")
    source = """
        import resource, signal, sys
        from pathlib import Path
        from allocator.errors import ConfigError
        from allocator.documents import write_json

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails then, in the middle
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        try:
            write_json(Path(sys.argv[1]), list(range(100_000)))
        except ConfigError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), str(place / "state.json")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "state.json cannot be written: [Errno 27] File too large" in done.stdout, done.stderr
    assert (place / "state.json").read_text() == "[1]"
    assert [path.name for path in place.iterdir()] == ["state.json"]
