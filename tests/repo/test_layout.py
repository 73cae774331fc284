"""The layout of the package: which package may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import allocator
from tests.repo.repository import PACKAGE, imports, module_name, part, sources

# From the lowest to the highest; packages of one tier do not import each other, except those of the first, which form a
# chain (`CHAIN`). A package that no tier names is an application.
TIERS = (("core", "assignors", "documents"), ("producer", "commands"), ("protocols", "handlers"), ("operate",))
COMPOSERS = {"cli", "web", "__main__"}  # applications that import the others
# Imports the errors and the writer of files, and nothing else: a test must not judge the code by the code.
ALONE = {"testing": {"allocator.errors", "allocator.documents.write_file"}}
# From the lowest to the highest: the packages and modules of `core`, and the two packages of pure code beside it.
PURE = {"assignors", "documents"}
CHAIN = (
    ("kafka_structs",),
    ("text", "varint", "record"),
    ("errors",),
    ("types",),
    ("kafka_errors",),
    ("aio", "telemetry", "settings"),
    ("subscription", "client", "documents"),
    ("fetch", "offsets", "assignors"),
    ("membership", "memberships"),
    ("consumer",),
)
# (importing package, modules that are no face): why.
INNER = {("daemon", "allocator.core.memberships"): "a registry; the daemon reads its settings from the class of a name"}
SEAM = 131  # the number of names that other packages import from `core`; only lower it
# Public short paths, for code that lives deeper; and what no tier holds.
FACES = {"errors": "core", "types": "core", "sinks": "handlers", "schemas": "handlers"}
FREE = {"", "__version__", "lazy_names"}


def own_imports(path: Path) -> Iterator[tuple[int, str]]:
    return (each for each in imports(path) if part(each[1], 0) == "allocator")


def tier(package: str) -> int:
    return next((height for height, packages in enumerate(TIERS) if package in packages), len(TIERS))


def test_a_package_imports_only_lower_tiers() -> None:
    wrong = []
    for path in sources():
        importing = part(module_name(path), 1)
        if importing in FREE or (importing in FACES and path.parent == PACKAGE):
            continue  # the package itself and its faces re-export names of any package
        for line, name in own_imports(path):
            if part(name, 1) in allocator.__all__ and tier(importing) == len(TIERS):
                continue  # a public name
            imported = FACES.get(part(name, 1), part(name, 1))
            if imported in FREE or imported == importing or {imported, importing} <= set(TIERS[0]):
                continue
            if tier(imported) < tier(importing) and name.startswith(tuple(ALONE.get(importing, [""]))):
                continue
            if not (importing in COMPOSERS and tier(imported) == len(TIERS)):
                wrong.append(f"{path}:{line}: {name}")
    assert not wrong


def link(module: str) -> str | None:
    """Returns the entry of the chain that a module belongs to."""
    first = FACES.get(part(module, 1), part(module, 1))
    if first == "core" and part(module, 1) != "core":
        return part(module, 1)
    return part(module, 2) if first == "core" else first if first in PURE else None


def test_the_packages_of_core_form_a_chain() -> None:
    heights = {package: height for height, packages in enumerate(CHAIN, start=1) for package in packages}
    modules = {path.stem for path in PACKAGE.glob("core/*.py")} - {"__init__"}
    assert set(heights) == modules | {path.parent.name for path in PACKAGE.glob("core/*/__init__.py")} | PURE
    wrong = []
    for path in sources():
        here = None if path.parent == PACKAGE else link(module_name(path))
        for line, name in own_imports(path) if here else ():
            there = link(name)
            if there is None or there == here:
                continue
            if heights.get(there, 0) >= heights.get(here, 0):
                wrong.append(f"{path}:{line}: {name}")
    assert not wrong


def names_from_elsewhere() -> Iterator[tuple[Path, str, str]]:
    """(file, module, name) for each name that a file imports from another package; core counts as one package."""
    for path in sources():
        if path.parent == PACKAGE:
            continue  # re-exports names
        for _, dotted in own_imports(path):
            if part(dotted, 1) != part(module_name(path), 1):
                module, _, name = dotted.rpartition(".")
                yield path, module, name


def is_face(module: str) -> bool:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return module.count(".") <= 1 or (module.count(".") == 2 and path.is_dir())


def test_other_packages_import_faces() -> None:
    def is_exempt(path: Path, module: str) -> bool:
        package = part(module_name(path), 1)
        return any(package == importing and f"{module}.".startswith(f"{inner}.") for importing, inner in INNER)

    found = [each for each in names_from_elsewhere() if not is_face(each[1]) and not is_exempt(*each[:2])]
    assert not found, "import what the __init__ of the package lists, or add what is missing there"


def test_other_packages_import_few_names_of_core() -> None:
    names = {name for _, module, name in names_from_elsewhere() if part(module, 1) == "core"}
    assert len(names) <= SEAM


# Classes with more than 18 attributes or 30 methods: why.
LARGE = {
    "Batch": "a face: one batch as records, columns or bytes",
    "ConsumerBase": "a face: the methods of `Consumer`",
    "KafkaClient": "a face: one cluster, for all packages",
    "_Flow": "the arrays of one flow problem",
}


def own_attributes(node: ast.ClassDef) -> set[str]:
    """The attributes that the methods of a class assign."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def test_a_class_is_one_concept() -> None:
    large = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) for each in node.body)
                if methods > 30 or len(own_attributes(node)) > 18:
                    large.add(node.name)
    assert large == LARGE.keys(), "divide the class, or take it out of the list when it is small enough"
