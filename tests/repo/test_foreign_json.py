"""JSON that strangers can write is parsed in one place, which bounds it."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "allocator"
PARSER = "core/text/bounded_json.py"
OWN = {
    "documents/files.py": "files that this user names or this library writes",
    "compat/base_consumer.py": "kiel's default deserializer, for the caller's records",
    "web/history_file.py": "the server's own database",
}
OTHER = ("spark/", "testing/")
"""Spark's own options and checkpoints, and servers of tests."""


def unbounded(path: Path) -> list[int]:
    """The lines that use a parser of the json module."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in ("load", "loads", "JSONDecoder")
        and isinstance(node.value, ast.Name)
        and node.value.id == "json"
    ]


def test_no_module_parses_foreign_json_itself() -> None:
    found = {
        str(path.relative_to(PACKAGE)): lines for path in sorted(PACKAGE.rglob("*.py")) if (lines := unbounded(path))
    }
    assert found.pop(PARSER)
    strangers = {name: lines for name, lines in found.items() if name not in OWN and not name.startswith(OTHER)}
    assert not strangers, "use allocator.core.text.parse_json, or list the file in OWN with the reason"
    assert OWN.keys() <= found.keys(), "these parse no JSON any more"
