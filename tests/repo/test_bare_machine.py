"""The first hour on a bare machine: a minimal Debian 12 with make, python3, python3-venv and git, and an ordinary user.

There is no compiler, no Python.h and no Java, and the checkout is at a path with characters that the locale lacks. The
machine is a chroot, which takes root and debootstrap. A clone whose PATH hides compiler and Java does the same in part,
for everybody.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo.repository import ROOT

pytestmark = [pytest.mark.long, pytest.mark.servers, pytest.mark.timeout(3600), pytest.mark.deadline(3600)]

PACKAGES = "make,python3,python3-venv,git,ca-certificates"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
USER = 1000
# mounts of its own, which end with it
ENTER = (
    "mount -t proc proc $0/proc && mount --rbind /dev $0/dev && "
    'exec /usr/sbin/chroot --userspec=1000:1000 $0 sh -c "$1"'
)


def clone(place: Path) -> None:
    """What a reader gets: the commit, without untracked files."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place)], check=True, timeout=120)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root directory of the bare machine, with a checkout at /home/reader/größe."""
    if os.getuid() or not shutil.which("debootstrap"):
        pytest.skip("the bare machine is a chroot: needs root and debootstrap")
    root = tmp_path_factory.mktemp("machine") / "root"
    debootstrap = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)]
    done = subprocess.run(debootstrap, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    # the network of this machine: its names, its authorities, its settings of pip
    for file in ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf"):
        if Path(file).exists():
            shutil.copy(file, root / file.lstrip("/"))
    shutil.copy(os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE") or CERTIFICATES, f"{root}{CERTIFICATES}")
    home = root / "home" / "reader"
    clone(home / "größe")
    for path in (home, *home.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)
    yield root
    shutil.rmtree(root, ignore_errors=True)


def sh(machine: Path, command: str) -> str:
    """Runs a command there as the user, in the checkout. Fails if it fails."""
    environ = {"HOME": "/home/reader", "PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
    environ.update(dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), CERTIFICATES))
    kept = ("PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "ALLOCATOR_MAVEN_MIRROR", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
    environ.update({name: os.environ[name] for name in kept if name in os.environ})
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", ENTER, str(machine), f"cd /home/reader/größe && {command}"],
        env=environ,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=3000,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    return done.stdout


def test_the_demo_runs_and_reports_the_plain_decoder(machine: Path) -> None:
    printed = sh(machine, "make demo ARGS='--records 20000 --rate 4000'")
    assert "\ndecoder: plain" in printed
    assert "every promise holds" in printed
    assert "decoder: plain" in sh(machine, ".venv/bin/allocator --version")


def test_a_wheel_that_is_built_there_is_for_any_machine(machine: Path) -> None:
    assert sh(machine, "make wheel").splitlines()[-1].endswith("-py3-none-any.whl")


def test_tests_pass_there_and_list_what_they_leave_unproven(machine: Path) -> None:
    tests = "tests/repo/test_public_api.py tests/testing/test_waiting.py tests/fetch/test_extension.py"
    printed = sh(machine, f"make test ARGS='{tests}'")
    assert "skipped: the compiled decoder and encoder (Debian: gcc python3-dev)" in printed
    assert " passed, " in printed.splitlines()[-1]


@pytest.mark.skipif(not shutil.which("git"), reason="needs git, which is not installed")
def test_a_clone_without_compiler_and_java_on_its_path_runs_the_demo(tmp_path: Path) -> None:
    clone(tmp_path / "größe")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("awk", "env", "git", "ls", "head", "make", "rm", "sh", "test", "touch", "uname", sys.executable):
        found = shutil.which(name)
        if found:
            (tools / Path(name).name).symlink_to(found)
    environ = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "CC", "LANG", "LC_CTYPE")}
    done = subprocess.run(
        ["make", "demo", f"PYTHON={sys.executable}", "ARGS=--records 20000 --rate 4000"],
        cwd=tmp_path / "größe",
        env={**environ, "PATH": str(tools), "LC_ALL": "C"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    assert "\ndecoder: " in done.stdout
    assert "every promise holds" in done.stdout
