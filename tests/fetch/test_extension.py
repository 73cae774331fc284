"""The compiled decoder: it is built, everything works without it, and it is memory-safe."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import platform
import random
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crc32c
import pytest

import allocator.core.fetch
from allocator.core.fetch import codecs
from tests.fetch.fetch_decoders import DECODERS
from tests.fetch.fetch_encode import R, batch, messages

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which((os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0])
HEADER = Path(sysconfig.get_paths()["include"]) / "Python.h"
MISSING = "there is no C compiler here" if COMPILER is None else "" if HEADER.is_file() else f"there is no {HEADER}"
BUILT = len(DECODERS) == 2

compiled = pytest.mark.skipif(not BUILT, reason=MISSING or "the compiled decoder is not built")
can_build = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def run(*command: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout + done.stderr


@can_build
def test_it_is_built_and_used_where_a_compiler_is() -> None:
    assert BUILT, "a compiler is here and allocator.core._records is not: pip install -e '.[dev]' says why"
    pure = os.environ.get("ALLOCATOR_PURE_PYTHON", "0") not in ("", "0")
    assert allocator.core.fetch.accelerated is not pure


def test_without_it_records_are_decoded_and_the_log_says_so_once(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import logging\n"
        "logging.basicConfig(format='%(levelname)s %(name)s %(message)s')\n"
        "from allocator import Record\n"
        "from allocator.core.fetch import Batch, accelerated, decode\n"
        "assert not accelerated\n"
        f"data = bytes.fromhex({batch([R(0, b'v', b'k')], 7).hex()!r})\n"
        "for _ in range(3):\n"
        "    found = decode.scan(data, topic='t', partition=0, start=0)\n"
        "(record,) = Batch('t', 0, found)\n"
        "assert type(record) is Record\n"
        "print(record.offset, record.key, record.value)\n"
    )
    output = run(sys.executable, program, cwd=ROOT, ALLOCATOR_PURE_PYTHON="1", PYTHONPATH=str(ROOT))
    assert "7 b'k' b'v'" in output
    assert output.count("WARNING allocator.core.fetch.decode records are decoded in plain Python") == 1


@compiled
def test_checksums_are_those_of_the_package_crc32c() -> None:
    from allocator.core import _records

    data = random.Random(1).randbytes(200_000)
    # around a word, and around the blocks that are taken three at a time
    blocks = [n * block + d for block in (128, 1024) for n in (3, 6) for d in (-1, 0, 1)]
    for size in (*range(70), *blocks, 100_001, 200_000):
        for start in (0, 1):
            part = data[start:size]
            assert _records.crc32c(part) == _records.crc32c(part, False) == crc32c.crc32c(part), size


@compiled
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_other_threads_run_while_it_decodes_and_encodes(codec: str) -> None:
    """Without forced switches, another thread runs only if the decoder releases the interpreter's lock."""
    from allocator.core import _records

    rng = random.Random(2)
    data = batch([R(i, rng.randbytes(1 << 14) + bytes(1 << 14)) for i in range(100)], 0, codec)
    found = _records.scan(data, topic="t", partition=0, start=0)
    stop, runs = threading.Event(), threading.Event()
    ticks = 0

    def count() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            runs.set()
            time.sleep(0)  # releases the lock

    def lets_others_run(call: Callable[[], object]) -> bool:
        seen, ends = ticks, time.monotonic() + 20
        while ticks == seen and time.monotonic() < ends:
            call()
        return ticks > seen

    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    thread = threading.Thread(target=count)
    thread.start()
    try:
        assert runs.wait(20)
        assert lets_others_run(lambda: _records.scan(data, topic="t", partition=0, start=0))
        if codec != "none":
            assert lets_others_run(lambda: codecs.decompress(found.segments[0].codec, data[61:]))
        assert lets_others_run(lambda: found.columns(0, 1))
        columns = found.columns(0, 1)
        assert lets_others_run(lambda: columns.records().write(1 << 30))
    finally:
        stop.set()
        sys.setswitchinterval(before)
        thread.join()


# -- threads


def in_threads(work: Callable[[], None], many: int) -> None:
    """Runs `work` in `many` threads that start together. Raises the first exception of a thread."""
    barrier = threading.Barrier(many)

    def run_together() -> None:
        barrier.wait()
        work()

    with concurrent.futures.ThreadPoolExecutor(many) as pool:
        for done in [pool.submit(run_together) for _ in range(many)]:
            done.result()


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def collections_that_switch() -> Iterator[None]:
    """Lets the garbage collector run Python code at almost any new list, so that another thread may run."""
    gc.callbacks.append(_watch)
    before = gc.get_threshold()
    gc.set_threshold(20, 1000, 1000)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(_watch)


def _watch(phase: str, info: dict[str, int]) -> None:
    sum(range(9))


@compiled
@pytest.mark.usefixtures("frequent_switches", "collections_that_switch")
def test_threads_that_read_the_same_records_get_the_same_objects() -> None:
    """A thread that decodes an attribute after another one must return the object of the first.

    Without the interpreter's lock it would otherwise free the object that the first thread returns.
    """
    from allocator.core import _records

    count = 2000
    wire = batch([R(i, b"value %d " % i * 4, b"key %d " % i * 4, headers=[("h", b"%d" % i)]) for i in range(count)], 0)
    columns = _records.scan(wire, topic="t", partition=0, start=0).columns(0, 1)
    # threads rarely meet at a record: without critical sections, 60 rounds saw two objects in 2000 of 120,000 records
    for _ in range(60):
        records = list(columns.records())
        seen: list[list[tuple[object, ...]]] = []

        def read(records: list[Any] = records, seen: list[list[tuple[object, ...]]] = seen) -> None:
            seen.append([(record.key, record.value, record.headers) for record in records])

        in_threads(read, 3)
        for row, fields in enumerate(zip(*seen)):
            assert fields[0] == (b"key %d " % row * 4, b"value %d " % row * 4, [("h", b"%d" % row)])
            assert all(one is other for others in fields for one, other in zip(fields[0], others))


@compiled
@pytest.mark.usefixtures("frequent_switches", "collections_that_switch")
@pytest.mark.parametrize(
    ("size", "each", "batches", "threads"),
    [
        pytest.param(1 << 13, 20, 20, 6, id="the decoder releases the lock in each segment"),
        # a thread that creates its record while another one takes the last row would read memory behind the rows
        *(pytest.param(1, 3000, 5, 4, id=f"many rows, round {n}") for n in range(3)),
    ],
)
def test_an_iterator_that_threads_share_returns_each_record_once(
    size: int, each: int, batches: int, threads: int
) -> None:
    """A thread that calls while another one decodes gets an error, and no segment is left out."""
    from allocator.core import _records

    value = random.Random(3).randbytes(size)
    wire = b"".join(batch([R(i, value) for i in range(each)], n * each) for n in range(batches))
    records = _records.scan(wire, topic="t", partition=0, start=0).records(0, batches, 0, each * batches)
    seen: list[Any] = []  # the records stay, so that each new one is a new object

    def read() -> None:
        while True:
            try:
                seen.append(next(records))
            except StopIteration:
                return
            except ValueError as error:
                assert "another thread" in str(error)

    in_threads(read, threads)
    assert sorted(record.offset for record in seen) == list(range(each * batches))


@compiled
@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this interpreter has a lock")
def test_no_module_of_the_package_turns_the_interpreters_lock_on() -> None:
    """Modules of other packages may; the warning of the interpreter names the module."""
    code = (
        "import importlib, pkgutil, allocator\n"
        "for module in pkgutil.walk_packages(allocator.__path__, 'allocator.', onerror=lambda name: None):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        try:\n"
        "            importlib.import_module(module.name)\n"
        "        except ImportError:\n"  # an extra is not installed
        "            pass\n"
        "assert 'allocator.core._records' in __import__('sys').modules\n"
    )
    output = run(sys.executable, "-W", "always", "-c", code, cwd=ROOT, PYTHONPATH=str(ROOT))
    assert "to load module 'allocator" not in output


# -- builds


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the files that a build needs."""
    copy = tmp_path / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "allocator", copy / "allocator", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return copy


def imported(wheel: Path, place: Path) -> str:
    """Returns which decoder a wheel uses and its output, with the dependencies of this environment."""
    zipfile.ZipFile(wheel).extractall(place)
    data = batch([R(0, b"v" * 20, b"k")], 7) + messages([R(0, b"w")], 1, 8, "gzip")
    code = (
        "import sys; "
        # modules that an editable installation finds but the wheel does not have
        "sys.meta_path[:] = [finder for finder in sys.meta_path if 'ditable' not in repr(finder)]; "
        "import allocator.core.fetch as f; assert f.__file__.startswith(sys.argv[1]), f.__file__; "
        f"found = f.scan(bytes.fromhex({data.hex()!r}), topic='t', partition=0, start=0); "
        "print(f.accelerated, [r.offset for r in f.Batch('t', 0, found)])"
    )
    return run(sys.executable, "-c", code, place, cwd=place, PYTHONPATH=str(place)).splitlines()[0]


def pip_wheel(source: Path, directory: Path, **environment: str) -> tuple[Path, str]:
    """Builds a wheel in `directory`. Returns it, and the output of pip."""
    command = (sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--wheel-dir", directory, source)
    output = run(*command, cwd=source.parent, **environment)
    (wheel,) = directory.glob("*.whl")
    return wheel, output


@pytest.mark.long
@can_build
def test_a_compiled_and_a_pure_wheel_are_built_and_import(source: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--outdir", tmp_path / "both", cwd=source, ALLOCATOR_REQUIRE_EXTENSION="1")
    (wheel,) = (tmp_path / "both").glob("*.whl")
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert "-cp39-abi3-" in wheel.name, "for every Python since"
    assert imported(wheel, tmp_path / "compiled") == "True [7, 8]"
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith((".c", ".h", ".pyx"))]

    # from the archive of sources, as on other machines
    (archive,) = (tmp_path / "both").glob("*.tar.gz")
    wheel, _ = pip_wheel(archive, tmp_path / "pure", ALLOCATOR_PURE_PYTHON="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert imported(wheel, tmp_path / "plain") == "False [7, 8]"
    pip_wheel(archive, tmp_path / "again", ALLOCATOR_REQUIRE_EXTENSION="1")


@pytest.mark.long
def test_an_installation_without_a_compiler_succeeds_and_says_so(source: Path, tmp_path: Path) -> None:
    wheel, output = pip_wheel(source, tmp_path / "wheel", CC="/nonexistent/cc")
    assert "allocator.core._records is left out" in output
    assert "70 times slower" in output
    assert wheel.name.endswith("-py3-none-any.whl"), "a wheel without compiled code is for any machine"
    assert imported(wheel, tmp_path / "plain") == "False [7, 8]"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(not HEADER.is_file(), reason="there is no Python.h")
def test_without_a_compiler_the_build_installs_one(source: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("env", "sh", "uname"):
        (tools / name).symlink_to(shutil.which(name) or name)
    wheel, _ = pip_wheel(source, tmp_path / "wheel", PATH=str(tools), ALLOCATOR_REQUIRE_EXTENSION="1")
    assert wheel.name.endswith(f"_{platform.machine()}.whl")
    assert imported(wheel, tmp_path / "compiled") == "True [7, 8]"


@pytest.mark.long
@pytest.mark.timeout(1800)
@can_build
def test_the_sanitizers_find_nothing_in_the_tests_of_the_decoders(source: Path, tmp_path: Path) -> None:
    """Builds the extension under ASan and UBSan, and runs the tests of the decoders with more examples."""
    preload = []
    for name in ("libasan.so", "libubsan.so"):
        found = subprocess.run([COMPILER, f"-print-file-name={name}"], capture_output=True, text=True)  # type: ignore[list-item]
        if not Path(found.stdout.strip()).is_file():
            pytest.skip(f"the compiler has no {name}")
        preload.append(found.stdout.strip())
    tree = tmp_path / "tree"
    shutil.copytree(source, tree)
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    wheel, _ = pip_wheel(source, tmp_path / "wheel", ALLOCATOR_SANITIZE="1", ALLOCATOR_REQUIRE_EXTENSION="1")
    zipfile.ZipFile(wheel).extractall(tree)
    files = [f"tests/fetch/test_{name}.py" for name in ("codecs", "decode", "decode_fuzz", "batch", "arrow")]
    files.append("tests/producer/test_encode.py")
    under = {
        "LD_PRELOAD": " ".join(preload),
        # the interpreter keeps many objects until it ends; its own memory allocator would hide reads beyond an object's
        # end
        "ASAN_OPTIONS": "detect_leaks=0,allocator_may_return_null=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(tree),
        "ALLOCATOR_FUZZ_TIMES": "3",
    }
    output = run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=1500"),
        *files,
        *("-k", "not plain and not memory_stays"),
        cwd=tree,
        **under,
    )
    assert " passed" in output
    assert "runtime error" not in output
