"""How a command ends without a traceback: Ctrl-C, output that cannot be written, limits of the system."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from allocator.cli.commands import LAZY, main
from allocator.testing.topics import zookeeper_client
from tests.cli.every_command import leaves, write_settings

ALLOCATOR: Final = [sys.executable, "-m", "allocator.cli"]
AWAY: Final = ["--zookeeper", "127.0.0.1:1", "--timeout", "0.5"]
PATIENCE_S: Final = 120
ENVIRON: Final = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture
def config(tmp_path: Path) -> str:
    return str(write_settings(tmp_path, "127.0.0.1:1"))


def ended(
    command: list[str], begin: Callable[[], None] | None = None, within: Sequence[str] = (), **environ: str
) -> tuple[int, str, str]:
    done = subprocess.run(
        [*within, *ALLOCATOR, *command], env={**ENVIRON, **environ}, preexec_fn=begin, capture_output=True, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------

# runs code when the program begins to import a module
HOOK: Final = """
    import os, signal, sys

    class Hook:
        def find_spec(self, name, path=None, target=None):
            if name == os.environ["HOOK_IMPORT"]:
                # if exec() gets text and raises KeyboardInterrupt, Python ends by SIGINT
                exec(compile(os.environ["HOOK_DOES"], "hook", "exec"))

    sys.meta_path.insert(0, Hook())
"""
SIGINT: Final = "os.kill(os.getpid(), signal.SIGINT)"
SIGTERM: Final = "os.kill(os.getpid(), signal.SIGTERM)"
CONTAINER: Final = ["unshare", "--pid", "--fork", "--kill-child"]
AtImport = Callable[..., tuple[int, str, str]]


@pytest.fixture
def at_import(tmp_path: Path) -> AtImport:
    """Runs a command, and code when it begins to import a module."""
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(HOOK))
    path = os.pathsep.join([str(tmp_path), ENVIRON["PYTHONPATH"]])
    return lambda module, does, command, **more: ended(
        command, PYTHONPATH=path, HOOK_IMPORT=module, HOOK_DOES=does, **more
    )


@pytest.mark.parametrize("name", ["group", "run"])
def test_ctrl_c_while_a_command_is_loaded_ends_it_silently(name: str, at_import: AtImport, config: str) -> None:
    own = LAZY[name][0].partition(":")[0] if name in LAZY else "click"
    assert at_import(own, SIGINT, [name, config]) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("module", ["allocator.cli.commands", "kafka"])
def test_ctrl_c_at_any_of_its_imports_ends_a_command_silently(module: str, at_import: AtImport) -> None:
    assert at_import(module, SIGINT, ["group", "list", *AWAY]) == (-signal.SIGINT, "", "")


def test_ctrl_c_once_a_command_runs_lets_it_clean_up(at_import: AtImport) -> None:
    assert at_import("allocator.cli.access", SIGINT, ["group", "list", *AWAY]) == (128 + signal.SIGINT, "", "")


def test_a_shell_that_ignores_ctrl_c_for_a_background_job_is_respected(at_import: AtImport) -> None:
    ignoring = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    code, _, err = at_import("allocator.core.text.limits", ignoring, ["group", "list", *AWAY])
    assert code == 1
    assert err.startswith("error: ZooKeeper 127.0.0.1:1")
    code, _, err = at_import("allocator.core.text.limits", f"{ignoring}; {SIGINT}", ["--version"])
    assert (code, err) == (0, "")


# -- SIGTERM -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["allocator.cli.commands", "allocator.daemon.process"])
def test_sigterm_while_a_command_is_loaded_ends_it_in_a_container_too(
    module: str, at_import: AtImport, config: str
) -> None:
    if subprocess.run([*CONTAINER, "true"], capture_output=True).returncode:
        pytest.skip("may not create a PID namespace")
    numbered = f"assert os.getpid() == 1; {SIGTERM}"
    code, out, err = at_import(module, numbered, ["run", config, "--check"], within=CONTAINER)
    assert (code, out, err) == (128 + signal.SIGTERM, "", "")


# -- output ------------------------------------------------------------------------------------------------------------


def full_device() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def pipe_without_reader() -> int:
    reads, writes = os.pipe()
    os.close(reads)
    return writes


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    ("opened", "code", "message"),
    [
        (full_device, 1, "error: no space left on the device: free some, or write elsewhere"),
        (pipe_without_reader, 128 + signal.SIGPIPE, ""),
    ],
)
def test_every_command_whose_output_cannot_be_written_ends_without_a_traceback(
    opened: Callable[[], int],
    code: int,
    message: str,
    buffered: bool,
    config: str,
    zk_chroot: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with zookeeper_client(zk_chroot) as zk:
        for name in ("members", "claims"):
            zk.ensure_path(f"/allocator/billing/{name}")
    where = ["--zookeeper", zk_chroot]
    commands = [[*path, "--help"] for path, _ in leaves(main)]
    commands += [["--help"], ["--version"], ["group", "--help"], ["run", config, "--check"]]
    for more in ([], ["--json"]):
        commands += [["group", "list", *where, *more], ["group", "describe", "billing", *where, *more]]
    for command in commands:
        with open(opened(), "wb", buffering=-1 if buffered else 0) as device:
            out = io.TextIOWrapper(device, encoding="utf-8", write_through=not buffered)
            with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as end:
                main(command, prog_name="allocator")
            out.flush()  # as Python does at its end
        assert end.value.code == code, command
        assert capfd.readouterr().err.replace(f"\n{config} is fine\n", "").strip() == message, command


@pytest.mark.parametrize("where", ["/dev/full", "pipe"])
def test_a_process_whose_output_cannot_be_written_ends_without_a_traceback(where: str, config: str) -> None:
    with open(pipe_without_reader() if where == "pipe" else full_device(), "wb") as device:
        done = subprocess.run(
            [*ALLOCATOR, "run", config, "--check"], env=ENVIRON, stdout=device, stderr=subprocess.PIPE, text=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
    assert done.returncode == (128 + signal.SIGPIPE if where == "pipe" else 1)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


# -- limits ------------------------------------------------------------------------------------------------------------


def commands(config: str) -> list[list[str]]:
    return [["run", config], ["group", "list", *AWAY]]


@pytest.mark.parametrize(
    ("module", "raised"),
    [
        ("click", "MemoryError()"),
        ("allocator.cli.access", "ImportError('x.so: failed to map segment from shared object')"),
    ],
)
def test_too_little_memory_is_reported_in_one_line(module: str, raised: str, at_import: AtImport) -> None:
    code, out, err = at_import(module, f"raise {raised}", ["group", "list", *AWAY])
    assert (code, out) == (1, "")
    assert err == "error: out of memory: raise the memory limit of the process (ulimit -v) or of its container\n"


def test_too_few_open_files_are_reported_with_the_limit(config: str) -> None:
    """Also where the command cannot even create its event loop."""

    def limited(command: list[str], most: int) -> tuple[int, str, str]:
        return ended(command, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)))

    for command in commands(config):
        most = 10  # some are enough to find that ZooKeeper does not respond
        while "Connection refused" in (found := limited(command, most))[2]:
            most -= 1
        for code, _, err in (found, limited(command, most - 1)):
            assert code == 1
            assert "Traceback" not in err, (most, err)
            assert "oo many open files" in err, (most, err)
            assert "ulimit -n" in err, (most, err)


# -- names that the terminal cannot show -------------------------------------------------------------------------------


def test_a_group_name_outside_the_encoding_of_the_terminal_is_escaped(zk_chroot: str) -> None:
    with zookeeper_client(zk_chroot) as zk:
        for name in ("members", "claims"):
            zk.ensure_path(f"/allocator/群-grüppe/{name}")
    code, out, err = ended(["group", "list", "--zookeeper", zk_chroot], PYTHONIOENCODING="ascii")
    assert (code, err) == (1, ""), "whether it has members in Kafka is unknown"
    assert "\\u7fa4-gr\\xfcppe" in out
