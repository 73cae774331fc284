"""The pages in tests/references name each behaviour of the references once, and only code and tests that exist."""

from __future__ import annotations

import re

from tests.repo.repository import PACKAGE, ROOT

PAGES = sorted((ROOT / "tests" / "references").glob("*.md"))
BEHAVIOURS = {"00": 84, "01": 53, "02": 25, "03": 55, "04": 38}
PATH = r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md))`"


def test_each_behaviour_of_a_reference_is_on_one_page() -> None:
    found = []
    for heading in re.findall(r"^##+ (\d\d-\d\d.*)$", "\n".join(page.read_text() for page in PAGES), re.MULTILINE):
        for each in heading.split(", "):
            first, _, last = each.partition(" to ")
            reference, number = first.split("-")
            found += [(reference, n) for n in range(int(number), int((last or first)[3:]) + 1)]
    assert sorted(found) == [(reference, n + 1) for reference, count in BEHAVIOURS.items() for n in range(count)]


def test_each_file_that_a_page_names_exists() -> None:
    wrong = []
    for page in PAGES:
        for path in re.findall(PATH, page.read_text()):
            if not path.startswith("kiel/") and not any((place / path).is_file() for place in (ROOT, PACKAGE)):
                wrong.append(f"{page.name}: {path}")
    assert not wrong


def test_each_name_is_in_the_file_before_it() -> None:
    """`package/file.py`: `name`, `name`. A name of a test is that of a function."""
    wrong = []
    for page in PAGES:
        for path, names in re.findall(PATH + r":\s((?:`[\w.]+`(?:,\s+)?)+)", page.read_text()):
            text = next(place / path for place in (ROOT, PACKAGE) if (place / path).is_file()).read_text()
            words = set(re.findall(r"def (\w+)" if path.startswith("tests/") else r"\w+", text))
            wrong += [
                f"{path}: {name}" for name in re.findall(r"`([\w.]+)`", names) if not set(name.split(".")) <= words
            ]
    assert not wrong
